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

// Tests the grid barrier of collectives among nodes.
namespace {

using namespace oriel;
using namespace oriel::test;

const NeedsGpu needs_gpu;

constexpr std::uint32_t kCtas = 8;

/// Pinned memory that the kernel and the host share.
struct Shared {
  std::uint32_t abort;
  std::uint32_t leads[kCtas];
  std::uint32_t met[kCtas];
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
  void launch(std::uint32_t ctas, std::uint32_t absent) {
    std::fill_n(shared->met, kCtas, 0u);
    std::fill_n(shared->leads, kCtas, 0u);
    const GridJob job{barrier, &shared->abort, absent, shared->met, shared->leads};
    REQUIRE(launch_grid(job, ctas, stream) == cudaSuccess);
  }
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
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  REQUIRE(cudaStreamQuery(meeting.stream) == cudaErrorNotReady);
  __atomic_store_n(&meeting.shared->abort, 1u, __ATOMIC_RELEASE);
  meeting.finish();
  for (std::uint32_t cta = 0; cta < kCtas; ++cta) {
    CHECK(meeting.shared->leads[cta] == 0);
    CHECK(meeting.shared->met[cta] == (cta == absent ? 0u : 1u));
  }
}
