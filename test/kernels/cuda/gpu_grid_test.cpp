// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu_grid.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include <catch2/catch.hpp>
#include <cuda_runtime.h>

#include "kernels/plan/hierarchy_plan.hpp"
#include "support/cuda/needs_gpu.hpp"
#include "support/process_state.hpp"

// Tests the grid barrier of collectives among nodes.
namespace {

using namespace oriel;
using namespace oriel::test;

const NeedsGpu needs_gpu;

using namespace std::chrono_literals;

constexpr std::uint32_t kCtas = 8;
constexpr std::uint32_t kMostCtas = 16'384;
constexpr std::int32_t kSelf = 5;

/// Pinned memory that the kernel and the host share.
struct Shared {
  std::uint32_t abort;
  device::StallRecord stall;
  std::uint32_t leads[kMostCtas];
  std::uint32_t met[kMostCtas];
};

struct Meeting {
  Meeting() {
    void* made = nullptr;
    REQUIRE(cudaMallocManaged(&made, sizeof(kernels::GridBarrier)) == cudaSuccess);
    barrier = static_cast<kernels::GridBarrier*>(made);
    *barrier = {};
    REQUIRE(cudaHostAlloc(&made, sizeof(Shared), cudaHostAllocPortable) == cudaSuccess);
    shared = static_cast<Shared*>(made);
    *shared = {};
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  }
  ~Meeting() {
    cudaStreamDestroy(stream);
    cudaFree(barrier);
    cudaFreeHost(shared);
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  /// Launches the kernel. CTA `absent` returns after `barriers` barriers.
  void launch(std::uint32_t ctas, std::uint32_t absent, std::uint32_t barriers = 0,
              std::chrono::nanoseconds timeout = 0ns) {
    std::fill_n(shared->met, kMostCtas, 0u);
    std::fill_n(shared->leads, kMostCtas, 0u);
    device::WaitControl wait;
    wait.abort = &shared->abort;
    wait.stall = &shared->stall;
    wait.timeout_ns = static_cast<std::uint64_t>(timeout.count());
    wait.self = kSelf;
    const GridJob job{barrier, wait, absent, barriers, shared->met, shared->leads};
    REQUIRE(launch_grid(job, ctas, stream) == cudaSuccess);
  }
  bool is_running() const { return cudaStreamQuery(stream) == cudaErrorNotReady; }
  std::uint64_t waiting() const {
    return __atomic_load_n(&shared->stall.waiting, __ATOMIC_ACQUIRE);
  }
  std::uint64_t gave_up() const {
    return __atomic_load_n(&shared->stall.gave_up, __ATOMIC_ACQUIRE);
  }
  void abort() { __atomic_store_n(&shared->abort, 1u, __ATOMIC_RELEASE); }
  void finish() { REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess); }

  kernels::GridBarrier* barrier = nullptr;
  Shared* shared = nullptr;
  cudaStream_t stream = nullptr;
};

}  // namespace

TEST_CASE("all CTAs of a kernel meet, kernel after kernel", "[req:3.16]") {
  Meeting meeting;
  for (const std::uint32_t ctas : {kCtas, 1u, 3u, kCtas, 2u}) {
    CAPTURE(ctas);
    meeting.launch(ctas, kNoCta);
    meeting.finish();
    CHECK(meeting.shared->leads[0] == 32);
    CHECK(std::count(meeting.shared->leads, meeting.shared->leads + kCtas, 0u) == kCtas - 1);
    CHECK(std::count(meeting.shared->met, meeting.shared->met + kCtas, 3u) == ctas);
  }
}

TEST_CASE("CTAs that wait for one that does not come end by abort, and none leads then",
          "[req:3.6]") {
  const std::uint32_t absent = GENERATE(0u, 5u);
  Meeting meeting;
  meeting.launch(kCtas, absent);
  std::this_thread::sleep_for(30ms);
  REQUIRE(meeting.is_running());
  meeting.abort();
  meeting.finish();
  for (std::uint32_t cta = 0; cta < kCtas; ++cta) {
    CHECK(meeting.shared->leads[cta] == 0);
    CHECK(meeting.shared->met[cta] == (cta == absent ? 0u : 1u));
  }
}

TEST_CASE("a grid with more CTAs than the GPU can run gives up its first barrier, by its own rank",
          "[D9]") {
  int multiprocessors = 0;
  REQUIRE(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0) ==
          cudaSuccess);
  const auto ctas = static_cast<std::uint32_t>(multiprocessors * ctas_per_multiprocessor() + 1);
  REQUIRE(ctas > 1);
  REQUIRE(ctas <= kMostCtas);
  Meeting meeting;
  meeting.launch(ctas, kNoCta, 0, 1s);
  bool has_stalled = false;
  CHECK(eventually([&] {
    has_stalled = has_stalled || meeting.waiting() == device::stall_word(kSelf);
    return meeting.gave_up() != 0;
  }));
  CHECK(has_stalled);
  CHECK(meeting.gave_up() == device::stall_word(kSelf));
  meeting.abort();  // ends the wait of the last CTA, which starts late, at the second barrier
  meeting.finish();
  CHECK(std::count(meeting.shared->met, meeting.shared->met + ctas, 1u) == ctas);
}

TEST_CASE("a wait at a later barrier of a grid has neither timeout nor stall record, only abort",
          "[D9]") {
  const std::uint32_t absent = GENERATE(0u, 5u);
  Meeting meeting;
  meeting.launch(kCtas, absent, 1, 200ms);
  const auto end = std::chrono::steady_clock::now() + 1s;
  while (std::chrono::steady_clock::now() < end && meeting.waiting() == 0) {
  }
  CHECK(meeting.waiting() == 0);
  CHECK(meeting.gave_up() == 0);
  REQUIRE(meeting.is_running());
  meeting.abort();
  meeting.finish();
  CHECK(std::count(meeting.shared->met, meeting.shared->met + kCtas, 1u) == kCtas - 1);
}
