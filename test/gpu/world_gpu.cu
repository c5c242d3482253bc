// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "gpu/world_gpu.hpp"

namespace oriel::test {
namespace {

using namespace device;

__device__ unsigned char pattern(std::int32_t rank, std::uint32_t round, std::uint64_t at) {
  return static_cast<unsigned char>((rank + 1) * 31 + round * 7 + at * 13 + (at >> 8));
}

__device__ std::uint64_t count_wrong(const WindowView& window, std::uint64_t offset,
                                     std::uint64_t bytes, std::int32_t rank, std::uint32_t round) {
  const auto* const at = static_cast<const volatile unsigned char*>(window.local(offset, bytes));
  std::uint64_t wrong = 0;
  for (std::uint64_t i = threadIdx.x; i < bytes; i += blockDim.x) {
    wrong += at[i] != pattern(rank, round, i) ? 1 : 0;
  }
  return wrong;
}

__device__ void note(WorldResult& result, std::uint64_t wrong) {
  if (wrong != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&result.wrong), wrong);
}

__device__ WorldOutcome traffic_round(const WorldTraffic& job, std::uint32_t round) {
  const Cta cta;
  const CommView& comm = job.comm;
  const auto size = static_cast<std::uint64_t>(comm.world_size);
  const std::uint64_t source = size * job.part;
  auto* const bytes = static_cast<unsigned char*>(job.window.local(source, job.bytes));
  for (std::uint64_t i = threadIdx.x; i < job.bytes; i += blockDim.x) {
    bytes[i] = pattern(comm.world_rank, round, i);
  }
  const auto mine = static_cast<std::uint32_t>(comm.world_rank);
  for (std::int32_t peer = 0; peer < comm.world_size; ++peer) {
    const WorldPosted posted = world_put_signal(cta, comm, peer, job.window, mine * job.part,
                                                job.window, source, job.bytes, mine);
    if (posted.outcome != WorldOutcome::done) return posted.outcome;
  }
  for (std::int32_t peer = 0; peer < comm.world_size; ++peer) {
    const WorldOutcome received =
        wait_signal(cta, comm, static_cast<std::uint32_t>(peer), round, peer);
    if (received != WorldOutcome::done) return received;
    note(*job.result, count_wrong(job.window, static_cast<std::uint64_t>(peer) * job.part,
                                  job.bytes, peer, round));
  }
  WorldBarrier<Cta> barrier(cta, comm, 0);
  return barrier.sync();
}

__device__ WorldOutcome read_back(const WorldTraffic& job) {
  const Cta cta;
  const CommView& comm = job.comm;
  const std::uint64_t sink = (static_cast<std::uint64_t>(comm.world_size) + 1) * job.part;
  const auto mine = static_cast<std::uint64_t>(comm.world_rank) * job.part;
  for (std::int32_t peer = 0; peer < comm.world_size; ++peer) {
    const WorldPosted posted =
        world_get(cta, comm, peer, job.window, mine, job.window, sink, job.bytes);
    const WorldOutcome read = world_wait(cta, comm, posted);
    if (read != WorldOutcome::done) return read;
    note(*job.result,
         count_wrong(job.window, sink, job.bytes, comm.world_rank, job.earlier + job.rounds));
  }
  // No rank signals again before the barrier below, so the counts are final.
  const auto peer = static_cast<std::uint32_t>(threadIdx.x);
  if (peer < static_cast<std::uint32_t>(comm.world_size)) {
    note(*job.result, read_signal(comm, peer) != job.earlier + job.rounds ? 1 : 0);
  }
  WorldBarrier<Cta> barrier(cta, comm, 0);
  return barrier.sync();
}

__global__ void traffic_kernel(WorldTraffic job) {
  const std::uint64_t began = Memory::clock_ns();
  WorldOutcome outcome = WorldOutcome::done;
  std::uint32_t round = 1;
  for (; round <= job.rounds && outcome == WorldOutcome::done; ++round) {
    outcome = traffic_round(job, job.earlier + round);
  }
  if (outcome == WorldOutcome::done) outcome = read_back(job);
  if (threadIdx.x != 0) return;
  job.result->step = round;
  job.result->nanoseconds = Memory::clock_ns() - began;
  job.result->outcome = static_cast<std::uint32_t>(outcome);
}

__device__ WorldOutcome ping_round(const WorldPing& job, std::uint32_t round) {
  const Thread self;
  const CommView& comm = job.comm;
  for (int half = 0; half < 2; ++half) {
    if (half == comm.world_rank) {
      const WorldPosted posted = world_put_signal(self, comm, 1 - comm.world_rank, job.window,
                                                  job.bytes, job.window, 0, job.bytes, 0);
      if (posted.outcome != WorldOutcome::done) return posted.outcome;
    } else {
      const WorldOutcome received = wait_signal(self, comm, 0, round, 1 - comm.world_rank);
      if (received != WorldOutcome::done) return received;
    }
  }
  return WorldOutcome::done;
}

__global__ void ping_kernel(WorldPing job) {
  const std::uint64_t began = Memory::clock_ns();
  WorldOutcome outcome = WorldOutcome::done;
  std::uint64_t sum = 0;
  for (std::uint32_t round = 1; round <= job.rounds && outcome == WorldOutcome::done; ++round) {
    const long long begin = clock64();
    outcome = ping_round(job, round);
    job.cycles[round - 1] = static_cast<std::uint64_t>(clock64() - begin);
    sum += job.cycles[round - 1];
  }
  job.result->nanoseconds = Memory::clock_ns() - began;
  job.result->cycles = sum;
  if (outcome == WorldOutcome::done) outcome = world_flush(Thread(), job.comm);
  job.result->outcome = static_cast<std::uint32_t>(outcome);
}

}  // namespace

int load_world_kernels() {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, traffic_kernel);
  return status != cudaSuccess ? status : cudaFuncGetAttributes(&attributes, ping_kernel);
}
int launch_world_traffic(const WorldTraffic& job, void* stream) {
  traffic_kernel<<<1, 256, 0, static_cast<cudaStream_t>(stream)>>>(job);
  return cudaGetLastError();
}
int launch_world_ping(const WorldPing& job, void* stream) {
  ping_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(job);
  return cudaGetLastError();
}

}  // namespace oriel::test
