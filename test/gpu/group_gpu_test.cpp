// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "gpu/fill_gpu.hpp"
#include "gpu/gpu_ranks.hpp"

/// Tests two GPU ranks of one thread: non-blocking communicators, groups that contain a wrong call,
/// and registration on full GPUs.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

const int kGpus = gpus();  // skips the program without a GPU
constexpr std::size_t kCount = 1000;
constexpr std::size_t kBytes = std::size_t{2} << 20;

void run_alone(const std::function<void()>& body) {
  check_all_ok(run_ranks(LaunchMode::processes, 1, [&](TestRanks&) { body(); }));
}

/// Both ranks, with registrable and with plain memory.
struct Pair {
  RankGpu gpus[2] = {RankGpu(0), RankGpu(1)};
  std::array<ncclComm_t, 2> comms{};
  std::array<float*, 2> registrable{}, plain{};

  Pair() {
    for (std::size_t i = 0; i < 2; ++i) {
      registrable[i] = reinterpret_cast<float*>(gpus[i].allocate(kBytes, true));
      plain[i] = reinterpret_cast<float*>(gpus[i].allocate(kBytes, false));
    }
  }

  void init(bool blocking) {
    ncclUniqueId id;
    require(ncclGetUniqueId(&id), "ncclGetUniqueId");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    if (blocking) require(ncclGroupStart(), "ncclGroupStart");
    for (int rank = 0; rank < 2; ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      gpus[i].enter();
      const auto result = ncclCommInitRankConfig(&comms[i], 2, id, rank, &config);
      if (blocking) {
        require(result, "note");
      } else {
        require(result == ncclInProgress, "a non-blocking init");
      }
    }
    if (blocking) require(ncclGroupEnd(), "ncclGroupEnd");
    settle("init");
  }

  /// Waits until no communicator is in progress; throws if one has an error.
  void settle(const char* what) const {
    for (ncclComm_t comm : comms) {
      ncclResult_t state = ncclInProgress;
      const auto end = steady_clock::now() + kTimeout;
      while (state == ncclInProgress && steady_clock::now() < end) {
        require(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
        std::this_thread::sleep_for(1ms);
      }
      require(state == ncclSuccess,
              fmt::format("{}: {}: {}", what, static_cast<int>(state), ncclGetLastError(comm)));
    }
  }

  void fill(std::size_t i, float* data) {
    const std::vector<float> values(kCount, static_cast<float>(i + 1));
    gpus[i].copy_in(data, values.data(), kCount * sizeof(float));
  }
  ncclResult_t note(std::size_t i, float* data, std::size_t count = kCount) {
    gpus[i].enter();
    return ncclAllReduce(data, data, count, ncclFloat, ncclSum, comms[i], gpus[i].stream());
  }
  void require_sum(const std::array<float*, 2>& data) {
    for (std::size_t i = 0; i < 2; ++i) fill(i, data[i]);
    require(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t i = 0; i < 2; ++i) require(note(i, data[i]), "note");
    require(ncclGroupEnd(), "ncclGroupEnd");
    for (std::size_t i = 0; i < 2; ++i) {
      gpus[i].wait(gpus[i].stream(), comms[i]);
      require_values(i, data[i], 3);
    }
  }
  void require_values(std::size_t i, float* data, float expected) {
    std::vector<float> values(kCount);
    gpus[i].copy_out(values.data(), data, kCount * sizeof(float));
    require(values == std::vector<float>(kCount, expected),
            fmt::format("rank {} has {} instead of {}", i, values[0], expected));
  }
  std::array<ncclWindow_t, 2> register_all(bool blocking) {
    std::array<ncclWindow_t, 2> windows{};
    if (blocking) require(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t i = 0; i < 2; ++i) {
      const auto result = ncclCommWindowRegister(comms[i], registrable[i], kBytes, &windows[i], 1);
      require(result == (blocking ? ncclSuccess : ncclInProgress), "ncclCommWindowRegister");
    }
    if (blocking) require(ncclGroupEnd(), "ncclGroupEnd");
    settle("registration");
    require(windows[0] != nullptr && windows[1] != nullptr, "windows");
    return windows;
  }
  void destroy() {
    for (ncclComm_t comm : comms) require(ncclCommDestroy(comm), "ncclCommDestroy");
  }
};

TEST_CASE("two non-blocking ranks of one thread register, reduce, finalize, end on GPUs",
          "[req:1.31]") {
  run_alone([] {
    Pair pair;
    for (int round = 0; round < 2; ++round) {
      pair.init(false);
      pair.require_sum(pair.plain);
      const auto windows = pair.register_all(false);
      pair.require_sum(pair.registrable);
      for (std::size_t i = 0; i < 2; ++i) {
        require(ncclCommWindowDeregister(pair.comms[i], windows[i]), "ncclCommWindowDeregister");
      }
      for (ncclComm_t comm : pair.comms) {
        require(ncclCommFinalize(comm) == ncclInProgress, "a non-blocking finalize");
      }
      pair.settle("finalize");
      pair.destroy();
    }
  });
}

TEST_CASE("a group with a wrong call in it launches nothing on a GPU", "[req:1.38][req:1.33]") {
  run_alone([] {
    Pair pair;
    pair.init(true);
    constexpr std::size_t kTooMany = std::numeric_limits<std::size_t>::max() / 2;
    for (const bool bad_first : {true, false}) {
      for (std::size_t i = 0; i < 2; ++i) pair.fill(i, pair.plain[i]);
      require(ncclGroupStart(), "ncclGroupStart");
      if (!bad_first) require(pair.note(1, pair.plain[1]), "note");
      expect_error(pair.note(0, bad_first ? nullptr : pair.plain[0], bad_first ? kCount : kTooMany),
                   ncclInvalidArgument, "a wrong call");
      if (bad_first) require(pair.note(1, pair.plain[1]), "note");
      expect_error(ncclGroupEnd(), ncclInvalidArgument, "the end of the group");
      for (std::size_t i = 0; i < 2; ++i) {
        pair.gpus[i].wait(pair.gpus[i].stream(), pair.comms[i]);
        pair.require_values(i, pair.plain[i], static_cast<float>(i + 1));
      }
    }
    pair.require_sum(pair.plain);
    pair.destroy();
  });
}

/// Keeps the GPUs of both ranks full until destroyed.
class FullGpus {
 public:
  explicit FullGpus(Pair& pair) : pair_(pair) {
    void* words = nullptr;
    require_cuda(cudaHostAlloc(&words, sizeof(int), cudaHostAllocPortable), "cudaHostAlloc");
    end_ = static_cast<int*>(words);
    *end_ = 0;
    for (std::size_t i = 0; i < 2; ++i) start(i);
  }
  ~FullGpus() {
    *reinterpret_cast<volatile int*>(end_) = 1;
    for (const RankGpu& gpu : pair_.gpus) {
      gpu.enter();
      cudaStreamSynchronize(gpu.stream(1));
    }
    cudaFreeHost(end_);
  }
  FullGpus(const FullGpus&) = delete;
  FullGpus& operator=(const FullGpus&) = delete;

