// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "../examples/03_own_kernel/own_kernel.hpp"
#include "device/bodies.hpp"
#include "device/device_ranks.hpp"

namespace oriel::test {
namespace {

constexpr std::uint64_t kCount = 1037;  // not a multiple of any rank count above 1 below
constexpr std::uint64_t kX = 262144;
constexpr std::uint64_t kBytes = (kCount + 3) / 4 * sizeof(Four);
constexpr std::uint64_t kY = kX + kBytes;

device::WindowView make_window(const device::CommView& comm, std::uint64_t offset) {
  device::WindowView view;
  view.flat_base = comm.control_base + offset;
  view.size_bytes = kBytes;
  view.stride_4g = LsaMemory::kStride4g;
  view.lsa_rank = comm.lsa_rank;
  view.lsa_size = comm.lsa_size;
  return view;
}

float input(int rank, std::uint64_t i) {
  return static_cast<float>(rank + 1) * static_cast<float>(i % 64) - 60;
}

TEST_CASE("a user's kernel fuses an element-wise step with an all-reduce on CPU ranks",
          "[req:1.25]") {
  const auto kind = GENERATE(RankKind::threads, RankKind::processes);
  const int ranks = GENERATE(1, 2, 3, 8);
  CAPTURE(static_cast<int>(kind), ranks);
  LsaMemory memory(ranks, ControlLayout::kBytes);
  CHECK(run_ranks(kind, memory, ranks, [&](const device::CommView& comm) {
    FusedScaleAllReduce job{comm, make_window(comm, kX), make_window(comm, kY), kCount, 0.5f};
    auto* x = static_cast<float*>(job.x.local(0, kCount * sizeof(float)));
    for (std::uint64_t i = 0; i < kCount; ++i) x[i] = input(comm.lsa_rank, i);
    // Two blocks of one thread each.
    bool good[2] = {};
    std::thread other([&] { good[1] = fused_scale_all_reduce(device::Thread{}, job, 1, 2); });
    good[0] = fused_scale_all_reduce(device::Thread{}, job, 0, 2);
    other.join();
    const auto* y = static_cast<const float*>(job.y.local(0, kCount * sizeof(float)));
    for (std::uint64_t i = 0; i < kCount; ++i) {
      float sum = 0;
      for (int rank = 0; rank < ranks; ++rank) sum += input(rank, i);
      if (y[i] != (sum > 0 ? 0.5f * sum : 0)) return false;
    }
    return good[0] && good[1];
  }));
}

TEST_CASE("the user's kernel refuses more elements than the windows hold", "[req:1.25]") {
  LsaMemory memory(1, ControlLayout::kBytes);
  CHECK(run_ranks(RankKind::threads, memory, 1, [](const device::CommView& comm) {
    FusedScaleAllReduce job{comm, make_window(comm, kX), make_window(comm, kY), kCount + 4, 1};
    return !fused_scale_all_reduce(device::Thread{}, job, 0, 1);
  }));
}

}  // namespace
}  // namespace oriel::test
