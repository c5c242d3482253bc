// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Runs own_kernel.hpp on one GPU for each rank and compares the result with the library's
// all-reduce. With `bandwidth`, also compares its bandwidth with that of plain_kernel.hpp.
//   oriel-run -n 2 03_own_kernel_gpu [bandwidth]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "../common/launched.hpp"
#include "plain_kernel.hpp"

void must(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(1);
}

/// Returns the time of the fastest of 25 launches.
template <class Launch>
float fastest(cudaStream_t stream, Launch launch) {
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  float least_ms = std::numeric_limits<float>::max();
  for (int call = 0; call < 25; ++call) {
    float ms = 0;
    must(cudaEventRecord(begin, stream));
    launch();
    must(cudaEventRecord(end, stream));
    must(cudaEventSynchronize(end));
    must(cudaEventElapsedTime(&ms, begin, end));
    least_ms = std::min(least_ms, ms);
  }
  must(cudaEventDestroy(begin));
  must(cudaEventDestroy(end));
  return least_ms / 1000;
}

constexpr unsigned kBlocks = 32, kThreads = 512;  // few enough to be resident at once

void print_bandwidth(const FusedScaleAllReduce& job, std::uint32_t* done, cudaStream_t stream) {
  const float fast = fastest(
      stream, [&] { fused_scale_all_reduce_kernel<<<kBlocks, kThreads, 0, stream>>>(job, done); });
  const float plain = fastest(
      stream, [&] { plain_scale_all_reduce_kernel<<<kBlocks, kThreads, 0, stream>>>(job, done); });
  std::printf("rank %d: %.1f GB/s, %.1f times as fast as the plain loop\n", job.comm.lsa_rank,
              static_cast<double>(job.count * sizeof(float)) / fast * 1e-9, plain / fast);
}

int main(int argc, char** argv) {
  constexpr std::uint64_t kCount = 10'000'019, kBytes = (kCount + 3) / 4 * sizeof(Four);
  const Launched me = Launched::from_environment();
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || me.local_rank >= gpus) {
    std::printf("skipped: rank %d needs a GPU of its own, %d are here\n", me.rank, gpus);
    return 77;
  }
  must(cudaSetDevice(me.local_rank));
  auto comm = must(oriel::Communicator::init(share_unique_id(me), me.rank, me.ranks));

  // Two windows, and a device communicator for the kernel's barriers.
  auto x_memory = must(comm.allocate(kBytes));
  auto y_memory = must(comm.allocate(kBytes));
  auto x_window = must(comm.register_window(x_memory));
  auto y_window = must(comm.register_window(y_memory));
  auto device_comm = must(comm.device_comm({.barrier_slots = kBlocks}));

  std::vector<float> x(kCount), y(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    x[i] = static_cast<float>(i % 1000) * static_cast<float>(me.rank + 1) - 750;
  }
  std::uint32_t* done = nullptr;
  cudaStream_t stream;
  must(cudaMallocHost(&done, kBlocks * sizeof *done));  // pinned: the kernel can access it
  must(cudaStreamCreate(&stream));
  must(cudaMemcpyAsync(x_window.data(), x.data(), kCount * sizeof(float), cudaMemcpyDefault,
                       stream));

  const FusedScaleAllReduce job{device_comm.view(), x_window.view(), y_window.view(), kCount, 0.5f};
  fused_scale_all_reduce_kernel<<<kBlocks, kThreads, 0, stream>>>(job, done);
  must(cudaGetLastError());
  must(comm.all_reduce(
      {.input = x_window.data(), .output = x_window.data(), .count = kCount, .stream = stream}));
  must(cudaMemcpyAsync(x.data(), x_window.data(), kCount * sizeof(float), cudaMemcpyDefault,
                       stream));
  must(cudaMemcpyAsync(y.data(), y_window.data(), kCount * sizeof(float), cudaMemcpyDefault,
                       stream));
  must(cudaStreamSynchronize(stream));

  // The sums are small integers, so both results must have the same bits.
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) wrong += y[i] != (x[i] > 0 ? 0.5f * x[i] : 0);
  for (unsigned block = 0; block < kBlocks; ++block) wrong += done[block] != 1;
  std::printf("rank %d of %d: %llu elements, %llu wrong\n", me.rank, me.ranks,
              static_cast<unsigned long long>(kCount), static_cast<unsigned long long>(wrong));
  if (argc > 1 && std::string(argv[1]) == "bandwidth") print_bandwidth(job, done, stream);
  must(cudaFreeHost(done));
  must(cudaStreamDestroy(stream));
  return wrong == 0 ? 0 : 1;
}