 private:
  void start(std::size_t i) {
    const RankGpu& gpu = pair_.gpus[i];
    if (i == 1 && gpu.device() == pair_.gpus[0].device()) return;
    int multiprocessors = 0;
    require_cuda(
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, gpu.device()),
        "cudaDeviceGetAttribute");
    auto* const started = reinterpret_cast<int*>(pair_.plain[i]);
    gpu.enter();
    require_cuda(static_cast<cudaError_t>(load_filler()), "loading the kernel");
    require_cuda(cudaMemsetAsync(started, 0, sizeof(int), gpu.stream(1)), "cudaMemsetAsync");
    // Launches twice as many CTAs as fit, so that no other kernel finds a free multiprocessor.
    require_cuda(
        static_cast<cudaError_t>(fill_gpu(end_, started, 4 * multiprocessors, gpu.stream(1))),
        "filling the GPU");
    int running = 0;
    const auto end = steady_clock::now() + kTimeout;
    while (running < 2 * multiprocessors && steady_clock::now() < end) {
      pair_.gpus[i].copy_out(&running, started, sizeof(int));
    }
    require(running == 2 * multiprocessors,
            fmt::format("{} CTAs of {} run", running, 2 * multiprocessors));
  }

  Pair& pair_;
  int* end_ = nullptr;
};

TEST_CASE("windows are registered while kernels of the user's fill the GPUs", "[req:1.20]") {
  run_alone([] {
    Pair pair;
    pair.init(true);
    pair.require_sum(pair.plain);
    for (int round = 0; round < 2; ++round) {
      std::array<ncclWindow_t, 2> windows{};
      {
        FullGpus full(pair);
        const auto begin = steady_clock::now();
        windows = pair.register_all(true);
        const std::chrono::duration<double, std::milli> took = steady_clock::now() - begin;
        fmt::print("registration on full GPUs: {:.1f} ms\n", took.count());
      }
      pair.require_sum(pair.registrable);
      for (std::size_t i = 0; i < 2; ++i) {
        require(ncclCommWindowDeregister(pair.comms[i], windows[i]), "ncclCommWindowDeregister");
      }
    }
    pair.destroy();
  });
}

}  // namespace
}  // namespace oriel::test
