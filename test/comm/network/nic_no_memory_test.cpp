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
#include "comm/support/network_of.hpp"
#include "comm/support/network_ranks.hpp"
#include "comm/support/path_ranks.hpp"
#include "support/failing_memory.hpp"
#include "support/sanitized.hpp"

/// Memory runs out on a rank with a network. It runs out in the threads of its NIC while puts are
/// in progress, and while it makes a device communicator.
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

TEST_CASE("a device communicator whose rank runs out of memory leaves no mark of own words",
          "[req:1.38][D11]") {
  constexpr long kStride = kSanitized ? 17 : 1;
  run_on_nodes({{1, 1}}, {{"ORIEL_TIMEOUT", "5s"}}, [](TestRanks& test_ranks) {
    std::uint64_t failures = 0;
    bool is_hit = true;
    for (long k = 0; is_hit; k += kStride) {
      auto comm = join(test_ranks);
      const auto inside = must(comm::find_communicator(comm.handle()));
      must(comm.device_comm(kWorld));  // makes the network
      test_ranks.barrier();
      bool has_failed = false;
      const auto make = [&] { has_failed = !comm.device_comm(kWorld).ok(); };
      if (test_ranks.first() == 1) {
        test_ranks.word(0) = with_failure(k, make, Whose::callers) ? 1 : 0;
      } else {
        make();
      }
      require(NetworkInside::own_words_at(*inside) == nullptr, "allocation " + std::to_string(k));
      test_ranks.barrier();
      is_hit = test_ranks.word(0) != 0;
      failures += has_failed ? 1 : 0;
      test_ranks.barrier();
    }
    require(failures >= 4, std::to_string(failures) + " failures");
  });
}

}  // namespace oriel::test
