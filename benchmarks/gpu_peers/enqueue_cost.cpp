// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "nccl.h"

#include "base/cuda_table.hpp"
#include "gpu_peers/empty_kernel.hpp"
#include "support/bench.hpp"
#include "support/cuda/noted_calls.hpp"

/// Measures the host's time for an all-reduce of 8 B on a GPU. The baseline is a bare launch of an
/// empty kernel through the same driver call. Communicators have one rank, so no call waits for a
/// peer.
namespace oriel::bench {
namespace {

constexpr int kCallsOfRound = 64;  // fewer than the launch queue of a stream holds
constexpr std::size_t kWindowBytes = 4096;

[[noreturn]] void fail(const char* what, const char* why) {
  std::fprintf(stderr, "enqueue_cost: %s: %s\n", what, why);
  std::exit(1);
}
void require(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) fail(what, ncclGetLastError(nullptr));
}
void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail(what, cudaGetErrorString(status));
}

/// A communicator of one rank, and its windows.
struct Member {
  ncclComm_t comm = nullptr;
  std::vector<ncclWindow_t> windows;
};

/// Communicators with the same number of windows, of the same memory.
class Communicators {
 public:
  Communicators(std::int64_t communicators, std::int64_t windows)
      : windows_(static_cast<std::size_t>(windows)),
        members_(static_cast<std::size_t>(communicators)) {
    constexpr int kGpu = 0;
    require(ncclMemAlloc(&memory_, windows_ * kWindowBytes), "ncclMemAlloc");
    for (Member& member : members_) {
      require(ncclCommInitAll(&member.comm, 1, &kGpu), "ncclCommInitAll");
      member.windows.resize(windows_);
      for (std::size_t i = 0; i < windows_; ++i) {
        require(ncclCommWindowRegister(member.comm, at(i), kWindowBytes, &member.windows[i],
                                       NCCL_WIN_COLL_SYMMETRIC),
                "ncclCommWindowRegister");
      }
    }
  }
  ~Communicators() {
    for (const Member& member : members_) {
      for (ncclWindow_t window : member.windows) {
        static_cast<void>(ncclCommWindowDeregister(member.comm, window));
      }
      static_cast<void>(ncclCommDestroy(member.comm));
    }
    static_cast<void>(ncclMemFree(memory_));
  }
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  /// Enqueues an all-reduce of a communicator in the middle window.
  void reduce(std::size_t communicator, cudaStream_t stream) const {
    void* const data = at(windows_ / 2);
    require(ncclAllReduce(data, data, 2, ncclFloat, ncclSum, members_[communicator].comm, stream),
            "ncclAllReduce");
  }

 private:
  void* at(std::size_t window) const {
    return static_cast<std::byte*>(memory_) + window * kWindowBytes;
  }
  std::size_t windows_;
  void* memory_ = nullptr;
  std::vector<Member> members_;
};

/// Baseline: a launch with the same attribute as the library's launches.
class BareLaunch {
 public:
  BareLaunch() {
    cudaFunction_t function = nullptr;
    require(cudaGetFuncBySymbol(&function, empty_kernel()), "cudaGetFuncBySymbol");
    function_ = function;
  }
  void launch(cudaStream_t stream) const {
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 32;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (cuda().launch_kernel_ex(&config, function_, nullptr, nullptr) != CUDA_SUCCESS) {
      fail("a bare launch", "the driver refuses it");
    }
  }

 private:
  CUfunction function_ = nullptr;
};

/// Returns the time of one call of a round, in us.
template <class Call>
double time_round(cudaStream_t stream, const Call& call) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (int i = 0; i < kCallsOfRound; ++i) call();
  const std::chrono::duration<double, std::micro> spent = Clock::now() - begin;
  require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return spent.count() / kCallsOfRound;
}

double median_of(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

struct Case {
  std::int64_t windows;
  std::int64_t communicators;
  bool in_turn = false;  ///< calls all communicators in turn, else the last one
};

void measure(Bench& bench, const Case& one, std::int64_t rounds, cudaStream_t stream) {
  const Communicators comms(one.communicators, one.windows);
  const BareLaunch bare;
  const auto last = static_cast<std::size_t>(one.communicators) - 1;
  std::size_t turn = last;
  const auto reduce = [&] {
    if (one.in_turn) turn = turn == last ? 0 : turn + 1;
    comms.reduce(turn, stream);
  };
  const auto launch = [&] { bare.launch(stream); };
  std::vector<double> calls;
  std::vector<double> floor;
  constexpr std::int64_t kWarmUp = 20;
  for (std::int64_t i = -kWarmUp; i < rounds; ++i) {  // alternates: a processor's clock drifts
    const double bare_us = time_round(stream, launch);
    const double call_us = time_round(stream, reduce);
    if (i < 0) continue;
    floor.push_back(bare_us);
    calls.push_back(call_us);
  }
  const std::vector<std::string> names = test::NotedCalls().names_of(reduce);
  require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const double bare_us = median_of(floor);
  const double call_us = median_of(calls);
  bench.result("all-reduce of 8 B",
               Fields()
                   .add("windows", one.windows)
                   .add("communicators", one.communicators)
                   .add("called", one.in_turn ? one.communicators : 1),
               "us", call_us,
               Fields()
                   .add("bare_launch", bare_us)
                   .add("above_bare_launch", call_us - bare_us)
                   .add("driver_calls", names.size()));
}

int run(int argc, char** argv) {
  Bench bench("enqueue_cost",
              "Measures how long the host takes to enqueue an all-reduce of 8 B on a GPU, beside a "
              "bare launch of an empty kernel, with few and many windows and communicators. Calls "
              "one communicator, or all in turn.\n"
              "Exit status: 0; 1 if a call fails; 2 for wrong flags; 77 without a GPU.");
  std::int64_t rounds = 400;
  std::int64_t windows = 10'000;
  std::int64_t communicators = 64;
  bench.flag("--rounds", rounds, 1, 1'000'000, "rounds of 64 calls");
  bench.flag("--windows", windows, 1, 100'000, "the many windows");
  bench.flag("--communicators", communicators, 1, 1024, "the many communicators");
  if (const auto status = bench.parse(argc, argv)) return *status;
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::puts("skipped: needs a GPU");
    return 77;
  }
  ::setenv("ORIEL_BACKEND", "cuda", 1);
  require(cudaSetDevice(0), "cudaSetDevice");
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  for (const Case& one :
       {Case{1, 1}, Case{windows, 1}, Case{1, communicators}, Case{1, communicators, true}}) {
    measure(bench, one, rounds, stream);
  }
  require(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return 0;
}

}  // namespace
}  // namespace oriel::bench

int main(int argc, char** argv) {
  return oriel::bench::run(argc, argv);
}
