// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "oriel/device/memory.hpp"
#include "oriel/device/reduce.hpp"
#include "oriel/device/rounding.hpp"

#include "kernels/algorithms/copy_payloads.hpp"
#include "kernels/algorithms/family.hpp"
#include "kernels/algorithms/fold_sources.hpp"
#include "kernels/algorithms/payload.hpp"
#include "kernels/algorithms/reduction.hpp"
#include "kernels/plan/hierarchy_plan.hpp"

namespace oriel::kernels {

namespace detail {

/// Calls the member kFold of the operations, out of line because a kernel folds in several places.
template <auto kFold, class DataOps>
ORIEL_DEVICE_SLOW void fold_out_of_line(const DataOps& ops, std::byte* to,
                                        const FoldSources& sources, std::uint64_t count) {
  (ops.*kFold)(to, sources, count);
}

/// Combines two accumulators by `op`. Out of line, because a fold tree calls it at each of its
/// levels.
template <class T>
ORIEL_DEVICE_SLOW device::Accumulator<T> combine_by(ReduceOp op, device::Accumulator<T> lower,
                                                    device::Accumulator<T> upper) {
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

}  // namespace detail

/// Moves and folds elements for Hierarchy with all threads of a group. The operation is known only
/// at run time, which costs little beside the memory accesses. Sums of up to kMostAtOnce sources go
/// 16 bytes at a time; all others go element by element. Slots are aligned to 64 bytes and hold
/// multiples of kUnitQuantum elements; the user's buffers are aligned to the element.
template <class T, class Group>
class GroupHierarchyOps {
 public:
  ORIEL_DEVICE_FN explicit GroupHierarchyOps(const HierarchyArguments& arguments)
      : arguments_(arguments),
        scales_(arguments.op == ReduceOp::premul_sum && reduces(arguments.collective)) {}

  /// Reads the scalar. Call it after grid_dependency_wait(): the previous kernel may have written
  /// the scalar.
  ORIEL_DEVICE_FN void begin() {
    if (!scales_) return;
    const void* const source =
        arguments_.scalar_pointer != nullptr ? arguments_.scalar_pointer : &arguments_.scalar_bits;
    memcpy(&scalar_, source, sizeof(T));
  }

  /// Stores `count` elements of this rank's input, from `first` on, at `to`; scales them if the
  /// operation scales.
  ORIEL_DEVICE_FN void send(std::byte* to, std::uint64_t first, std::uint64_t count) const {
    const std::byte* const from = arguments_.input + first * sizeof(T);
    if (!scales_) return copy(to, from, count);
    copy_payloads<Group, T>(to, from, count, [this](const Value& value) { return scale(value); });
  }

  ORIEL_DEVICE_FN void copy(std::byte* to, const std::byte* from, std::uint64_t count) const {
    copy_out_of_line<Group>(to, from, count * sizeof(T));
  }

  /// Folds inputs and stores accumulators. Scales the own input; the other ranks have scaled
  /// theirs.
  ORIEL_DEVICE_FN void fold_inputs(std::byte* sums, const FoldSources& sources,
                                   std::uint64_t count) const {
    detail::fold_out_of_line<&GroupHierarchyOps::fold_into_sums>(*this, sums, sources, count);
  }
  /// Folds inputs and stores finished elements. `to` may be the place of this rank's own input.
  ORIEL_DEVICE_FN void fold_all(std::byte* to, const FoldSources& sources,
                                std::uint64_t count) const {
    detail::fold_out_of_line<&GroupHierarchyOps::fold_and_finish>(*this, to, sources, count);
  }
  /// Folds sums (accumulators) and stores finished elements.
  ORIEL_DEVICE_FN void fold_sums(std::byte* to, const FoldSources& sources,
                                 std::uint64_t count) const {
    detail::fold_out_of_line<&GroupHierarchyOps::fold_and_finish_sums>(*this, to, sources, count);
  }

 private:
  using Acc = device::Accumulator<T>;
  using Buffer = UserBuffer<T, 16>;
  using Value = typename Buffer::Value;
  /// Accumulators one behind the other, in registers as in memory.
  template <std::uint64_t kCount>
  using Packed = AccPack<Acc, static_cast<int>(kCount)>;
  static constexpr int kMostAtOnce = 8;

