// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/data_ops_host.hpp"

#include <cstring>

#include <fmt/format.h>

#include "oriel/device/scalar.hpp"

#include "base/settings.hpp"

namespace oriel::kernels {
namespace {

template <class T>
std::uint64_t bits_of_one() {
  const T one = static_cast<T>(1.0f);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &one, sizeof one);
  return bits;
}

}  // namespace

std::uint64_t one_of(DataType type) {
  switch (type) {
    case DataType::f16:
      return bits_of_one<device::f16>();
    case DataType::bf16:
      return bits_of_one<device::bf16>();
    case DataType::e4m3:
      return bits_of_one<device::e4m3>();
    case DataType::e5m2:
      return bits_of_one<device::e5m2>();
    case DataType::f32:
      return bits_of_one<float>();
    case DataType::f64:
      return bits_of_one<double>();
    default:
      return 1;  // integers: the machine is little-endian
  }
}

host::Isa isa_in_use() {
  static const host::Isa isa = host::detect_isa();
  return isa;
}

HostDataOps::HostDataOps(const AllReduceArguments& arguments)
    : arguments_(arguments),
      isa_(isa_in_use()),
      element_bytes_(size_of(arguments.type)),
      streaming_(arguments.count * element_bytes_ >= host::kStreamingBytes) {
  if (!arguments.operation.scaled) return;
  scalars_.fill(one_of(arguments.type));
  scalars_[static_cast<std::size_t>(arguments.rank)] = arguments.scalar_bits;
}

void HostDataOps::send(std::byte* slot, std::uint64_t first, std::uint64_t count) const {
  const std::byte* const source = arguments_.input + first * element_bytes_;
  if (!arguments_.operation.scaled) {
    host::find_copy_loop(isa_)(slot, source, count * element_bytes_, false);
    return;
  }
  host::ReduceLoopArgs loop;
  loop.dsts = &slot;
  loop.n_dsts = 1;
  loop.srcs = &source;
  loop.n_srcs = 1;
  loop.count = count;
  loop.scalars = reinterpret_cast<const std::byte*>(&arguments_.scalar_bits);
  host::find_reduce_loop(arguments_.type, ReduceOp::premul_sum, isa_)(loop);
}

void HostDataOps::copy_out(std::uint64_t first, const std::byte* slot, std::uint64_t count) const {
  host::find_copy_loop(isa_)(arguments_.output + first * element_bytes_, slot,
                             count * element_bytes_, streaming_);
}

void HostCopyOps::send(std::byte* place, std::uint64_t first, std::uint64_t count) const {
  const std::byte* const from = arguments_.input + first * element_bytes_;
  copy(place, from, count);
  copy(arguments_.output + first * element_bytes_, from, count);
}

void HostCopyOps::copy_out(std::uint64_t first, const std::byte* slot, std::uint64_t count) const {
  copy(arguments_.output + first * element_bytes_, slot, count);
}

void HostCopyOps::copy(std::byte* to, const std::byte* from, std::uint64_t count) const {
  if (to == nullptr || to == from) return;
  host::find_copy_loop(isa_in_use())(to, from, count * element_bytes_, false);
}

void HostDataOps::reduce_arrays(const std::byte* const* sources, std::byte* const* targets,
                                int n_targets, std::uint64_t count) const {
  host::ReduceLoopArgs loop;
  loop.dsts = targets;
  loop.n_dsts = n_targets;
  loop.srcs = sources;
  loop.n_srcs = arguments_.ranks;
  loop.count = count;
  loop.n_ranks_for_avg = arguments_.ranks;
  loop.scalars = reinterpret_cast<const std::byte*>(scalars_.data());
  loop.streaming = streaming_;
  host::find_reduce_loop(arguments_.type, arguments_.op, isa_)(loop);
}

}  // namespace oriel::kernels
