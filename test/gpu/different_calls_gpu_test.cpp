// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "gpu/gpu_ranks.hpp"

/// Tests GPU ranks that are in different calls. Each rank gets an error for calls of any size,
/// without ORIEL_COLLECTIVE_TIMEOUT.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

const int kGpus = gpus();  // skips the program without a GPU
const int kRanks = std::clamp(kGpus, 2, 4);
constexpr std::size_t kMost = 2'000'000;

struct Call {
  std::size_t count = 2;
  ncclDataType_t type = ncclFloat;
  ncclRedOp_t op = ncclSum;
  bool gathers = false;  // all-gather; else all-reduce
};
/// Pair of calls: rank 1 makes the wrong one, all others the right one.
struct Mistake {
  Call right, wrong;
};
const Mistake kMistakes[] = {
    {{}, {.op = ncclMax}},
    {{}, {.type = ncclInt32}},
    {{}, {.type = ncclBfloat16}},
    {{}, {.count = 4}},
    {{.count = 3}, {.count = 50'000}},
    {{.count = 50'000}, {.count = 49'999}},
    {{.count = 2'000}, {.count = 2'000, .type = ncclUint32}},
    {{.count = 400'000}, {.count = 400'000, .op = ncclProd}},
    {{.count = 400'000}, {.count = 3}},
    {{.count = kMost}, {.count = 3}},
    {{.count = 3}, {.count = kMost}},
    {{.count = kMost}, {.count = kMost, .type = ncclInt32}},
    {{}, {.gathers = true}},
    {{.count = 2'000, .gathers = true}, {.count = 2'000}},
    {{.count = 400'000}, {.count = 100'000, .gathers = true}},
    {{.count = 3, .gathers = true}, {.count = kMost}},
    {{}, {.count = 0}},
    {{.count = 0}, {}},
    {{.count = 0}, {.count = 0, .type = ncclInt32}},
    {{.count = 0}, {.count = 0, .gathers = true}},
    {{.count = 0}, {.count = 2'000, .gathers = true}},
    {{.count = 2'000, .gathers = true}, {.count = 0}},
};

void enqueue(const Call& call, int rank, void* data, ncclComm_t comm, cudaStream_t stream) {
  if (call.gathers) {
    const auto place = static_cast<std::size_t>(rank) * call.count * sizeof(float);
    require(ncclAllGather(static_cast<std::byte*>(data) + place, data, call.count, call.type, comm,
                          stream),
            "ncclAllGather");
    return;
  }
  require(ncclAllReduce(data, data, call.count, call.type, call.op, comm, stream), "ncclAllReduce");
}

std::string text_of(const Call& call) {
  if (call.gathers) return fmt::format("an all-gather of {}", call.count);
  return fmt::format("{} x {} ({})", call.count, static_cast<int>(call.type),
                     static_cast<int>(call.op));
}

ncclResult_t error_within(ncclComm_t comm, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  ncclResult_t state = ncclSuccess;
  do {
    require(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
    if (state != ncclSuccess) break;
    std::this_thread::sleep_for(1ms);
  } while (std::chrono::steady_clock::now() < end);
  return state;
}

void make(const Mistake& mistake, TestRanks& test_ranks, RankGpu& gpu, void* data) {
  ncclComm_t comm = init_rank(test_ranks, gpu);
  // Makes matching calls of many sizes first.
  const int rank = test_ranks.first();
  for (const std::size_t count : {2, 50'000, 0, 2, 400'000, 3, 2'000'000, 2'000}) {
    enqueue({.count = count}, rank, data, comm, gpu.stream());
    enqueue({.count = count == 0 ? 0 : count / 4 + 1, .gathers = count < 4}, rank, data, comm,
            gpu.stream());
  }
  gpu.wait(gpu.stream(), comm);
  enqueue(rank == 1 ? mistake.wrong : mistake.right, rank, data, comm, gpu.stream());
  const ncclResult_t error = error_within(comm, 20s);
  const std::string text = fmt::format("{} and {}: {}", text_of(mistake.right),
                                       text_of(mistake.wrong), ncclGetLastError(comm));
  require(error == ncclInvalidUsage, fmt::format("error {}: {}", static_cast<int>(error), text));
  require(text.find("are in different calls") != std::string::npos, text);
  require(gpu.done(gpu.stream(), 10s), "the kernels have not ended: " + text);
  require(ncclCommDestroy(comm), "ncclCommDestroy");
  test_ranks.barrier();
}

}  // namespace

TEST_CASE("ranks on GPUs that differ in a call of any size get an error", "[req:1.38]") {
  INFO(kRanks << " ranks on " << kGpus << " GPU(s)");
  const auto body = [](TestRanks& test_ranks) {
    RankGpu gpu(test_ranks.first());
    void* const data = gpu.allocate(kMost * 4, false);
    require_cuda(cudaMemsetAsync(data, 0, kMost * 4, gpu.stream()), "clearing");
    for (const Mistake& mistake : kMistakes) make(mistake, test_ranks, gpu, data);
  };
  check_all_ok(run_ranks(LaunchMode::processes, kRanks, body, 120s));
}

}  // namespace oriel::test
