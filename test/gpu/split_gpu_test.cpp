// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "gpu/gpu_ranks.hpp"
#include "gpu/graph.hpp"

/// Tests the lives of communicators on GPUs. They are made from some ranks of another one, many at
/// a time, and end before a graph that holds their calls.
namespace oriel::test {
namespace {

const int kGpus = gpus();  // skips the program without a GPU
constexpr std::size_t kCount = 100'000;

/// Checks an in-place sum of rank + 1 over `comm`; `members` are its ranks in the world.
void require_sum(TestRanks& test_ranks, RankGpu& gpu, ncclComm_t comm, float* data,
                 const std::vector<int>& members) {
  std::vector<float> values(kCount, static_cast<float>(test_ranks.first() + 1));
  gpu.copy_in(data, values.data(), kCount * sizeof(float));
  require(ncclAllReduce(data, data, kCount, ncclFloat, ncclSum, comm, gpu.stream()),
          "ncclAllReduce");
  gpu.wait(gpu.stream(), comm);
  gpu.copy_out(values.data(), data, kCount * sizeof(float));
  float expected = 0;
  for (const int member : members) expected += static_cast<float>(member + 1);
  for (const float value : values) {
    require(value == expected, fmt::format("the sum is {}, not {}", value, expected));
  }
}

TEST_CASE("a split of GPU ranks sums on the parent's device and outlives the parent",
          "[req:5.25]") {
  const int ranks = 4;
  check_all_ok(run_ranks(natural_cast(ranks), ranks, [](TestRanks& test_ranks) {
    const int rank = test_ranks.first();
    RankGpu gpu(rank);
    auto* const data = reinterpret_cast<float*>(gpu.allocate(std::size_t{2} << 20, true));
    ncclComm_t world = init_rank(test_ranks, gpu);
    ncclComm_t pair = nullptr, reversed = nullptr;
    require(ncclCommSplit(world, rank % 2, -rank, &pair, nullptr), "ncclCommSplit");
    const bool is_in = rank != 2;
    require(ncclCommSplit(world, is_in ? 5 : NCCL_SPLIT_NOCOLOR, -rank, &reversed, nullptr),
            "ncclCommSplit");
    require(is_in == (reversed != nullptr), "a handle for each rank with a color");
    int place = -1, device = -1;
    require(ncclCommUserRank(pair, &place), "ncclCommUserRank");
    require(ncclCommCuDevice(pair, &device), "ncclCommCuDevice");
    require(place == (rank < 2 ? 1 : 0) && device == gpu.device(), "the place and the device");
    require_sum(test_ranks, gpu, world, data, {0, 1, 2, 3});
    test_ranks.barrier();
    require(ncclCommDestroy(world), "ncclCommDestroy");
    // The driver frees memory when no kernel runs on the GPU. A rank that shares the GPU must not
    // wait for this rank in a kernel meanwhile.
    test_ranks.barrier();
    require_sum(test_ranks, gpu, pair, data, {rank % 2, rank % 2 + 2});
    if (is_in) require_sum(test_ranks, gpu, reversed, data, {0, 1, 3});
    ncclWindow_t window = nullptr;
    require(ncclCommWindowRegister(pair, data, std::size_t{2} << 20, &window, 1), "register");
    require_sum(test_ranks, gpu, pair, data, {rank % 2, rank % 2 + 2});
    test_ranks.barrier();
    require(ncclCommDestroy(pair), "ncclCommDestroy");
    if (is_in) require(ncclCommDestroy(reversed), "ncclCommDestroy");
  }));
}

/// Returns the free memory of this thread's GPU.
std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  require_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

TEST_CASE("20 communicators of 4 ranks take at most 160 MiB with a scratch size of 3 MiB",
          "[req:5.12]") {
  const int ranks = 4;
  const Environment environment(Variables{{"ORIEL_SCRATCH_SIZE", "3M"}});
  check_all_ok(run_ranks(natural_cast(ranks), ranks, [](TestRanks& test_ranks) {
    const int rank = test_ranks.first();
    const int sharers = (ranks + gpus() - 1) / gpus();
    RankGpu gpu(rank);
    auto* const data = reinterpret_cast<float*>(gpu.allocate(std::size_t{2} << 20, true));
    std::vector<ncclComm_t> comms{init_rank(test_ranks, gpu)};
    require_sum(test_ranks, gpu, comms.front(), data, {0, 1, 2, 3});  // loads all kernels
    test_ranks.barrier();
    const std::size_t before = free_bytes();
    test_ranks.barrier();
    for (int i = 1; i <= 20; ++i) {
      comms.emplace_back();
      require(ncclCommSplit(comms.front(), 0, rank, &comms.back(), nullptr), "ncclCommSplit");
    }
    for (ncclComm_t comm : comms) require_sum(test_ranks, gpu, comm, data, {0, 1, 2, 3});
    test_ranks.barrier();
    const std::size_t taken = (before - free_bytes()) / static_cast<std::size_t>(sharers);
    test_ranks.barrier();
    require(taken <= std::size_t{160} << 20,
            fmt::format("20 communicators take {} KiB for each rank", taken >> 10));
    if (rank == 0) std::printf("20 communicators take %zu MiB for each rank\n", taken >> 20);
    std::fflush(stdout);  // ranks that are processes end without it
    for (ncclComm_t comm : comms) require(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a graph still sums when its communicator was destroyed, and ends when it was aborted",
          "[req:5.2][D3]") {
  using namespace std::chrono_literals;
  const bool aborts = GENERATE(false, true);
  INFO((aborts ? "ncclCommAbort" : "ncclCommDestroy"));
  check_all_ok(run_ranks(natural_cast(2), 2, [aborts](TestRanks& test_ranks) {
    RankGpu gpu(test_ranks.first());
    auto* const data = reinterpret_cast<float*>(gpu.allocate(std::size_t{2} << 20, true));
    ncclComm_t const comm = init_rank(test_ranks, gpu);
    require_sum(test_ranks, gpu, comm, data, {0, 1});  // loads the kernel
    const Graph graph = Graph::capture(gpu.stream(), [&] {
      for (int i = 0; i < 3; ++i) {
        require(ncclAllReduce(data, data, kCount, ncclFloat, ncclMax, comm, gpu.stream()), "noted");
      }
    });
    std::vector<float> values(kCount, static_cast<float>(test_ranks.first() + 1));
    gpu.copy_in(data, values.data(), kCount * sizeof(float));
    test_ranks.barrier();
    require(aborts ? ncclCommAbort(comm) : ncclCommDestroy(comm), "the communicator's end");
    test_ranks.barrier();
    // After the abort rank 1 launches nothing, so rank 0 would wait for ever if it waited.
    if (!aborts || test_ranks.first() == 0) graph.launch(gpu.stream());
    require(gpu.done(gpu.stream(), aborts ? 1s : kTimeout), "the graph's end");
    gpu.copy_out(values.data(), data, kCount * sizeof(float));
    const bool is_right = std::all_of(values.begin(), values.end(), [](float v) { return v == 2; });
    require(aborts || is_right, "the maximum of both ranks");
    test_ranks.barrier();  // before a graph is destroyed
  }));
}

}  // namespace
}  // namespace oriel::test
