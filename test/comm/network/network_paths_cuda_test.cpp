// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>

#include <catch2/catch.hpp>

#include "comm/support/network_ranks.hpp"
#include "comm/support/on_model.hpp"
#include "comm/support/path_ranks.hpp"
#include "support/seed.hpp"

// GPU ranks that reach each other by two paths, on the model of the CUDA driver. The ranks' threads
// act for the kernels, in the model's memory (3.14).
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
void run_gpus_by_paths(const Nodes& nodes, const Variables& settings, bool process,
                       const Body& body) {
  skip_without_fabric();
  run_on_model(nodes, settings, process, body);
}

}  // namespace

TEST_CASE("ranks on GPUs with a backup path use the first one as long as it works", "[req:3.14]") {
  run_gpus_by_paths({{2, 1}}, with_timeout(), true, use_first_path);
}

TEST_CASE("operations that fail on a GPU's path run once on the backup until the path recovers",
          "[req:3.14][F3]") {
  const std::uint64_t seed = test_seed();
  // Fails so early a request that the barriers alone reach it.
  run_gpus_by_paths({{1, 1, 1}}, with_timeout(), GENERATE(false, true),
                    [&](TestRanks& test_ranks) { leave_failed_path(test_ranks, seed, 3); });
}

TEST_CASE("operations completed on a GPU's path whose responses are lost are not repeated",
          "[req:3.14][F4]") {
  const std::uint64_t seed = test_seed();
  run_gpus_by_paths({{1, 1}}, kTwoPaths, false,
                    [&](TestRanks& test_ranks) { lose_answers(test_ranks, seed); });
}

TEST_CASE("puts of GPUs go on by the backup when a NIC stops or dies, and come back",
          "[req:3.14][F6]") {
  const std::uint64_t seed = test_seed();
  run_gpus_by_paths({{1, 1, 1}}, kTwoPaths, true,
                    [&](TestRanks& test_ranks) { lose_first_nics(test_ranks, seed); });
}

TEST_CASE("a GPU whose NICs both die is named by all others, though asked for nothing",
          "[req:3.14][F7]") {
  run_gpus_by_paths({{1, 1, 1}}, kTwoPaths, false, [](TestRanks& test_ranks) {
    lose_both_nics(test_ranks, [](Rank& rank) { wait_until_named(rank, 1, 1); });
  });
}

TEST_CASE("one NIC of a GPU that is silent, and asked for nothing, is left by its peers",
          "[req:3.14][F7]") {
  run_gpus_by_paths({{1, 1}}, kTwoPaths, false, [](TestRanks& test_ranks) {
    Rank rank(test_ranks, 8192, kWorld);
    rank.sync("the first barrier");
    test_ranks.barrier();
    if (test_ranks.first() == 1) {
      net::test::stop_nic(network_of(rank).nic());
    } else {
      // A waiting rank makes the monitor probe its peers.
      std::thread late([&] {
        await_path(rank, 1, 1);
        test_ranks.word(0) = 1;
      });
      require(device::wait_signal(kThread, rank.view(), 0, 1, 1), "a signal by the backup");
      late.join();
    }
    if (test_ranks.first() == 1) {
      test_ranks.await(0);
      require(device::world_signal(kThread, rank.view(), 0, 0).outcome, "the signal");
    }
    test_ranks.barrier();
    require_no_error(rank.comm);
    test_ranks.barrier();
  });
}

TEST_CASE("a GPU's queue with a backup path refuses what is posted after an abort", "[req:3.6]") {
  run_gpus_by_paths({{1, 1}}, with_timeout(), false,
                    [&](TestRanks& test_ranks) { post_after_abort(test_ranks, false); });
}

}  // namespace oriel::test
