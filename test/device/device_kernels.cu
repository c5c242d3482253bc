// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "oriel/device/bulk.cuh"

#include "../examples/03_own_kernel/own_kernel.hpp"
#include "device/bodies.hpp"
#include "device/device_kernels.hpp"

namespace oriel::test {
namespace {

using device::CommView;
using device::Cta;
using device::Memory;
using device::Order;
using device::Scope;
using device::WaitOutcome;

__device__ CommView comm_of(const CommView& view, std::uint32_t rank) {
  CommView comm = view;
  comm.world_rank = comm.lsa_rank = comm.wait.self = static_cast<std::int32_t>(rank);
  if (comm.wait.stall != nullptr) comm.wait.stall += rank;
  return comm;
}

template <class Packet>
__global__ void exchange_kernel(KernelArguments arguments, std::uint32_t flag, std::uint32_t epochs,
                                std::uint32_t packets) {
  const CommView comm = comm_of(arguments.view, blockIdx.x);
  const bool good = exchange_packets<Packet>(Cta{}, comm, flag, epochs, packets);
  const bool bad = Cta::any(!good);
  if (threadIdx.x == 0) arguments.results[blockIdx.x] = bad ? 0 : 1;
}

template <class Group>
__global__ void barrier_kernel(KernelArguments arguments, std::uint32_t rounds) {
  const auto ranks = static_cast<std::uint32_t>(arguments.view.lsa_size);
  const CommView comm = comm_of(arguments.view, blockIdx.x % ranks);
  const bool good = barrier_rounds(Group{}, comm, blockIdx.x / ranks, rounds);
  const bool bad = Cta::any(!good);
  if (threadIdx.x == 0) arguments.results[blockIdx.x] = bad ? 0 : 1;
}

__global__ void wait_kernel(KernelArguments arguments, const std::uint32_t* flag,
                            std::uint32_t value, device::WaitTarget target) {
  const WaitOutcome outcome = device::wait_until(
      [&] { return Memory::load<Order::acquire>(flag) == value; }, arguments.view.wait, target);
  const bool mixed = Cta::any(outcome != WaitOutcome::ready) && outcome == WaitOutcome::ready;
  if (threadIdx.x == 0 && !mixed) arguments.results[0] = 100 + static_cast<std::uint32_t>(outcome);
}

__global__ void lonely_barrier_kernel(KernelArguments arguments) {
  const CommView comm = comm_of(arguments.view, 0);
  device::LsaBarrier<Cta> barrier(Cta{}, comm, 0);
  const WaitOutcome outcome = barrier.sync();
  barrier.arrive();  // must publish nothing
  if (threadIdx.x == 0) arguments.results[0] = 100 + static_cast<std::uint32_t>(outcome);
}

__global__ void groups_kernel(KernelArguments arguments) {
  const std::uint32_t rank = threadIdx.x + 8 * (threadIdx.y + 4 * threadIdx.z);
  bool good = Cta::rank() == rank && Cta::size() == 96;
  good = good && device::Warp::rank() == rank % 32 && device::Warp::size() == 32;
  good = good && device::Thread::rank() == 0 && device::Thread::size() == 1;
  for (std::uint32_t voter = 0; voter < 96; ++voter) {
    good = good && Cta::any(rank == voter);
    good = (device::Warp::any(rank == voter) == (rank / 32 == voter / 32)) && good;
  }
  good = !Cta::any(false) && good;
  const bool bad = Cta::any(!good);
  if (rank == 0) arguments.results[0] = bad ? 0 : 1;
}

template <Order kLoad, Order kStore, Scope kScope, class T>
__device__ bool round_trip(T* address, T value) {
  Memory::store<kStore, kScope>(address, value);
  const T back = Memory::load<kLoad, kScope>(address);
  bool same = true;
  for (std::uint32_t i = 0; i < sizeof(T) / 4; ++i) {
    same = same && reinterpret_cast<const std::uint32_t*>(&back)[i] ==
                       reinterpret_cast<const std::uint32_t*>(&value)[i];
  }
  return same;
}

template <class T>
__device__ bool round_trips(T* address, const T (&values)[7]) {
  bool good = round_trip<Order::weak, Order::weak, Scope::system>(address, values[0]);
  good = round_trip<Order::relaxed, Order::relaxed, Scope::device>(address, values[1]) && good;
  good = round_trip<Order::relaxed, Order::relaxed, Scope::system>(address, values[2]) && good;
  good = round_trip<Order::acquire, Order::release, Scope::device>(address, values[3]) && good;
  good = round_trip<Order::acquire, Order::release, Scope::system>(address, values[4]) && good;
  Memory::store_streaming(address, values[5]);
  const T streamed = Memory::load_streaming(address);
  for (std::uint32_t i = 0; i < sizeof(T) / 4; ++i) {
    good = good && reinterpret_cast<const std::uint32_t*>(&streamed)[i] ==
                       reinterpret_cast<const std::uint32_t*>(&values[5])[i];
  }
  return good;
}

template <class T>
__device__ bool adds(T* counter, T step) {
  const T first = Memory::fetch_add<Order::relaxed, Scope::device>(counter, step);
  const T second = Memory::fetch_add<Order::acquire, Scope::system>(counter, step);
  Memory::fetch_add<Order::release, Scope::device>(counter, step);
  Memory::fetch_add<Order::acq_rel, Scope::system>(counter, step);
  Memory::reduce_add<Order::relaxed, Scope::device>(counter, step);
  Memory::reduce_add<Order::release, Scope::system>(counter, step);
  return second > first;
}

__global__ void accesses_kernel(KernelArguments arguments, char* memory) {
  bool good = true;
  if (threadIdx.x == 0) {
    const std::uint32_t words[7] = {1, 2, 3, 4, 5, 6, 7};
    const std::uint64_t longs[7] = {~1ull, ~2ull, ~3ull, ~4ull, ~5ull, ~6ull, ~7ull};
    device::Pack packs[7];
    device::Pair pairs[7];
    for (std::uint32_t i = 0; i < 7; ++i) {
      packs[i] = device::Pack{{i, i + 100, i + 200, i + 300}};
      pairs[i] = device::Pair{{~0ull - i, 0x123456789ull * (i + 1)}};
    }
    good = round_trips(reinterpret_cast<std::uint32_t*>(memory), words);
    good = round_trips(reinterpret_cast<std::uint64_t*>(memory + 64), longs) && good;
    good = round_trips(reinterpret_cast<device::Pack*>(memory + 128), packs) && good;
    good = round_trips(reinterpret_cast<device::Pair*>(memory + 192), pairs) && good;
  }
  auto* count32 = reinterpret_cast<std::uint32_t*>(memory + 256);
  auto* count64 = reinterpret_cast<std::uint64_t*>(memory + 320);
  good = adds(count32, 3u) && good;
  good = adds(count64, std::uint64_t{1} << 31) && good;
  Memory::fence<Scope::device>();
  Memory::fence<Scope::system>();
  Cta::sync();
  good = good && *count32 == 18 * blockDim.x && *count64 == (std::uint64_t{6} << 31) * blockDim.x;
  const std::uint64_t start_ns = Memory::clock_ns();
  for (int i = 0; i < 1'000'000 && Memory::clock_ns() < start_ns + 100'000; ++i) Memory::relax();
  good = good && Memory::clock_ns() >= start_ns + 100'000;
  const bool bad = Cta::any(!good);
  if (threadIdx.x == 0) arguments.results[0] = bad ? 0 : 1;
}

__global__ void read_only_kernel(KernelArguments arguments, const char* memory) {
  const auto word = Memory::load_read_only(reinterpret_cast<const std::uint32_t*>(memory));
  const auto pack = Memory::load_read_only(reinterpret_cast<const device::Pack*>(memory + 128));
  const auto pair = Memory::load_read_only(reinterpret_cast<const device::Pair*>(memory + 192));
  const bool good = word == 6 && pack.word[3] == 305 && pair.half[0] == ~0ull - 5;
  if (threadIdx.x == 0 && !good) arguments.results[0] = 0;
}

__global__ void window_kernel(KernelArguments arguments, const device::WindowObject* object) {
  const auto view = device::WindowView::of(reinterpret_cast<const ncclWindow_vidmem*>(object));
  char* base = view.flat_base;
  std::uint32_t* results = arguments.results;
  results[0] = view.local(8, 8) == base + (1ull << 32) + 8;
  results[1] = view.lsa_peer(0, 8, 8) == base + 8;
  results[2] = view.world_peer(4, 8, 8) == base + (2ull << 32) + 8;
  results[3] = view.world_peer(0, 0, 1) == nullptr && view.lsa_peer(-1, 0, 1) == nullptr;
  results[4] = view.local(view.size_bytes, 1) == nullptr && view.local(~0ull, 2) == nullptr;
  results[5] =
      device::WindowView::of(static_cast<const device::WindowObject*>(nullptr)).local(0, 1) ==
      nullptr;
}

__global__ void bulk_copy_kernel(KernelArguments arguments, const char* from, char* to,
                                 std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  __shared__ alignas(16) char buffer[32768];
  __shared__ device::BulkBarrier barrier;
  WaitOutcome outcome = WaitOutcome::ready;
  if (threadIdx.x == 0) barrier.init();
  Cta::sync();
  for (std::uint32_t fill = 0; fill < 2 && outcome == WaitOutcome::ready; ++fill) {
    if (threadIdx.x == 0) {
      barrier.expect(bytes);
      device::bulk_load(buffer, from, bytes, barrier);
    }
    outcome = device::wait_until([&] { return barrier.arrived(fill % 2); }, arguments.view.wait,
                                 device::WaitTarget{});
    if (fill == 0) {
      // Overwrites the first fill and loads the data again.
      for (std::uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) buffer[i] = 0;
      device::bulk_fence();
    }
    Cta::sync();
  }
  if (outcome != WaitOutcome::ready) return;
  if (threadIdx.x == 0) {
    device::bulk_store(to, buffer, bytes);
    device::bulk_commit();
    device::bulk_wait_read<0>();
    device::bulk_wait<0>();
    barrier.invalidate();
    arguments.results[0] = 100 + static_cast<std::uint32_t>(outcome);
  }
#else
  if (threadIdx.x == 0) arguments.results[0] = 1;
#endif
}

__global__ void example_kernel(KernelArguments arguments, FusedScaleAllReduce job,
                               std::uint32_t blocks) {
  const std::uint32_t rank = blockIdx.x / blocks;
  job.comm = comm_of(arguments.view, rank);
  job.x.lsa_rank = job.y.lsa_rank = static_cast<std::int32_t>(rank);
  const bool good = fused_scale_all_reduce(Cta{}, job, blockIdx.x % blocks, blocks);
  if (threadIdx.x == 0) arguments.results[blockIdx.x] = good ? 1 : 0;
}

unsigned ranks_of(const KernelArguments& arguments) {
  return static_cast<unsigned>(arguments.view.lsa_size);
}

}  // namespace

int launch_exchange(PacketKind kind, const KernelArguments& arguments, std::uint32_t flag,
                    std::uint32_t epochs, std::uint32_t packets, void* stream) {
  auto* kernel = kind == PacketKind::packet8 ? exchange_kernel<device::Packet8>
                                             : exchange_kernel<device::Packet16>;
  kernel<<<ranks_of(arguments), 128, 0, static_cast<cudaStream_t>(stream)>>>(arguments, flag,
                                                                             epochs, packets);
  return cudaGetLastError();
}

int launch_barrier(const KernelArguments& arguments, std::uint32_t slots, std::uint32_t rounds,
                   void* stream, GroupKind kind) {
  auto* kernel = kind == GroupKind::cta ? barrier_kernel<Cta> : barrier_kernel<device::Warp>;
  kernel<<<ranks_of(arguments) * slots, kind == GroupKind::cta ? 128 : 32, 0,
           static_cast<cudaStream_t>(stream)>>>(arguments, rounds);
  return cudaGetLastError();
}

int launch_wait(const KernelArguments& arguments, const std::uint32_t* flag, std::uint32_t value,
                device::WaitTarget target, void* stream) {
  wait_kernel<<<1, 64, 0, static_cast<cudaStream_t>(stream)>>>(arguments, flag, value, target);
  return cudaGetLastError();
}

int launch_lonely_barrier(const KernelArguments& arguments, void* stream) {
  lonely_barrier_kernel<<<1, 64, 0, static_cast<cudaStream_t>(stream)>>>(arguments);
  return cudaGetLastError();
}

int launch_groups(const KernelArguments& arguments, void* stream) {
  groups_kernel<<<1, dim3(8, 4, 3), 0, static_cast<cudaStream_t>(stream)>>>(arguments);
  return cudaGetLastError();
}

int launch_accesses(const KernelArguments& arguments, char* memory, void* stream) {
  accesses_kernel<<<1, 256, 0, static_cast<cudaStream_t>(stream)>>>(arguments, memory);
  read_only_kernel<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>(arguments, memory);
  return cudaGetLastError();
}

int launch_window(const KernelArguments& arguments, const device::WindowObject* object,
                  void* stream) {
  window_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(arguments, object);
  return cudaGetLastError();
}

int launch_bulk_copy(const KernelArguments& arguments, const char* from, char* to,
                     std::uint32_t bytes, void* stream) {
  bulk_copy_kernel<<<1, 128, 0, static_cast<cudaStream_t>(stream)>>>(arguments, from, to, bytes);
  return cudaGetLastError();
}

int launch_example(const KernelArguments& arguments, std::uint64_t x_offset, std::uint64_t y_offset,
                   std::uint64_t count, float scale, std::uint32_t blocks, void* stream) {
  device::WindowView x;
  x.flat_base = arguments.view.control_base + x_offset;
  x.size_bytes = (count + 3) / 4 * sizeof(Four);
  x.stride_4g = arguments.view.control_stride_4g;
  x.lsa_size = arguments.view.lsa_size;
  device::WindowView y = x;
  y.flat_base = arguments.view.control_base + y_offset;
  const FusedScaleAllReduce job{arguments.view, x, y, count, scale};
  example_kernel<<<ranks_of(arguments) * blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>(
      arguments, job, blocks);
  return cudaGetLastError();
}

}  // namespace oriel::test
