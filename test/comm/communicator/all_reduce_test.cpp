// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <random>

#include <catch2/catch.hpp>

#include "comm/communicator/random_all_reduces.hpp"
#include "support/ranks.hpp"
#include "support/seed.hpp"

namespace oriel::test {
namespace {

const MemoryFactory kHost = host_memory_factory();

TEST_CASE("2,000 random all-reduces equal the reference bit for bit",
          "[req:1.40][req:1.26][req:1.27][req:1.29]") {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 rng(seed);
  const char* const algorithms[] = {"", "one_shot", "two_shot", "stream", "eager"};
  std::uint64_t batch = seed;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    ++batch;  // shifts the third that runs, because each number of ranks has 15 batches
    for (const LaunchMode launch_mode : kLaunchModes) {
      for (const char* algorithm : algorithms) {
        // If time is short, runs a third of the batches. Every launch mode still meets every
        // algorithm and every number of ranks. With three launch modes, every algorithm meets every
        // number of ranks.
        if (++batch % 3 != 0 && scaled(100) < 100) continue;
        Variables variables = {{"ORIEL_ALGORITHM", algorithm},
                               {"ORIEL_DETERMINISTIC", rng() % 2 == 0 ? "0" : "1"},
                               {"ORIEL_SCRATCH_SIZE", rng() % 4 == 0 ? "1M" : "16M"}};
        std::optional<StreamTable> table;
        if (rng() % 2 == 0) table.emplace("host", rng());
        if (table) variables.push_back(table->variable());
        run_batch(kHost, launch_mode, ranks, variables,
                  {rng(), scaled(17), table ? 40'000u : 300'000u});
      }
    }
  }
}

TEST_CASE("random all-reduces among 16 and 64 ranks equal the reference bit for bit",
          "[req:1.28][req:1.40]") {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 rng(seed);
  std::uint64_t batch = seed;
  for (const char* algorithm : {"", "one_shot", "two_shot", "stream", "eager"}) {
    const Variables variables = {{"ORIEL_ALGORITHM", algorithm}, {"ORIEL_SCRATCH_SIZE", "1M"}};
    ++batch;
    for (const LaunchMode launch_mode : kLaunchModes) {
      if (++batch % 3 != 0 && scaled(100) < 100) continue;
      run_batch(kHost, launch_mode, 16, variables, {rng(), scaled(8), 20'000});
    }
    if (batch % 5 != 0 && scaled(100) < 100) continue;
    run_batch(kHost, LaunchMode::processes, 64, variables, {rng(), scaled(4), 4'000});
  }
}

}  // namespace
}  // namespace oriel::test
