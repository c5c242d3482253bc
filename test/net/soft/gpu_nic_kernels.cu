// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "net/soft/gpu_nic_kernels.hpp"

namespace oriel::net::test {
namespace {

namespace q = device::queue;
using device::Memory;
using device::Order;
using device::Scope;
using device::Thread;
using device::Warp;
using q::QueueOutcome;

__device__ QueueOutcome wait_for_signal(const GpuPath& path, std::uint64_t value) {
  const auto* const word =
      reinterpret_cast<const std::uint64_t*>(path.local.address + path.own_signal);
  return q::outcome_of(device::wait_until<Memory>(
      [&] { return Memory::load<Order::acquire, Scope::system>(word) >= value; }, path.control,
      device::WaitTarget{}));
}

__global__ void ops_kernel(OpsJob job) {
  const QueueOutcome outcome = run_ops<Warp>(job.path, job.ops, job.count);
  if (threadIdx.x == 0) *job.outcome = static_cast<std::uint32_t>(outcome);
}

__global__ void puts_kernel(PutsJob job) {
  const GpuPath& path = job.path;
  const q::Transfer transfer{path.local, 0, path.remote, 0, job.bytes};
  QueueOutcome outcome = QueueOutcome::done;
  for (std::uint32_t i = 0; i < job.rounds && outcome == QueueOutcome::done; ++i) {
    const q::Posted posted = q::put(Warp(), path.queue, transfer, path.control);
    outcome = posted.outcome;
    if (outcome == QueueOutcome::done && (i + 1) % job.in_flight == 0) {
      outcome = q::wait_complete(path.queue, posted.end, path.control);
    }
    __syncwarp();
  }
  if (outcome == QueueOutcome::done) outcome = q::wait_all(path.queue, path.control);
  if (threadIdx.x == 0) *job.outcome = static_cast<std::uint32_t>(outcome);
}

__device__ QueueOutcome send_round(const PingJob& job, std::uint32_t round) {
  const GpuPath& path = job.path;
  auto* const bytes = reinterpret_cast<unsigned char*>(path.local.address + job.from);
  for (std::uint64_t i = threadIdx.x; i < job.bytes; i += blockDim.x) {
    bytes[i] = static_cast<unsigned char>(round);
  }
  __syncthreads();
  QueueOutcome outcome = QueueOutcome::done;
  if (threadIdx.x == 0) {
    const q::Transfer transfer{path.local, job.from, path.remote, job.to, job.bytes};
    constexpr auto kAdd = q::SignalOp::add;
    const q::Posted posted =
        job.bytes <= q::kInlineBytesMost
            ? q::put_bytes_signal<kAdd>(Thread(), path.queue, bytes, job.bytes, path.remote, job.to,
                                        path.remote, path.far_signal, 1, path.control)
            : q::put_signal<kAdd>(Thread(), path.queue, transfer, path.remote, path.far_signal, 1,
                                  path.control);
    outcome = posted.outcome;
  }
  return outcome;
}

__device__ QueueOutcome receive_round(const PingJob& job, std::uint32_t round) {
  const QueueOutcome outcome = wait_for_signal(job.path, round);
  const auto* const bytes =
      reinterpret_cast<const volatile unsigned char*>(job.path.local.address + job.to);
  std::uint64_t wrong = 0;
  for (std::uint64_t i = threadIdx.x; i < job.bytes; i += blockDim.x) {
    wrong += bytes[i] != static_cast<unsigned char>(round) ? 1 : 0;
  }
  if (wrong != 0) atomicAdd(reinterpret_cast<unsigned long long*>(job.wrong), wrong);
  return outcome;
}

__global__ void ping_kernel(PingJob job) {
  __shared__ std::uint32_t failed;
  if (threadIdx.x == 0) failed = 0;
  __syncthreads();
  const std::uint64_t began = Memory::clock_ns();
  for (std::uint32_t round = 1; round <= job.rounds; ++round) {
    const long long begin = clock64();
    for (int half = 0; half < 2; ++half) {
      const QueueOutcome outcome =
          (half == 0) == job.begins ? send_round(job, round) : receive_round(job, round);
      if (outcome != QueueOutcome::done) atomicMax(&failed, static_cast<std::uint32_t>(outcome));
      __syncthreads();
      if (failed != 0) break;
    }
    if (threadIdx.x == 0 && job.cycles != nullptr) {
      job.cycles[round - 1] = static_cast<std::uint64_t>(clock64() - begin);
    }
    if (failed != 0) break;
  }
  if (threadIdx.x != 0) return;
  if (failed == 0) {
    failed = static_cast<std::uint32_t>(q::wait_all(job.path.queue, job.path.control));
  }
  *job.nanoseconds = Memory::clock_ns() - began;
  *job.outcome = failed;
}

__global__ void floor_kernel(FloorJob job) {
  const std::uint64_t began = Memory::clock_ns();
  for (std::uint32_t round = 1; round <= job.rounds; ++round) {
    const long long begin = clock64();
    Memory::store<Order::release, Scope::system>(job.asked, std::uint64_t{round});
    while (Memory::load<Order::acquire, Scope::system>(job.answered) != round) {
      if (Memory::clock_ns() - began > 20'000'000'000) return;
    }
    job.cycles[round - 1] = static_cast<std::uint64_t>(clock64() - begin);
  }
  *job.nanoseconds = Memory::clock_ns() - began;
}

__global__ void nothing_kernel(std::uint32_t* word) {
  *word += 1;
}

}  // namespace

int load_gpu_nic_kernels() {
  const int status = load_operations_kernels();
  if (status != cudaSuccess) return status;
  return load_kernels(ops_kernel, puts_kernel, ping_kernel, floor_kernel, nothing_kernel);
}
int launch_ops(const OpsJob& job, void* stream) {
  return launch(ops_kernel, 1, 32, job, stream);
}
int launch_puts(const PutsJob& job, void* stream) {
  return launch(puts_kernel, 1, 32, job, stream);
}
int launch_ping(const PingJob& job, void* stream) {
  return launch(ping_kernel, 1, 256, job, stream);
}
int launch_floor(const FloorJob& job, void* stream) {
  return launch(floor_kernel, 1, 1, job, stream);
}
int launch_nothing(std::uint32_t* word, void* stream) {
  return launch(nothing_kernel, 1, 1, word, stream);
}

}  // namespace oriel::net::test
