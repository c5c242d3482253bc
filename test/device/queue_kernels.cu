// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "device/queue_kernels.hpp"

namespace oriel::test {
namespace {

namespace q = device::queue;
using device::Cta;
using device::Memory;
using device::Order;
using device::Scope;
using device::Thread;
using device::Warp;
using q::QueueOutcome;
using q::QueueView;

__device__ void sleep_for(std::uint32_t ns) {
  const std::uint64_t begin = Memory::clock_ns();
  while (Memory::clock_ns() - begin < ns) device::arch::sleep_ns(1000);
}

// Baseline for queues: publishes under a lock, which is the first mark.
__device__ QueueOutcome publish_locked(const QueueView& queue, std::uint32_t slow_ns,
                                       const device::WaitControl& control) {
  q::QueueIndexes& at = *queue.indexes;
  for (;;) {
    if (Memory::compare_swap<Order::acq_rel, Scope::device>(queue.marks, std::uint64_t{0},
                                                            std::uint64_t{1}) != 0) {
      if (q::detail::is_broken<Memory>(queue)) return QueueOutcome::aborted;
      continue;
    }
    const std::uint64_t base = Memory::load<Order::relaxed, Scope::device>(&at.reserved);
    QueueOutcome outcome = QueueOutcome::done;
    if (base + 1 > queue.depth) {
      outcome = q::wait_complete(queue, base + 1 - queue.depth, control);
    }
    if (outcome == QueueOutcome::done) {
      q::write_wqe(queue, {base, 1}, 0, marked_wqe(queue.number, base));
      if (slow_ns != 0) sleep_for(slow_ns);
      Memory::store<Order::relaxed, Scope::device>(&at.reserved, base + 1);
      q::detail::ring_doorbell<Memory>(queue, base + 1);
    }
    Memory::store<Order::release, Scope::device>(queue.marks, std::uint64_t{0});
    return outcome;
  }
}

template <class Group>
__device__ QueueOutcome publish_once(Group group, const QueueView& queue, std::uint32_t wqebbs,
                                     std::uint32_t slow_ns, const device::WaitControl& control) {
  q::Reservation mine;
  const QueueOutcome outcome = q::reserve(group, queue, wqebbs, mine, control);
  if (outcome != QueueOutcome::done) return outcome;
  for (std::uint32_t i = group.rank(); i < wqebbs; i += group.size()) {
    q::write_wqe(queue, mine, i, marked_wqe(queue.number, mine.base + i));
  }
  if (slow_ns != 0) sleep_for(slow_ns);
  return q::publish(group, queue, mine);
}

__global__ void publish_kernel(PublishJob job) {
  const std::uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const std::uint32_t lane = device::arch::warp_lane();
  const std::uint32_t publisher = job.method == PublishMethod::cta ? blockIdx.x : warp;
  const QueueView& queue = job.queues[publisher % job.queue_count];
  const std::uint32_t slow_ns = publisher == 0 ? job.slow_ns : 0;
  QueueOutcome outcome = QueueOutcome::done;
  for (std::uint32_t i = 0; i < job.rounds; ++i) {
    const long long begin = clock64();
    if (job.method == PublishMethod::lock_per_wqe) {
      outcome = publish_locked(queue, slow_ns, job.control);
    } else if (job.method == PublishMethod::thread) {
      outcome = publish_once(Thread{}, queue, 1, slow_ns, job.control);
    } else if (job.method == PublishMethod::lanes) {
      outcome = publish_once(device::Lanes{}, queue, 1, slow_ns, job.control);
    } else if (job.method == PublishMethod::cta) {
      outcome = publish_once(Cta{}, queue, 32, slow_ns, job.control);
    } else {
      outcome = publish_once(Warp{}, queue, 32, slow_ns, job.control);
    }
    if (outcome != QueueOutcome::done) break;
    if (lane == 0 && i < job.samples) {
      job.cycles[warp * job.samples + i] = static_cast<std::uint32_t>(clock64() - begin);
    }
  }
  if (outcome == QueueOutcome::done) outcome = q::wait_all(queue, job.control);
  atomicMax(&job.outcomes[warp], static_cast<std::uint32_t>(outcome));
}

__global__ void drain_kernel(DrainJob job) {
  __shared__ std::uint32_t must_stop;
  QueueDrain& kept = job.drains[blockIdx.x];
  QueueDrain drain = kept;
  drain.wrong_wqebbs = 0;
  const std::uint64_t begin = Memory::clock_ns();
  for (std::uint32_t idle = 0;;) {
    if (drain.step(Cta{}) != 0) {
      idle = 0;
      continue;
    }
    if (++idle % 64 != 0) continue;
    __syncthreads();
    if (threadIdx.x == 0) {
      const bool late = Memory::clock_ns() - begin > job.limit_ns;
      must_stop = late || Memory::load<Order::acquire, Scope::system>(job.stop) != 0 ? 1 : 0;
    }
    __syncthreads();
    if (must_stop == 0) continue;
    while (drain.step(Cta{}) != 0) {
    }
    break;
  }
  atomicAdd(&kept.wrong_wqebbs, drain.wrong_wqebbs);
  if (threadIdx.x == 0) {
    kept.consumed = drain.consumed;
    kept.doorbells = drain.doorbells;
    kept.wrong_doorbells = drain.wrong_doorbells;
  }
}

}  // namespace

int load_queue_kernels() {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, publish_kernel);
  return status != cudaSuccess ? status : cudaFuncGetAttributes(&attributes, drain_kernel);
}

int launch_publish(const PublishJob& job, std::uint32_t ctas, std::uint32_t warps, void* stream) {
  publish_kernel<<<ctas, warps * 32, 0, static_cast<cudaStream_t>(stream)>>>(job);
  return cudaGetLastError();
}

int launch_drain(const DrainJob& job, std::uint32_t queues, void* stream) {
  drain_kernel<<<queues, 256, 0, static_cast<cudaStream_t>(stream)>>>(job);
  return cudaGetLastError();
}

}  // namespace oriel::test
