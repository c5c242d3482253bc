// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "net/fabric/fabric_table.hpp"
#include "net/fabric/wire_fabric.hpp"
#include "net/soft/nic_pair.hpp"
#include "support/fabric_provider_name.hpp"

namespace oriel::net::test {

/// Ends the test program with status 77 (skipped) and a reason if libfabric cannot be loaded.
struct NeedsFabric {
  NeedsFabric() {
    const std::string& missing = fabric_library().missing;
    if (missing.empty()) return;
    std::printf("skipped: %s\n", missing.c_str());
    std::fflush(stdout);
    std::_Exit(77);
  }
};
inline const NeedsFabric needs_fabric;

/// Returns options for loopback, the test provider and the key of one communicator.
inline WireFabric::Options fabric_options(const FabricTable* table = nullptr) {
  WireFabric::Options options;
  std::array<std::byte, boot::Key::kBytes> secret{};  // same in processes forked from one
  secret.fill(std::byte{0x5a});
  options.key = boot::Key(secret);
  options.provider = oriel::test::fabric_provider();
  options.socket.ifname = "lo";
  options.receives = 32;
  options.sends = 32;
  options.table = table;
  return options;
}

inline std::unique_ptr<WireFabric> open_wire(const WireFabric::Options& options) {
  auto wire = WireFabric::create(options);
  if (!wire.ok()) FAIL(wire.error().to_string());
  return std::move(wire).value();
}

/// Two wires that are peers of each other, as "rank 0" and "rank 1".
struct WirePair {
  explicit WirePair(const WireFabric::Options& options = fabric_options())
      : WirePair(options, options) {}
  WirePair(const WireFabric::Options& of_a, const WireFabric::Options& of_b)
      : a(open_wire(of_a)), b(open_wire(of_b)) {
    REQUIRE(a->add_peer(b->local_address(), "rank 1").value() == b->address());
    REQUIRE(b->add_peer(a->local_address(), "rank 0").value() == a->address());
  }
  std::unique_ptr<WireFabric> a, b;
};

/// Returns a response whose payload follows from its number.
inline WireMessage numbered(std::uint64_t number, std::size_t bytes) {
  WireResponse response;
  response.to_queue = 1;
  response.number = number;
  Bytes made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    made[i] = static_cast<std::byte>(number * 131 + i * 7 + (i >> 8));
  }
  response.payload = std::move(made);
  return {response};
}

inline bool is_numbered(const WireMessage& message, std::uint64_t number, std::size_t bytes) {
  const auto* const response = std::get_if<WireResponse>(&message.body);
  if (response == nullptr || response->number != number) return false;
  return response->payload == std::get<WireResponse>(numbered(number, bytes).body).payload;
}

/// Calls `done` until it returns true. Returns false after `timeout`.
inline bool soon(const std::function<bool()>& done, Duration timeout = std::chrono::seconds(20)) {
  const Deadline deadline = Deadline::after(timeout);
  while (!done()) {
    if (deadline.expired(SteadyClock::instance().now())) return false;
  }
  return true;
}

/// Two NICs with one connected queue over fabric wires, driven by the calling thread.
struct FabricPair : PairCalls<FabricPair, DrivingMemory> {
  explicit FabricPair(const SendQueue::Options& queue = {},
                      const WireFabric::Options& wire = fabric_options(), std::size_t words = 8192)
      : wires(wire),
        a(exchange, SteadyClock::instance(), words),
        b(exchange, SteadyClock::instance(), words),
        wire_a(wires.a.get()),
        wire_b(wires.b.get()),
        there(a.make_queue(queue)),
        back(b.make_queue(queue)),
        all{&a.nic, &b.nic},
        scope(all) {
    const std::uint32_t of_a = a.nic.add_wire(std::move(wires.a));
    const std::uint32_t of_b = b.nic.add_wire(std::move(wires.b));
    REQUIRE(there.connect({of_a, wire_b->address(), back.number()}).ok());
    REQUIRE(back.connect({of_b, wire_a->address(), there.number()}).ok());
    control.timeout_ns = 20'000'000'000;
  }
  const dq::QueueView& view() const { return there.view(); }
  /// Posts a long put, and drives both ends until b has started the rendezvous read of its bytes.
  dq::Posted begin_long_put(std::uint64_t bytes) {
    const std::uint64_t before = traffic(b.nic).rendezvous_reads;
    const dq::Posted posted = put(0, 0, bytes);
    REQUIRE(posted.outcome == dq::QueueOutcome::done);
    REQUIRE(soon([&] {
      turn();
      return traffic(b.nic).rendezvous_reads != before;
    }));
    return posted;
  }
  void turn() {
    a.nic.progress();
    b.nic.progress();
  }

  LocalWires exchange;
  WirePair wires;
  Side a, b;
  WireFabric* wire_a;  // owned by the NICs
  WireFabric* wire_b;
  SendQueue there, back;
  std::array<NicSoft*, 2> all;
  DrivingScope scope;
  device::WaitControl control;
};

}  // namespace oriel::net::test
