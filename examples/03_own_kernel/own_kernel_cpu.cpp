// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Runs own_kernel.hpp on CPU ranks and compares the result with the library's all-reduce. With
// `bandwidth`, also compares its bandwidth with that of plain_kernel.hpp.
//   ORIEL_BACKEND=host oriel-run -n 2 03_own_kernel_cpu [bandwidth]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "../common/launched.hpp"
#include "plain_kernel.hpp"

/// Returns the seconds of the fastest of 25 calls of a kernel by one thread.
template <class Kernel>
double fastest(Kernel kernel) {
  double least = std::numeric_limits<double>::max();
  for (int call = 0; call < 25; ++call) {
    const auto begin = std::chrono::steady_clock::now();
    if (!kernel()) std::exit(1);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    least = std::min(least, spent.count());
  }
  return least;
}

/// Runs both kernels with one thread for each rank. Counts the input bytes that a rank reads in a
/// call.
void print_bandwidth(const FusedScaleAllReduce& job) {
  const oriel::device::Thread thread;
  const double fast = fastest([&] { return fused_scale_all_reduce(thread, job, 0, 1); });
  const double plain = fastest([&] { return plain_scale_all_reduce(thread, job, 0, 1); });
  std::printf("rank %d: %.1f GB/s, %.1f times as fast as the plain loop\n", job.comm.lsa_rank,
              static_cast<double>(job.count * sizeof(float)) / fast * 1e-9, plain / fast);
}

int main(int argc, char** argv) {
  constexpr std::uint64_t kCount = 1'000'003, kBytes = (kCount + 3) / 4 * sizeof(Four);
  constexpr std::uint32_t kBlocks = 2;  // threads of a rank
  const Launched me = Launched::from_environment();
  auto comm = must(oriel::Communicator::init(share_unique_id(me), me.rank, me.ranks));
  if (comm.cuda_device() >= 0) {
    std::printf("skipped: ranks live on GPUs; set ORIEL_BACKEND=host\n");
    return 77;
  }

  // Two windows, and a device communicator for the kernel's barriers.
  auto x_memory = must(comm.allocate(kBytes));
  auto y_memory = must(comm.allocate(kBytes));
  auto x_window = must(comm.register_window(x_memory));
  auto y_window = must(comm.register_window(y_memory));
  auto device_comm = must(comm.device_comm({.barrier_slots = kBlocks}));

  auto* const x = static_cast<float*>(x_window.data());
  for (std::uint64_t i = 0; i < kCount; ++i) {
    x[i] = static_cast<float>(i % 1000) * static_cast<float>(me.rank + 1) - 750;
  }

  // Each thread is one block of the kernel.
  const FusedScaleAllReduce job{device_comm.view(), x_window.view(), y_window.view(), kCount, 0.5f};
  std::atomic<std::uint32_t> done{0};
  {
    std::vector<std::jthread> blocks;
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      blocks.emplace_back([&, block] {
        done += fused_scale_all_reduce(oriel::device::Thread{}, job, block, kBlocks);
      });
    }
  }
  if (done != kBlocks) {
    const auto error = comm.async_error();
    std::fprintf(stderr, "the kernel gave up: %s\n", error ? error->to_string().c_str() : "?");
    return 1;
  }

  // The sums are small integers, so both results must have the same bits.
  const auto* const y = static_cast<const float*>(y_window.data());
  must(comm.all_reduce({.input = x, .output = x, .count = kCount}));
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) wrong += y[i] != (x[i] > 0 ? 0.5f * x[i] : 0);
  std::printf("rank %d of %d: %llu elements, %llu wrong\n", me.rank, me.ranks,
              static_cast<unsigned long long>(kCount), static_cast<unsigned long long>(wrong));
  if (argc > 1 && std::string(argv[1]) == "bandwidth") print_bandwidth(job);
  must(comm.all_reduce({.input = &wrong,
                        .output = &wrong,
                        .count = 1,
                        .type = oriel::DataType::u64}));  // the total over all ranks
  return wrong == 0 ? 0 : 1;
}
