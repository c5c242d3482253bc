// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "device/queue_gpu.hpp"
#include "support/cuda/needs_gpu.hpp"

/// Queues that kernels fill, drained by a resident kernel and by CPU threads.
namespace oriel::test {
namespace {

const NeedsGpu needs_gpu;

void check_case(const PublishCase& at) {
  INFO("method " << static_cast<int>(at.method) << ", "
                 << (at.place == RingPlace::device ? "device memory, " : "host memory, ") << at.ctas
                 << " x " << at.warps << " warps, " << at.queues << " queues of " << at.depth);
  const PublishResult result = run_publish(at);
  CHECK(result.done);
  CHECK(result.consumed == result.published);
  CHECK(result.wrong_wqebbs == 0);
  CHECK(result.wrong_doorbells == 0);
  CHECK(result.doorbells <= result.published);
}

}  // namespace

TEST_CASE("warps and threads of many CTAs fill queues that kernels and CPUs drain",
          "[A7][A8][req:3.5]") {
  for (const RingPlace place : {RingPlace::device, RingPlace::host}) {
    for (const PublishMethod method :
         {PublishMethod::warp, PublishMethod::thread, PublishMethod::lanes, PublishMethod::cta}) {
      PublishCase at;
      at.place = place;
      at.method = method;
      // Runs fewer rounds: threads that publish one WQE each do so one after another.
      const std::uint32_t fewer = method == PublishMethod::thread ? 10 : 1;
      at.rounds = 40;
      check_case(at);
      at.ctas = place == RingPlace::device ? 132 : 16;
      at.warps = 4;
      at.rounds = 20 / fewer;
      at.base = (1 << 16) - 100;
      check_case(at);
      at.queues = 4;
      at.depth = 128;
      at.rounds = 10 / fewer;
      check_case(at);
      at.slow_ns = 10'000;
      check_case(at);
    }
  }
}

TEST_CASE("publishing with a lock for each WQE, kept for comparison, is right too", "[req:3.7]") {
  PublishCase at;
  at.method = PublishMethod::lock_per_wqe;
  at.ctas = 8;
  at.warps = 2;
  at.rounds = 10;
  check_case(at);
}

}  // namespace oriel::test