  ORIEL_DEVICE_FN void fold_into_sums(std::byte* sums, const FoldSources& sources,
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

  ORIEL_DEVICE_FN void fold_and_finish(std::byte* to, const FoldSources& sources,
                                       std::uint64_t count) const {
    if (goes_at_once(sources)) {
      const Buffer target(to, count);
      return fold_packs<Buffer::kElements>(
          count, sources.count, [&](int k, std::uint64_t i) { return input(sources, k, i, count); },
          [&](std::uint64_t i, const auto& pack) {
            Value value;
            ORIEL_DEVICE_UNROLL
            for (int j = 0; j < Value::kCount; ++j) value.element[j] = finish(pack.element[j]);
            target.store(i, value);
          });
    }
    fold_elements(
        count, sources.count, [&](int k, std::uint64_t i) { return input(sources, k, i); },
        [&](std::uint64_t i, Acc sum) { reinterpret_cast<T*>(to)[i] = finish(sum); });
  }

  ORIEL_DEVICE_FN void fold_and_finish_sums(std::byte* to, const FoldSources& sources,
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
            ORIEL_DEVICE_UNROLL
            for (std::uint64_t j = 0; j < kElements; ++j) {
              if (i * kElements + j < count) target[i * kElements + j] = finish(pack.element[j]);
            }
          });
    }
    fold_elements(
        count, sources.count, [&](int k, std::uint64_t i) { return sum_at(k)[i]; },
        [&](std::uint64_t i, Acc sum) { target[i] = finish(sum); });
  }

  ORIEL_DEVICE_FN bool goes_at_once(const FoldSources& sources) const {
    return family_of(arguments_.op) == Family::sum && sources.count <= kMostAtOnce;
  }

  /// Folds sums by packs: `load(k, i)` returns pack i of source k; `store(i, pack)` stores the sum.
  template <std::uint64_t kCount, class Load, class Store>
  ORIEL_DEVICE_FN void fold_packs(std::uint64_t count, int sources, const Load& load,
                                  const Store& store) const {
    using Pack = Packed<kCount>;
    const auto add = [](const Pack& lower, const Pack& upper) {
      Pack sum;
      ORIEL_DEVICE_UNROLL
      for (std::uint64_t j = 0; j < kCount; ++j) {
        sum.element[j] =
            device::Reduction<T, ReduceOp::sum>{}.combine(lower.element[j], upper.element[j]);
      }
      return sum;
    };
    const std::uint64_t packs = device::divide_up(count, kCount);
    ORIEL_DEVICE_KEEP_LOOP
    for (std::uint64_t i = Group::rank(); i < packs; i += Group::size()) {
      if (sources == 2) {  // loads both first, without a stack
        const Pack lower = load(0, i);
        store(i, add(lower, load(1, i)));
      } else {
        store(i, device::fold_tree<kMostAtOnce>(
                     sources, [&](int k) { return load(k, i); }, add));
      }
    }
  }

  /// Folds by any operation and any number of sources, one element at a time.
  template <class Load, class Store>
  ORIEL_DEVICE_FN void fold_elements(std::uint64_t count, int sources, const Load& load,
                                     const Store& store) const {
    const auto combine = [this](Acc lower, Acc upper) {
      return detail::combine_by<T>(arguments_.op, lower, upper);
    };
    ORIEL_DEVICE_KEEP_LOOP
    for (std::uint64_t i = Group::rank(); i < count; i += Group::size()) {
      store(i, device::fold_tree<kMostRawSources>(
                   sources, [&](int k) { return load(k, i); }, combine));
    }
  }

  ORIEL_DEVICE_FN static void store_sums(std::byte* sums, std::uint64_t index,
                                         const Packed<Buffer::kElements>& pack) {
    constexpr std::uint64_t kPacks = sizeof(pack) / sizeof(device::Pack);
    struct Whole {
      device::Pack part[kPacks];
    };
    const auto whole = __builtin_bit_cast(Whole, pack);
    auto* const target = reinterpret_cast<device::Pack*>(sums) + index * kPacks;
    ORIEL_DEVICE_UNROLL
    for (std::uint64_t j = 0; j < kPacks; ++j) {
      device::Memory::store<device::Order::weak>(target + j, whole.part[j]);
    }
  }

  ORIEL_DEVICE_FN Packed<Buffer::kElements> input(const FoldSources& sources, int k,
                                                  std::uint64_t i, std::uint64_t count) const {
    Value value = Buffer(sources[k], count).load(i);
    if (scales_ && k == sources.own) value = scale(value);  // others have scaled theirs
    Packed<Buffer::kElements> pack;
    ORIEL_DEVICE_UNROLL
    for (int j = 0; j < Value::kCount; ++j) pack.element[j] = static_cast<Acc>(value.element[j]);
    return pack;
  }
  ORIEL_DEVICE_FN Acc input(const FoldSources& sources, int k, std::uint64_t i) const {
    const T element = reinterpret_cast<const T*>(sources[k])[i];
    return static_cast<Acc>(scales_ && k == sources.own ? scale(element) : element);
  }

  ORIEL_DEVICE_FN T scale(T element) const {
    return device::Reduction<T, ReduceOp::premul_sum>::scale(element, scalar_);
  }
  ORIEL_DEVICE_FN Value scale(Value value) const {
    ORIEL_DEVICE_UNROLL
    for (int j = 0; j < Value::kCount; ++j) value.element[j] = scale(value.element[j]);
    return value;
  }
  ORIEL_DEVICE_FN T finish(Acc sum) const {
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
