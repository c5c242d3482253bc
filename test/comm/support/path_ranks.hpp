// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "comm/support/network_of.hpp"
#include "comm/support/network_ranks.hpp"
#include "net/support/nic_faults.hpp"
#include "support/fabric_provider_name.hpp"
#include "support/sanitized.hpp"

/// Ranks that reach each other by two paths, of which the first fails (3.14). Both paths use the
/// loopback, because the tests make NICs fail, not links.
namespace oriel::test {

/// Ends the program as skipped if libfabric has no tcp provider.
inline bool skip_without_fabric() {
  static const bool is_there =
      net::WireFabric::create({.provider = fabric_provider(), .socket = {.ifname = "lo"}}).ok();
  if (is_there) return true;
  std::puts("skipped: libfabric has no tcp here");
  std::fflush(stdout);
  std::_Exit(77);
}

/// Makes a path fail after 1.2 s without an answer (2.4 s with sanitizers). The path is first
/// retried one second later.
inline const Variables kTwoPaths = {{"ORIEL_FABRIC_PROVIDER", fabric_provider()},
                                    {"ORIEL_SOCKET_IFNAME", "lo"},
                                    {"ORIEL_WIRE", "fabric"},
                                    {"ORIEL_PATHS", "lo,lo"},
                                    {"ORIEL_COLLECTIVE_TIMEOUT", kSanitized ? "18s" : "9s"}};

/// Sets the collective timeout to off, because a busy machine is silent, too. A path then fails
/// only after 3 s without an answer.
inline Variables with_timeout() {
  Variables settings = kTwoPaths;
  settings.push_back({"ORIEL_COLLECTIVE_TIMEOUT", "off"});
  return settings;
}

inline net::FailoverQueue::Pace pace_of(const Rank& rank, int peer) {
  const net::FailoverQueue* const queue = network_of(rank).failover(peer);
  require(queue != nullptr, "a queue with a backup");
  return queue->pace();
}

inline void await_path(const Rank& rank, int peer, int path) {
  const auto is_there = [&] {
    const auto pace = pace_of(rank, peer);
    return pace.path == path && pace.is_settled;
  };
  require(eventually(is_there), "the queue goes by path " + std::to_string(path));
}

/// Returns faults that make the request after the first `nth` of each queue fail.
inline net::test::NicFaults fail_at(std::uint64_t nth, bool after_delivery) {
  net::test::NicFaults faults;
  faults.fails = {{{0, nth}, net::Syndrome::transport_retry, after_delivery}};
  return faults;
}

// Bodies run by CPU ranks and GPU ranks.

/// Three ranks, the last alone on its node, use the first path as long as it works.
inline void use_first_path(TestRanks& test_ranks) {
  Traffic traffic(test_ranks, 1);
  traffic.run(15);
  Rank& rank = traffic.rank();
  const int peer = test_ranks.first() == 2 ? 0 : 2;
  require(pace_of(rank, peer).path == 0, "the first path");
  require(network_of(rank).failover(test_ranks.first()) == nullptr, "no queue to itself");
  require(net::test::fabric_messages(network_of(rank).nic(1)) == 0, "nothing goes by the backup");
  test_ranks.barrier();
}

/// On each of three ranks, one of the next `within` requests of each queue fails, three times over.
/// Calls `also` after the traffic of each round.
inline void leave_failed_path(TestRanks& test_ranks, std::uint64_t seed, std::uint64_t within,
                              const std::function<void(Rank&)>& also = {}) {
  Traffic traffic(test_ranks, seed);
  Rank& rank = traffic.rank();
  std::mt19937_64 random(seed + static_cast<std::uint64_t>(test_ranks.first()));
  for (int flap = 0; flap < 3; ++flap) {
    const net::NicSoft& backup = network_of(rank).nic(1);
    const auto before = net::test::fabric_messages(backup);
    net::test::set_faults(network_of(rank).nic(), fail_at(random() % within, random() % 2 == 0));
    test_ranks.barrier();
    traffic.run(10);
    if (also) also(rank);
    net::test::set_faults(network_of(rank).nic(), {});
    require(net::test::fabric_messages(backup) > before, "the backup is used");
    test_ranks.barrier();
    for (int peer = 0; peer < 3; ++peer) {
      if (peer != test_ranks.first() && flap != 2) await_path(rank, peer, 0);
    }
    test_ranks.barrier();
  }
  require_no_error(rank.comm);
  test_ranks.barrier();
}

/// Two ranks, one of which loses its NIC's answers for so long that the queue leaves the path.
inline void lose_answers(TestRanks& test_ranks, std::uint64_t seed) {
  Traffic traffic(test_ranks, seed);
  if (test_ranks.first() == 1) {
    net::test::NicFaults faults;  // lost from the first barrier's answers on
    faults.lost_responses = {{0, 3, ~std::uint64_t{0}}};
    net::test::set_faults(network_of(traffic.rank()).nic(), std::move(faults));
  }
  test_ranks.barrier();
  traffic.run(12);  // signals are counted at the end
  require(net::test::fabric_messages(network_of(traffic.rank()).nic(1)) > 0, "another path");
  test_ranks.barrier();
}

/// Runs at least three ranks. The first rank's NIC stops and comes back; the last rank's NIC stops
/// for good. Calls `also` while both are gone.
inline void lose_first_nics(TestRanks& test_ranks, std::uint64_t seed,
                            const std::function<void(Rank&)>& also = {}) {
  Traffic traffic(test_ranks, seed);
  Rank& rank = traffic.rank();
  const int me = test_ranks.first(), last = test_ranks.size() - 1;
  traffic.run(5);
  test_ranks.barrier();
  if (me == 0) net::test::stop_nic(network_of(rank).nic());
  if (me == last) net::test::stop_nic(network_of(rank).nic());
  traffic.run(10);
  if (also) also(rank);
  for (const int peer : {0, last}) {
    if (peer != me) await_path(rank, peer, 1);
  }
  // Probes of a dead path stay pending, and must not count as work.
  require(eventually([&] { return network_of(rank).is_idle(); }), "all that was posted is done");
  test_ranks.barrier();
  {
    auto memory = must(rank.comm.allocate(4096));
    auto* const bytes = static_cast<std::uint8_t*>(memory.data());
    auto window = must(rank.comm.register_window(memory));
    bytes[8] = static_cast<std::uint8_t>(7 + me);
    test_ranks.barrier();
    const int peer = (me + 1) % test_ranks.size(), from = (me + last) % test_ranks.size();
    require(device::world_put_signal(kThread, rank.view(), peer, window.view(), 0, window.view(), 8,
                                     1, 6, 1)
                .outcome,
            "a put into a later window");
    require(device::wait_signal(kThread, rank.view(), 6, 1, from), "its signal");
    require(bytes[0] == 7 + from, "what was put");
    test_ranks.barrier();
  }
  if (me == 0) net::test::resume_nic(network_of(rank).nic());
  for (int other = 1; other < last; ++other) {
    if (me == 0) await_path(rank, other, 0);
    if (me == other) await_path(rank, 0, 0);
  }
  test_ranks.barrier();
  traffic.run(5);
  test_ranks.barrier();
}

/// Runs three ranks, the second of which loses all its NICs. Each rank runs `wait`, which returns
/// once the failure is seen.
inline void lose_both_nics(TestRanks& test_ranks, const std::function<void(Rank&)>& wait) {
  constexpr int kDead = 1;
  Rank rank(test_ranks, 8192, kWorld);
  rank.sync("the first barrier");
  test_ranks.barrier();  // no rank is still in the first barrier
  if (test_ranks.first() == kDead) {
    net::test::stop_nic(network_of(rank).nic(0));
    net::test::stop_nic(network_of(rank).nic(1));
  }
  const auto begin = std::chrono::steady_clock::now();
  wait(rank);
  const auto error = error_of(rank.comm);
  require(error && error->code() == ErrorCode::remote, error ? error->to_string() : "no error");
  require(std::chrono::steady_clock::now() - begin < std::chrono::seconds(9),
          "before the collective's own timeout");
  if (test_ranks.first() != kDead) require(error->origin_rank() == kDead, error->to_string());
  test_ranks.barrier();
}

}  // namespace oriel::test
