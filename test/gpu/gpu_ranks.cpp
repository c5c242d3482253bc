// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_ranks.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/cuda/gpu_count.hpp"

namespace oriel::test {
namespace {

int runtime_gpus() {
  int found = 0;
  return cudaGetDeviceCount(&found) == cudaSuccess ? found : 0;
}

int count_gpus() {
  // Raises the number of hardware queues. If streams shared a queue, a kernel that waits for
  // another rank's kernel could keep that kernel from starting. The children read this variable
  // when they initialise CUDA.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  return gpus_or_skip(runtime_gpus);
}

template <class Predicate>
bool poll(std::chrono::milliseconds timeout, const Predicate& predicate) {
  const auto started = std::chrono::steady_clock::now();
  for (;;) {
    if (predicate()) return true;
    const auto waited = std::chrono::steady_clock::now() - started;
    if (waited > timeout) return false;
    if (waited > std::chrono::microseconds(200)) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

}  // namespace

int gpus() {
  static const int found = count_gpus();
  return found;
}

LaunchMode natural_cast(int ranks) {
  return ranks <= gpus() ? LaunchMode::processes : LaunchMode::threads;
}

void require_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::nccl_mem_alloc:
      return "ncclMemAlloc";
    case MemoryKind::cuda_malloc:
      return "cudaMalloc";
    case MemoryKind::cuda_malloc_async:
      return "cudaMallocAsync";
    case MemoryKind::cuda_host_alloc:
      return "cudaHostAlloc";
    case MemoryKind::cuda_malloc_host:
      return "cudaMallocHost";
    case MemoryKind::cuda_malloc_managed:
      return "cudaMallocManaged";
  }
  return "?";
}

RankGpu::RankGpu(int rank) : device_(rank % gpus()) {
  // Kills this rank when the test's process dies.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  enter();
  for (cudaStream_t& stream : streams_) {
    require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  }
}

RankGpu::~RankGpu() {
  if (std::uncaught_exceptions() > 0) return;
  enter();
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  for (const Allocation& allocation : allocations_) {
    switch (allocation.kind) {
      case MemoryKind::nccl_mem_alloc:
        static_cast<void>(ncclMemFree(allocation.base));
        break;
      case MemoryKind::cuda_host_alloc:
      case MemoryKind::cuda_malloc_host:
        cudaFreeHost(allocation.base);
        break;
      default:
        cudaFree(allocation.base);  // takes memory of cudaMallocAsync too
    }
  }
}

void RankGpu::enter() const {
  require_cuda(cudaSetDevice(device_), "cudaSetDevice");
}

std::byte* RankGpu::allocate(std::size_t bytes, MemoryKind kind) {
  enter();
  void* base = nullptr;
  cudaError_t status = cudaSuccess;
  switch (kind) {
    case MemoryKind::nccl_mem_alloc:
      require(ncclMemAlloc(&base, bytes), "ncclMemAlloc");
      break;
    case MemoryKind::cuda_malloc:
      status = cudaMalloc(&base, bytes);
      break;
    case MemoryKind::cuda_malloc_async:
      status = cudaMallocAsync(&base, bytes, stream());
      break;
    case MemoryKind::cuda_host_alloc:
      status = cudaHostAlloc(&base, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
      break;
    case MemoryKind::cuda_malloc_host:
      status = cudaMallocHost(&base, bytes);
      break;
    case MemoryKind::cuda_malloc_managed:
      status = cudaMallocManaged(&base, bytes, cudaMemAttachGlobal);
      break;
  }
  require_cuda(status, name_of(kind));
  allocations_.push_back({base, kind});
  // Memory of cudaMallocAsync is usable on other streams after its own stream has reached it.
  if (kind == MemoryKind::cuda_malloc_async) wait(stream(), nullptr);
  return static_cast<std::byte*>(base);
}

void RankGpu::copy_in(void* to, const void* from, std::size_t bytes) {
  enter();  // the copy needs the device of ncclMemAlloc's memory as the current device
  require_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()), "writing");
  wait(stream(), nullptr);
}

void RankGpu::copy_out(void* to, const void* from, std::size_t bytes) {
  enter();
  require_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()), "reading");
  wait(stream(), nullptr);
}

bool RankGpu::done(cudaStream_t stream, std::chrono::milliseconds timeout) const {
  enter();
  return poll(timeout, [&] {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status == cudaErrorNotReady) return false;
    require_cuda(status, "waiting for a stream");
    return true;
  });
}

void RankGpu::wait(cudaStream_t stream, ncclComm_t comm) const {
  const auto end = std::chrono::steady_clock::now() + kTimeout;
  bool ended = false;
  while (!ended && std::chrono::steady_clock::now() < end) {
    ended = done(stream, std::chrono::milliseconds(50));
    if (comm == nullptr) continue;
    ncclResult_t state = ncclSuccess;
    require(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
    require(state == ncclSuccess, std::string("asynchronous error: ") + ncclGetLastError(comm));
  }
  require(ended, "what was enqueued has not ended within " + std::to_string(kTimeout.count()) +
                     " seconds");
}

ncclComm_t init_rank(TestRanks& test_ranks, const RankGpu& gpu, ncclConfig_t* config) {
  gpu.enter();
  const ncclUniqueId id = test_ranks.next_id();
  ncclComm_t comm = nullptr;
  if (config == nullptr) {
    require(ncclCommInitRank(&comm, test_ranks.size(), id, test_ranks.first()), "ncclCommInitRank");
  } else {
    require(ncclCommInitRankConfig(&comm, test_ranks.size(), id, test_ranks.first(), config),
            "ncclCommInitRankConfig");
  }
  return comm;
}

}  // namespace oriel::test
