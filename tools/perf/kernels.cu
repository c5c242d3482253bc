// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/device/memory.hpp"
#include "oriel/device/rounding.hpp"

#include "perf/kernels.hpp"

namespace oriel::perf {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kMostBlocks = 132 * 16;

unsigned blocks_for(std::size_t count) {
  const std::size_t wanted = device::divide_up(count, kThreads);
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted > kMostBlocks ? kMostBlocks : wanted);
}

__device__ std::size_t first_index() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ std::size_t index_stride() {
  return static_cast<std::size_t>(gridDim.x) * blockDim.x;
}
__device__ void add(std::uint64_t& target, std::uint64_t value) {
  if (value != 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(&target),
              static_cast<unsigned long long>(value));
}
// Sums a value over the lanes of a warp, for lane 0. A digest is a sum, so any order will do.
__device__ std::uint64_t warp_sum(std::uint64_t value) {
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_down_sync(0xffffffffu, value, offset);
  return value;
}

template <typename Storage>
__device__ std::uint64_t bits_of(Storage value) {
  std::uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

template <DataType kType>
__global__ void fill_kernel(typename Element<kType>::Storage* out, std::size_t count, ReduceOp op,
                            int rank, std::uint64_t key) {
  for (std::size_t i = first_index(); i < count; i += index_stride())
    out[i] = input_at<kType>(op, rank, key, i);
}

__global__ void make_keys_kernel(std::uint64_t* keys, std::uint64_t seed, int ranks) {
  for (std::size_t i = first_index(); i < static_cast<std::size_t>(ranks); i += index_stride())
    keys[i] = key_of(seed, static_cast<int>(i));
}

template <DataType kType>
__global__ void check_output_kernel(const typename Element<kType>::Storage* data, std::size_t count,
                                    Pattern pattern, const std::uint64_t* keys,
                                    CheckReport* report) {
  std::uint64_t wrong = 0, first = UINT64_MAX, digest = 0;
  for (std::size_t i = first_index(); i < count; i += index_stride()) {
    digest += digest_term(i, bits_of(data[i]));
    if (result_ok<kType>(pattern, keys, i, data[i])) continue;
    ++wrong;
    if (i < first) first = i;
  }
  digest = warp_sum(digest);
  if (threadIdx.x % 32 == 0) add(report->digest, digest);
  add(report->wrong_outputs, wrong);
  if (first != UINT64_MAX)
    atomicMin(reinterpret_cast<unsigned long long*>(&report->first_wrong),
              static_cast<unsigned long long>(first));
}

template <DataType kType>
__global__ void check_input_kernel(const typename Element<kType>::Storage* data, std::size_t count,
                                   ReduceOp op, int rank, std::uint64_t key, CheckReport* report) {
  std::uint64_t changed = 0;
  for (std::size_t i = first_index(); i < count; i += index_stride())
    if (bits_of(data[i]) != bits_of(input_at<kType>(op, rank, key, i))) ++changed;
  add(report->changed_inputs, changed);
}

__global__ void check_bytes_kernel(const std::uint8_t* data, std::uint8_t value, std::size_t bytes,
                                   CheckReport* report) {
  std::uint64_t written = 0;
  for (std::size_t i = first_index(); i < bytes; i += index_stride())
    if (data[i] != value) ++written;
  add(report->written_past_end, written);
}

__global__ void delay_kernel(std::uint64_t nanoseconds) {
  const std::uint64_t start = device::Memory::clock_ns();
  while (device::Memory::clock_ns() - start < nanoseconds) {
  }
}

}  // namespace

void launch_fill(void* out, std::size_t count, const Pattern& pattern, int rank,
                 cudaStream_t stream) {
  with_type(pattern.type, [&](auto type) {
    constexpr DataType kType = decltype(type)::value;
    fill_kernel<kType><<<blocks_for(count), kThreads, 0, stream>>>(
        static_cast<typename Element<kType>::Storage*>(out), count, pattern.op, rank,
        key_of(pattern.seed, rank));
  });
}

void launch_make_keys(std::uint64_t* keys, const Pattern& pattern, cudaStream_t stream) {
  make_keys_kernel<<<1, kThreads, 0, stream>>>(keys, pattern.seed, pattern.ranks);
}

void launch_check_output(const void* data, std::size_t count, const Pattern& pattern,
                         const std::uint64_t* keys, CheckReport* report, cudaStream_t stream) {
  with_type(pattern.type, [&](auto type) {
    constexpr DataType kType = decltype(type)::value;
    check_output_kernel<kType><<<blocks_for(count), kThreads, 0, stream>>>(
        static_cast<const typename Element<kType>::Storage*>(data), count, pattern, keys, report);
  });
}

void launch_check_input(const void* data, std::size_t count, const Pattern& pattern, int rank,
                        CheckReport* report, cudaStream_t stream) {
  with_type(pattern.type, [&](auto type) {
    constexpr DataType kType = decltype(type)::value;
    check_input_kernel<kType><<<blocks_for(count), kThreads, 0, stream>>>(
        static_cast<const typename Element<kType>::Storage*>(data), count, pattern.op, rank,
        key_of(pattern.seed, rank), report);
  });
}

void launch_check_bytes(const void* data, std::uint8_t value, std::size_t bytes,
                        CheckReport* report, cudaStream_t stream) {
  check_bytes_kernel<<<blocks_for(bytes), kThreads, 0, stream>>>(
      static_cast<const std::uint8_t*>(data), value, bytes, report);
}

void launch_delay(double us, cudaStream_t stream) {
  delay_kernel<<<1, 1, 0, stream>>>(static_cast<std::uint64_t>(us * 1000));
}

}  // namespace oriel::perf
