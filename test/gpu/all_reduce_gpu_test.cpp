// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <random>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "comm/communicator/all_reduce_reference.hpp"
#include "comm/communicator/random_all_reduces.hpp"
#include "gpu/gpu_ranks.hpp"
#include "support/seed.hpp"

/// Tests the results of all-reduces on GPU memory of every kind.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

const int kGpus = gpus();  // skips the program without a GPU
const MemoryFactory kMemoryFactory = gpu_memory_factory();

struct Round {
  LaunchMode launch_mode;
  int ranks;
  const char* algorithm;
  int calls;
  std::size_t most;
};

TEST_CASE("1,100 random all-reduces on GPUs equal the reference bit for bit",
          "[req:1.40][req:1.26][req:1.27][req:1.10]") {
  const std::uint64_t seed = test_seed();
  WARN("ORIEL_TEST_SEED=" << seed << " on " << kGpus << " GPU(s)");
  std::mt19937_64 rng(seed);
  const Round rounds[] = {
      {LaunchMode::processes, 4, "", 150, 300'000},
      {LaunchMode::processes, 4, "one_shot", 100, 40'000},
      {LaunchMode::processes, 4, "two_shot", 100, 60'000},
      {LaunchMode::processes, 4, "stream", 150, 100'000},
      {LaunchMode::threads, 4, "", 150, 100'000},
      {LaunchMode::processes, 2, "stream", 100, 300'000},
      {LaunchMode::threads, 2, "", 100, 100'000},
      {LaunchMode::threads, 3, "", 100, 60'000},
      {LaunchMode::group, 4, "", 50, 60'000},
      {LaunchMode::threads, 8, "", 80, 40'000},
      {LaunchMode::processes, 1, "", 40, 60'000},
  };
  for (Round round : rounds) {
    // Replaces processes that share a GPU, and take turns on it, by threads. The next test covers
    // such processes with a few calls.
    const bool in_turns = round.launch_mode == LaunchMode::processes && round.ranks > kGpus;
    if (in_turns) round.launch_mode = LaunchMode::threads;
    Variables variables = {{"ORIEL_ALGORITHM", round.algorithm}};
    std::optional<StreamTable> table;
    if (std::string(round.algorithm) == "stream") {
      variables.emplace_back("ORIEL_SCRATCH_SIZE", rng() % 2 == 0 ? "4M" : "64M");
      variables.push_back(table.emplace("cuda", rng()).variable());
    }
    if (rng() % 3 == 0) variables.emplace_back("ORIEL_CTAS", std::to_string(1 + rng() % 16));
    // Stops at the first failure: a batch that hangs takes its whole timeout.
    REQUIRE(run_batch(kMemoryFactory, round.launch_mode, round.ranks, variables,
                      {rng(), scaled(round.calls), round.most, 40s}));
  }
}

TEST_CASE("processes that share a GPU take turns and agree", "[req:1.10]") {
  const int ranks = kGpus + 1;
  if (ranks > 5) {
    WARN("skipped: " << kGpus << " GPUs");
    return;
  }
  run_batch(kMemoryFactory, LaunchMode::processes, ranks, {{"ORIEL_CTAS", "4"}},
            {test_seed(), 10, 2'000, 40s});
}

/// Sums f32 and bf16 numbers of two sizes and stores one hash of all results in the rank's word.
void hash_sums(TestRanks& test_ranks) {
  RankGpu gpu(test_ranks.first());
  ncclComm_t comm = init_rank(test_ranks, gpu);
  std::uint64_t hash = 1;
  constexpr std::size_t kMost = 177'777;
  std::byte* const data = gpu.allocate(kMost * 4, false);
  test_ranks.barrier();
  for (const DataType type : {DataType::f32, DataType::bf16}) {
    for (const std::size_t count : {std::size_t{7'777}, kMost}) {
      std::vector<std::byte> host(count * size_of(type));
      fill_elements(type, Inputs::moderate, static_cast<std::uint64_t>(test_ranks.first()),
                    host.data(), count);
      gpu.copy_in(data, host.data(), host.size());
      require(ncclAllReduce(data, data, count, static_cast<ncclDataType_t>(type), ncclSum, comm,
                            gpu.stream()),
              "ncclAllReduce");
      gpu.wait(gpu.stream(), comm);
      gpu.copy_out(host.data(), data, host.size());
      hash = mix(hash, hash_bytes(host.data(), host.size()));
    }
  }
  test_ranks.word(static_cast<std::size_t>(test_ranks.first())) = hash | 1;
  test_ranks.barrier();
  require(ncclCommDestroy(comm), "ncclCommDestroy");
  test_ranks.barrier();
}

// Sets ORIEL_DETERMINISTIC to 0 and 1: inside one team both add in the same order.
TEST_CASE("bits do not depend on the algorithm or the number of CTAs", "[req:1.29][req:5.12]") {
  constexpr int kRanks = 4;
  std::vector<std::uint64_t> hashes;
  const auto run = [&](const char* algorithm, const char* ctas, const char* deterministic) {
    Environment environment(Variables{{"ORIEL_ALGORITHM", algorithm},
                                      {"ORIEL_CTAS", ctas},
                                      {"ORIEL_DETERMINISTIC", deterministic}});
    RankFixture fixture(natural_cast(kRanks), kRanks, hash_sums);
    check_all_ok(fixture.collect(40s));
    for (std::size_t rank = 0; rank < kRanks; ++rank)
      hashes.push_back(fixture.shared().words[rank]);
  };
  run("", "", "0");
  for (const char* algorithm : {"one_shot", "two_shot", "stream"}) {
    run(algorithm, "5", "1");
    run(algorithm, "32", "1");
  }
  CHECK(hashes.front() != 0);
  CHECK(std::count(hashes.begin(), hashes.end(), hashes.front()) ==
        static_cast<std::ptrdiff_t>(hashes.size()));
}

/// Enqueues pairs of calls back to back: the first makes a factor, the second multiplies by it.
/// `op` reads the factor at `factor`, which each pair overwrites.
void multiply_by_made_factors(TestRanks& test_ranks, RankGpu& gpu, ncclComm_t comm, float* factor,
                              ncclRedOp_t op, std::size_t count) {
  const std::size_t pairs = test_ranks.size() > kGpus ? 4 : 12;
  const auto ranks = static_cast<float>(test_ranks.size());
  auto* const parts = reinterpret_cast<float*>(gpu.allocate(pairs * sizeof(float), false));
  auto* const input = reinterpret_cast<float*>(gpu.allocate(count * sizeof(float), false));
  auto* const output = reinterpret_cast<float*>(gpu.allocate(pairs * count * sizeof(float), true));
  std::vector<float> host(count);
  for (std::size_t i = 0; i < count; ++i) host[i] = static_cast<float>(1 + i % 7);
  gpu.copy_in(input, host.data(), count * sizeof(float));
  std::vector<float> made(pairs);
  for (std::size_t k = 0; k < pairs; ++k) made[k] = static_cast<float>(k + 1);
  gpu.copy_in(parts, made.data(), pairs * sizeof(float));

  const auto make_factor = [&](std::size_t k) {
    require(ncclAllReduce(parts + k, factor, 1, ncclFloat, ncclSum, comm, gpu.stream()),
            "making a factor");
  };
  const auto multiply = [&](std::size_t k) {
    require(ncclAllReduce(input, output + k * count, count, ncclFloat, op, comm, gpu.stream()),
            "multiplying by it");
  };
  // Loads both kernels before one of them waits for another rank of this process.
  make_factor(pairs - 1);
  gpu.wait(gpu.stream(), comm);
  multiply(pairs - 1);
  gpu.wait(gpu.stream(), comm);
  test_ranks.barrier();
  for (std::size_t k = 0; k < pairs; ++k) {
    make_factor(k);
    multiply(k);
  }
  gpu.wait(gpu.stream(), comm);
  for (std::size_t k = 0; k < pairs; ++k) {
    gpu.copy_out(host.data(), output + k * count, count * sizeof(float));
    for (std::size_t i = 0; i < count; ++i) {
      const float expected = ranks * made[k] * ranks * static_cast<float>(1 + i % 7);
      require(host[i] == expected, fmt::format("pair {}: element {} of {} is {}, not {}", k, i,
                                               count, host[i], expected));
    }
  }
  test_ranks.barrier();
}

// A kernel may start while the previous one runs: it must not read the factor before that one ends.
TEST_CASE("a call multiplies by the factor that the call before it has made",
          "[req:1.26][req:1.27][req:1.29]") {
  const int ranks = std::min(std::max(kGpus, 2), 4);
  for (const char* algorithm : {"one_shot", "two_shot", "stream"}) {
    INFO(algorithm);
    Environment environment(
        Variables{{"ORIEL_ALGORITHM", algorithm}, {"ORIEL_CTAS", ranks > kGpus ? "16" : ""}});
    check_all_ok(run_ranks(
        natural_cast(ranks), ranks,
        [](TestRanks& test_ranks) {
          RankGpu gpu(test_ranks.first());
          ncclComm_t comm = init_rank(test_ranks, gpu);
          auto* const factor = reinterpret_cast<float*>(gpu.allocate(sizeof(float), false));
          ncclRedOp_t op = ncclSum;
          require(ncclRedOpCreatePreMulSum(&op, factor, ncclFloat, ncclScalarDevice, comm),
                  "ncclRedOpCreatePreMulSum");
          for (const std::size_t count :
               {std::size_t{7}, std::size_t{5'000}, std::size_t{3'000'000}}) {
            multiply_by_made_factors(test_ranks, gpu, comm, factor, op, count);
          }
          require(ncclRedOpDestroy(op, comm), "ncclRedOpDestroy");
          require(ncclCommDestroy(comm), "ncclCommDestroy");
          test_ranks.barrier();
        },
        45s));
  }
}

}  // namespace
}  // namespace oriel::test
