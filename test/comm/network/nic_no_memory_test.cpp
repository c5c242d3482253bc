// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include <catch2/catch.hpp>

#include "comm/support/direct_copies.hpp"
#include "comm/support/held.hpp"
#include "comm/support/network_ranks.hpp"
#include "comm/support/path_ranks.hpp"
#include "support/failing_memory.hpp"

/// Threads of a rank's NIC run out of memory while puts are in progress.
namespace oriel::test {
namespace {

constexpr long kForGood = std::numeric_limits<long>::max();

/// Exchanges puts with signals between two ranks until one fails.
void put_until_it_fails(TestRanks& test_ranks, Rank& rank) {
  constexpr std::size_t kBytes = 100'000;
  const auto window = rank.window.view();
  const int peer = 1 - test_ranks.first();
  auto outcome = device::WorldOutcome::done;
  for (std::uint64_t round = 1; outcome == device::WorldOutcome::done; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the NIC thread works
    outcome = device::world_put_signal(kThread, rank.view(), peer, window, kBytes, window, 0,
                                       kBytes, 0, 1)
                  .outcome;
    if (outcome != device::WorldOutcome::done) return;
    outcome = device::wait_signal(kThread, rank.view(), 0, round, peer);
  }
}

}  // namespace

TEST_CASE("memory that runs out in a NIC's threads ends the communicator on all ranks, no process",
          "[req:1.38][req:3.15]") {
  skip_without_fabric();
  const Variables settings = {{"ORIEL_FABRIC_PROVIDER", fabric_provider()},
                              {"ORIEL_SOCKET_IFNAME", "lo"},
                              {"ORIEL_WIRE", GENERATE("auto", "fabric")}};
  const WithDirectCopies copies(false);
  run_on_nodes({{1, 1}}, settings, [](TestRanks& test_ranks) {
    // Starts the monitor's thread before marking, so that its allocations succeed. It reports the
    // NIC's failure.
    ncclComm_t alone = init_alone();
    for (const long k : {0, 5}) {
      mark_new_threads();
      Rank rank(test_ranks, 200'000, kWorld);
      rank.sync("the first barrier");
      test_ranks.barrier();
      {
        std::optional<FailingMemory> failing;
        if (test_ranks.first() == 1) failing.emplace(k, Whose::marked_threads, kForGood);
        put_until_it_fails(test_ranks, rank);
        const Error error = require_named(rank.comm, 1);
        require(error.to_string().find("memory") != std::string::npos, error.to_string());
      }
      test_ranks.barrier();
    }
    require(ncclCommDestroy(alone), "ncclCommDestroy");
  });
}

}  // namespace oriel::test
