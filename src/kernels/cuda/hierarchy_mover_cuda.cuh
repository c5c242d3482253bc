// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "oriel/device/memory.hpp"
#include "oriel/device/reduce.hpp"

#include "kernels/algorithms/family.hpp"
#include "kernels/algorithms/fold_sources.hpp"
#include "kernels/algorithms/payload.hpp"
#include "kernels/algorithms/reduction.hpp"
#include "kernels/plan/hierarchy_plan.hpp"

namespace oriel::kernels {

/// Moves and folds elements for Hierarchy with all threads of a group. The operation is known at
/// run time only, which costs little beside the memory accesses; sums of up to kMostAtOnce sources
/// go 16 bytes at a time, all else by elements. Slots are aligned to 64 bytes and hold whole
/// multiples of kUnitQuantum elements; the user's buffers are aligned to the element.
template <class T, class Group>
class CudaHierarchyMover {
 public:
  __device__ explicit CudaHierarchyMover(const HierarchyArguments& arguments)
      : arguments_(arguments),
        scales_(arguments.op == ReduceOp::premul_sum && reduces(arguments.collective)) {}

  /// After grid_dependency_wait(): the kernel before this one may have made the scalar.
  __device__ void begin() {
    if (!scales_) return;
    const void* const source =
        arguments_.scalar_pointer != nullptr ? arguments_.scalar_pointer : &arguments_.scalar_bits;
    memcpy(&scalar_, source, sizeof(T));
  }

  /// Elements of this rank's input, scaled if the operation scales.
  __device__ void send(std::byte* to, std::uint64_t first, std::uint64_t count) const {
    const std::byte* const from = arguments_.input + first * sizeof(T);
    if (!scales_) return copy(to, from, count);
    const Buffer source(from, count);
    const Buffer target(to, count);
    for (std::uint64_t i = Group::rank(); i < source.payloads(); i += Group::size()) {
      target.store(i, scale(source.load(i)));
    }
  }

