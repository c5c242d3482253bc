// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Runs own_kernel.hpp on a GPU per rank and compares it with the library's all-reduce:
//   oriel-run -n 2 03_own_kernel_gpu
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#include "../common/launched.hpp"
#include "own_kernel.hpp"

void must(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(1);
}

int main() {
  constexpr std::uint64_t kCount = 10'000'019, kBytes = (kCount + 3) / 4 * sizeof(Four);
  constexpr unsigned kBlocks = 32, kThreads = 512;  // all blocks run at once on any GPU
  const Launched me = Launched::from_environment();
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || me.local_rank >= gpus) {
    std::printf("skipped: rank %d needs a GPU of its own, %d are here\n", me.rank, gpus);
    return 77;
  }
  must(cudaSetDevice(me.local_rank));
  auto comm = must(oriel::Communicator::init(share_unique_id(me), me.rank, me.ranks));

  // Two windows, and what the kernel's barriers need.
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
  must(cudaMallocHost(&done, kBlocks * sizeof *done));  // the kernel can reach it too
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

  // The sums are small integers, so both ways must give the same bits.
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) wrong += y[i] != (x[i] > 0 ? 0.5f * x[i] : 0);
  for (unsigned block = 0; block < kBlocks; ++block) wrong += done[block] != 1;
  std::printf("rank %d of %d: %llu elements, %llu wrong\n", me.rank, me.ranks,
              static_cast<unsigned long long>(kCount), static_cast<unsigned long long>(wrong));
  must(cudaFreeHost(done));
  must(cudaStreamDestroy(stream));
  return wrong == 0 ? 0 : 1;
}
