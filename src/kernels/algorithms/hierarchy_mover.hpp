// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "oriel/device/config.hpp"
#include "oriel/device/reduce.hpp"

#include "kernels/hierarchy.hpp"

namespace oriel::kernels {

/// Moves and folds elements for Hierarchy with all threads of a group, one element at a time: for
/// GPUs, where type and operation are known when the kernel is compiled, and as a plain reference
/// on CPUs, whose ranks use HostHierarchyMover. Buffers are aligned to the element.
template <class T, ReduceOp kOp, class Group>
class ElementMover {
 public:
  using Reduction = device::Reduction<T, kOp>;
  using Acc = typename Reduction::Acc;

  ORIEL_DEVICE_FN explicit ElementMover(const HierarchyArguments& arguments)
      : arguments_(arguments) {}

  ORIEL_DEVICE_FN void begin() { memcpy(&scalar_, &arguments_.scalar_bits, sizeof(T)); }

  ORIEL_DEVICE_FN void send(std::byte* to, std::uint64_t first, std::uint64_t count) const {
    const T* const from = reinterpret_cast<const T*>(arguments_.input) + first;
    const bool scales = kOp == ReduceOp::premul_sum && reduces(arguments_.collective);
    each(count, [&](std::uint64_t i) {
      reinterpret_cast<T*>(to)[i] = scales ? Reduction::scale(from[i], scalar_) : from[i];
    });
  }

  ORIEL_DEVICE_FN void copy(std::byte* to, const std::byte* from, std::uint64_t count) const {
    each(count, [&](std::uint64_t i) {
      reinterpret_cast<T*>(to)[i] = reinterpret_cast<const T*>(from)[i];
    });
  }

  template <class Source>
  ORIEL_DEVICE_FN void fold_inputs(std::byte* sums, int sources, const Source& source, int own,
                                   std::uint64_t count) const {
    each(count, [&](std::uint64_t i) {
      reinterpret_cast<Acc*>(sums)[i] =
          fold(sources, [&](int k) { return input(source, k, own, i); });
    });
  }

  template <class Source>
  ORIEL_DEVICE_FN void fold_all(std::byte* to, int sources, const Source& source, int own,
                                std::uint64_t count) const {
    each(count, [&](std::uint64_t i) {
      reinterpret_cast<T*>(to)[i] =
          finish(fold(sources, [&](int k) { return input(source, k, own, i); }));
    });
  }

  template <class Source>
  ORIEL_DEVICE_FN void fold_sums(std::byte* to, int sources, const Source& source,
                                 std::uint64_t count) const {
    each(count, [&](std::uint64_t i) {
      reinterpret_cast<T*>(to)[i] =
          finish(fold(sources, [&](int k) { return reinterpret_cast<const Acc*>(source(k))[i]; }));
    });
  }

 private:
  template <class Action>
  static ORIEL_DEVICE_FN void each(std::uint64_t count, const Action& action) {
    for (std::uint64_t i = Group::rank(); i < count; i += Group::size()) action(i);
  }

  template <class Source>
  ORIEL_DEVICE_FN Acc input(const Source& source, int k, int own, std::uint64_t i) const {
    const T element = reinterpret_cast<const T*>(source(k))[i];
    const bool scales = kOp == ReduceOp::premul_sum && k == own;  // others have scaled theirs
    return static_cast<Acc>(scales ? Reduction::scale(element, scalar_) : element);
  }
  template <class Leaf>
  ORIEL_DEVICE_FN Acc fold(int sources, const Leaf& leaf) const {
    const auto combine = [](Acc lower, Acc upper) { return Reduction{}.combine(lower, upper); };
    return device::fold_tree<kMostRawSources>(sources, leaf, combine);
  }
  ORIEL_DEVICE_FN T finish(Acc sum) const {
    return Reduction{arguments_.comm.world_size}.finish(sum);
  }

  const HierarchyArguments& arguments_;
  T scalar_{};
};

}  // namespace oriel::kernels