  __device__ __noinline__ void copy(std::byte* to, const std::byte* from,
                                    std::uint64_t count) const {
    const auto addresses =
        reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
    const std::uint64_t whole = addresses % 16 == 0 ? count / Buffer::kElements : 0;
    const auto* const source = reinterpret_cast<const device::Pack*>(from);
    auto* const target = reinterpret_cast<device::Pack*>(to);
    constexpr int kUnroll = 4;
    const std::uint64_t threads = Group::size();
    for (std::uint64_t i = Group::rank(); i < whole; i += kUnroll * threads) {
      device::Pack packs[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u * threads < whole)
          packs[u] = device::Memory::load_streaming(source + i + u * threads);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u * threads < whole)
          device::Memory::store<device::Order::weak>(target + i + u * threads, packs[u]);
      }
    }
    const Buffer rest_from(from, count);
    const Buffer rest_to(to, count);
#pragma unroll 1
    for (std::uint64_t i = whole + Group::rank(); i < rest_from.payloads(); i += threads) {
      rest_to.store(i, rest_from.load(i));
    }
  }

  /// The fold of inputs, left as accumulators. The own one is not yet scaled.
  __device__ __noinline__ void fold_inputs(std::byte* sums, const FoldSources& sources,
                                           std::uint64_t count) const {
    if (goes_at_once(sources)) {
      return fold_packs<Buffer::kElements>(
          count, sources.count, [&](int k, std::uint64_t i) { return input(sources, k, i, count); },
          [&](std::uint64_t i, const auto& pack) { store_sums(sums, i, pack); });
    }
    fold_elements(
        count, sources.count, [&](int k, std::uint64_t i) { return input(sources, k, i); },
        [&](std::uint64_t i, Acc sum) { reinterpret_cast<Acc*>(sums)[i] = sum; });
  }

  /// The fold of inputs, finished. It may be stored where this rank's own input lies.
  __device__ __noinline__ void fold_all(std::byte* to, const FoldSources& sources,
                                        std::uint64_t count) const {
    if (goes_at_once(sources)) {
      const Buffer target(to, count);
      return fold_packs<Buffer::kElements>(
          count, sources.count, [&](int k, std::uint64_t i) { return input(sources, k, i, count); },
          [&](std::uint64_t i, const auto& pack) {
            Value value;
#pragma unroll
            for (int j = 0; j < Value::kCount; ++j) value.element[j] = finish(pack.lane[j]);
            target.store(i, value);
          });
    }
    fold_elements(
        count, sources.count, [&](int k, std::uint64_t i) { return input(sources, k, i); },
        [&](std::uint64_t i, Acc sum) { reinterpret_cast<T*>(to)[i] = finish(sum); });
  }

  /// The fold of sums, finished.
  __device__ __noinline__ void fold_sums(std::byte* to, const FoldSources& sources,
                                         std::uint64_t count) const {
    auto* const target = reinterpret_cast<T*>(to);
    const auto sum_at = [&](int k) { return reinterpret_cast<const Acc*>(sources[k]); };
    if (goes_at_once(sources)) {
      constexpr std::uint64_t kElements = 16 / sizeof(Acc);
      return fold_packs<kElements>(
          count, sources.count,
          [&](int k, std::uint64_t i) {
            return __builtin_bit_cast(Packed<kElements>,
                                      device::Memory::load_streaming(
                                          reinterpret_cast<const device::Pack*>(sum_at(k)) + i));
          },
          [&](std::uint64_t i, const auto& pack) {
#pragma unroll
            for (std::uint64_t j = 0; j < kElements; ++j) {
              if (i * kElements + j < count) target[i * kElements + j] = finish(pack.lane[j]);
            }
          });
    }
    fold_elements(
        count, sources.count, [&](int k, std::uint64_t i) { return sum_at(k)[i]; },
        [&](std::uint64_t i, Acc sum) { target[i] = finish(sum); });
  }

 private:
  using Acc = device::Accumulator<T>;
  using Buffer = UserBuffer<T, 16>;
  using Value = typename Buffer::Value;
  /// As stored in memory too: accumulators one behind the other.
  template <std::uint64_t kCount>
  using Packed = AccPack<Acc, static_cast<int>(kCount)>;
  static constexpr int kMostAtOnce = 8;

  __device__ bool goes_at_once(const FoldSources& sources) const {
    return family_of(arguments_.op) == Family::sum && sources.count <= kMostAtOnce;
  }

  /// `load(k, i)` is pack i of source k; `store(i, pack)` takes the sum.
  template <std::uint64_t kCount, class Load, class Store>
  __device__ void fold_packs(std::uint64_t count, int sources, const Load& load,
                             const Store& store) const {
    using Pack = Packed<kCount>;
    const auto add = [](const Pack& lower, const Pack& upper) {
      Pack sum;
#pragma unroll
      for (std::uint64_t j = 0; j < kCount; ++j) {
        sum.lane[j] = device::Reduction<T, ReduceOp::sum>{}.combine(lower.lane[j], upper.lane[j]);
      }
      return sum;
    };
    const std::uint64_t packs = (count + kCount - 1) / kCount;
#pragma unroll 1
    for (std::uint64_t i = Group::rank(); i < packs; i += Group::size()) {
      if (sources == 2) {  // both at once, without a stack
        const Pack lower = load(0, i);
        store(i, add(lower, load(1, i)));
      } else {
        store(i, device::fold_tree<kMostAtOnce>(
                     sources, [&](int k) { return load(k, i); }, add));
      }
    }
  }

  /// The same for every operation and any number of sources, one element at a time.
  template <class Load, class Store>
  __device__ void fold_elements(std::uint64_t count, int sources, const Load& load,
                                const Store& store) const {
    const auto combine = [this](Acc lower, Acc upper) {
      return combine_by(arguments_.op, lower, upper);
    };
#pragma unroll 1
    for (std::uint64_t i = Group::rank(); i < count; i += Group::size()) {
      store(i, device::fold_tree<kMostRawSources>(
                   sources, [&](int k) { return load(k, i); }, combine));
    }
  }

  // Out of line: the tree has a place for it at each of its levels.
  static __device__ __noinline__ Acc combine_by(ReduceOp op, Acc lower, Acc upper) {
    switch (op) {
      case ReduceOp::prod:
        return device::Reduction<T, ReduceOp::prod>{}.combine(lower, upper);
      case ReduceOp::min:
        return device::Reduction<T, ReduceOp::min>{}.combine(lower, upper);
      case ReduceOp::max:
        return device::Reduction<T, ReduceOp::max>{}.combine(lower, upper);
      default:
        return device::Reduction<T, ReduceOp::sum>{}.combine(lower, upper);
    }
  }

  static __device__ void store_sums(std::byte* sums, std::uint64_t index,
                                    const Packed<Buffer::kElements>& pack) {
    constexpr std::uint64_t kPacks = sizeof(pack) / sizeof(device::Pack);
    struct Whole {
      device::Pack part[kPacks];
    };
    const auto whole = __builtin_bit_cast(Whole, pack);
    auto* const target = reinterpret_cast<device::Pack*>(sums) + index * kPacks;
#pragma unroll
    for (std::uint64_t j = 0; j < kPacks; ++j) {
      device::Memory::store<device::Order::weak>(target + j, whole.part[j]);
    }
  }

  __device__ Packed<Buffer::kElements> input(const FoldSources& sources, int k, std::uint64_t i,
                                             std::uint64_t count) const {
    Value value = Buffer(sources[k], count).load(i);
    if (scales_ && k == sources.own) value = scale(value);  // others have scaled theirs
    Packed<Buffer::kElements> pack;
#pragma unroll
    for (int j = 0; j < Value::kCount; ++j) pack.lane[j] = static_cast<Acc>(value.element[j]);
    return pack;
  }
  __device__ Acc input(const FoldSources& sources, int k, std::uint64_t i) const {
    const T element = reinterpret_cast<const T*>(sources[k])[i];
    return static_cast<Acc>(scales_ && k == sources.own ? scale(element) : element);
  }

  __device__ T scale(T element) const {
    return device::Reduction<T, ReduceOp::premul_sum>::scale(element, scalar_);
  }
  __device__ Value scale(Value value) const {
#pragma unroll
    for (int j = 0; j < Value::kCount; ++j) value.element[j] = scale(value.element[j]);
    return value;
  }
  __device__ T finish(Acc sum) const {
    if (arguments_.op == ReduceOp::avg) {
      return detail::finish_average<T>(sum, arguments_.comm.world_size);
    }
    return device::Reduction<T, ReduceOp::sum>{}.finish(sum);
  }

  const HierarchyArguments& arguments_;
  bool scales_;
  T scalar_{};
};

}  // namespace oriel::kernels
