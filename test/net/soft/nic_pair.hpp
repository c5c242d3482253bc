// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "net/soft/driving_memory.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/soft/soft_send_queue.hpp"
#include "net/support/local_wires.hpp"
#include "net/support/nic_faults.hpp"
#include "net/support/pair_calls.hpp"
#include "net/support/receives.hpp"

namespace oriel::net::test {

/// Clock that advances only when the test moves it.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{std::chrono::seconds(1000)};
};

inline constexpr std::uint8_t kAllAccess = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;

/// Rank with its NIC and registered memory.
struct Side {
  explicit Side(LocalWires& exchange, const Clock& clock = SteadyClock::instance(),
                std::size_t words = 8192)
      : nic(NicSoft::Options{.clock = &clock}), memory(words) {
    nic.add_wire(exchange.attach());
    region.address = reinterpret_cast<std::uint64_t>(memory.data());
    region.bytes = words * 8;
    key = add_key(kAllAccess);
    region.keys[0] = key;
  }
  std::uint32_t add_key(std::uint8_t access) {
    return nic.register_memory({region.address, region.bytes, bytes(), access}).value();
  }
  dq::LocalRange range(std::uint64_t offset, std::uint32_t bytes) const {
    return {region.address + offset, key, bytes};
  }
  /// Returns the region with another key.
  dq::Region with_key(std::uint32_t other) const {
    dq::Region made = region;
    made.keys[0] = other;
    return made;
  }
  SendQueue make_queue(const SendQueue::Options& options = {}) {
    return SendQueue::create(nic, options).value();
  }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(memory.data()); }
  /// Fills the memory with random words.
  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::generate(memory.begin(), memory.end(), std::ref(random));
  }

  NicSoft nic;
  std::vector<std::uint64_t> memory;
  std::uint32_t key = 0;
  dq::Region region;
};

inline void connect(Side& a, SendQueue& from, Side& b, SendQueue& to) {
  REQUIRE(from.connect({0, b.nic.address(0), to.number()}).ok());
  REQUIRE(to.connect({0, a.nic.address(0), from.number()}).ok());
}

/// Two ranks with one connected queue, all driven by the calling thread.
struct NicPair : PairCalls<NicPair, DrivingMemory> {
  explicit NicPair(const SendQueue::Options& options = {},
                   const Clock& with = SteadyClock::instance(), std::size_t words = 8192)
      : a(exchange, with, words),
        b(exchange, with, words),
        there(a.make_queue(options)),
        back(b.make_queue(options)),
        all{&a.nic, &b.nic},
        scope(all) {
    connect(a, there, b, back);
    control.timeout_ns = 20'000'000'000;
  }
  /// Drives both NICs until both have been idle 8 times in a row.
  void run() {
    for (int idle = 0; idle < 8;) {
      const bool worked = a.nic.progress();
      idle = b.nic.progress() || worked ? 0 : idle + 1;
    }
  }
  const dq::QueueView& view() const { return there.view(); }
  dq::CompletionTail tail() const { return dq::decode_tail(view().completion->tail); }
  dq::Syndromes syndromes() const { return dq::decode_syndromes(view().completion->status); }

  LocalWires exchange;
  Side a, b;
  SendQueue there, back;
  std::array<NicSoft*, 2> all;
  DrivingScope scope;
  device::WaitControl control;
};

/// Writes WQEs one by one at the lowest level, also those that the device calls would never write.
class RawPoster {
 public:
  explicit RawPoster(const dq::QueueView& view, std::uint64_t base = 0)
      : view_(view), next_(base) {}
  template <std::uint32_t kParts>
  std::uint64_t add(const dq::Wqe<kParts>& wqe) {
    const std::uint64_t index = next_;
    dq::write_wqe(view_, {.base = index, .wqebbs = dq::Wqe<kParts>::kWqebbs}, 0, wqe);
    next_ += dq::Wqe<kParts>::kWqebbs;
    return index;
  }
  /// Adds a no-op.
  void nop(std::uint32_t flags = dq::kSignalled) { add(dq::nop_wqe(place(), flags)); }
  dq::Place place() const { return {view_.number, next_}; }
  std::uint64_t next() const { return next_; }
  void ring() const { ring(next_, next_); }
  void ring(std::uint64_t record, std::uint64_t doorbell) const {
    set_record(record);
    set_doorbell(doorbell, view_.number);
  }
  void set_record(std::uint64_t index) const {
    if (view_.doorbell_record == nullptr) return;  // DoorbellMode::alone
    device::Memory::store<device::Order::release>(
        view_.doorbell_record, dq::big_endian(static_cast<std::uint32_t>(index & 0xffff)));
  }
  void set_doorbell(std::uint64_t index, std::uint32_t queue) const {
    const auto low = static_cast<std::uint32_t>(index & 0xffff) << 8;
    device::Memory::store<device::Order::release>(
        view_.doorbell, std::uint64_t{dq::big_endian(queue << 8)} << 32 | dq::big_endian(low));
  }

 private:
  const dq::QueueView& view_;
  std::uint64_t next_;
};

}  // namespace oriel::net::test
