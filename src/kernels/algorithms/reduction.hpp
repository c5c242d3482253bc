// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "oriel/device/reduce.hpp"

#include "kernels/algorithms/family.hpp"
#include "kernels/plan/arguments.hpp"

namespace oriel::kernels {

/// Elements of one accumulator type that are combined one by one.
template <class Acc, int kCount>
struct AccPack {
  Acc element[kCount];
};

/// Elements in registers, `kBytes` bytes in all.
template <class T, int kBytes>
struct alignas(kBytes) Payload {
  static constexpr int kCount = kBytes / static_cast<int>(sizeof(T));
  T element[kCount];
};

/// Bytes of a Payload as words. Serves payloads that stay in registers across a branch. There, each
/// element of a Payload would take a register of its own, whatever its size.
template <int kBytes>
struct alignas(kBytes) PayloadWords {
  std::uint32_t word[kBytes / 4];
};

namespace detail {
// Out of line: a division is long, and averages are rare.
template <class T>
ORIEL_DEVICE_SLOW T finish_average(device::Accumulator<T> sum, int ranks) {
  return device::Reduction<T, ReduceOp::avg>{ranks}.finish(sum);
}
}  // namespace detail

/// Arithmetic of one call on elements of type T. scale() works only after begin().
template <class T, Family kFamily>
class FamilyReduction {
 public:
  using Acc = device::Accumulator<T>;

  ORIEL_DEVICE_FN explicit FamilyReduction(const AllReduceArguments& arguments)
      : ranks_(arguments.ranks),
        average_(arguments.operation.average),
        scaled_(arguments.operation.scaled),
        maximum_(arguments.operation.maximum) {}

  /// Reads the scalar of a pre-multiplied sum. On a GPU, call it after grid_dependency_wait(): the
  /// previous kernel of the stream may have written the device scalar.
  ORIEL_DEVICE_FN void begin(const AllReduceArguments& arguments) {
    if (kFamily == Family::sum && scaled_) {
      const void* source =
          arguments.scalar_pointer != nullptr ? arguments.scalar_pointer : &arguments.scalar_bits;
      memcpy(&scalar_, source, sizeof(T));
    }
  }

  /// Returns whether scale() changes anything.
  ORIEL_DEVICE_FN bool scales() const { return kFamily == Family::sum && scaled_; }
  /// Returns whether finish() divides.
  ORIEL_DEVICE_FN bool averages() const { return kFamily == Family::sum && average_; }

  /// Returns this rank's input as other ranks receive it: scaled, if the operation scales.
  template <int kBytes>
  ORIEL_DEVICE_FN Payload<T, kBytes> scale(Payload<T, kBytes> payload) const {
    if constexpr (kFamily == Family::sum) {
      if (scaled_) {
        ORIEL_DEVICE_UNROLL
        for (int i = 0; i < Payload<T, kBytes>::kCount; ++i) {
          payload.element[i] =
              device::Reduction<T, ReduceOp::premul_sum>::scale(payload.element[i], scalar_);
        }
      }
    }
    return payload;
  }

  template <int kBytes>
  ORIEL_DEVICE_FN auto load(const Payload<T, kBytes>& payload) const {
    AccPack<Acc, Payload<T, kBytes>::kCount> pack;
    if constexpr (std::is_same_v<T, device::bf16>) {
      // Takes one instruction per element: a bf16 is the upper half of its float.
      const auto words = __builtin_bit_cast(PayloadWords<kBytes>, payload);
      ORIEL_DEVICE_UNROLL
      for (int i = 0; i < kBytes / 4; ++i) {
        pack.element[2 * i] = __builtin_bit_cast(float, words.word[i] << 16);
        pack.element[2 * i + 1] = __builtin_bit_cast(float, words.word[i] & 0xffff0000u);
      }
    } else {
      ORIEL_DEVICE_UNROLL
      for (int i = 0; i < Payload<T, kBytes>::kCount; ++i) {
        pack.element[i] = device::Reduction<T, ReduceOp::sum>{}.load(payload.element[i]);
      }
    }
    return pack;
  }

  template <int kCount>
  ORIEL_DEVICE_FN AccPack<Acc, kCount> combine(const AccPack<Acc, kCount>& lower,
                                               const AccPack<Acc, kCount>& upper) const {
    AccPack<Acc, kCount> result;
    ORIEL_DEVICE_UNROLL
    for (int i = 0; i < kCount; ++i)
      result.element[i] = combine(lower.element[i], upper.element[i]);
    return result;
  }

  template <int kBytes, int kCount>
  ORIEL_DEVICE_FN Payload<T, kBytes> finish(const AccPack<Acc, kCount>& pack) const {
    Payload<T, kBytes> payload;
    ORIEL_DEVICE_UNROLL
    for (int i = 0; i < kCount; ++i) payload.element[i] = finish(pack.element[i]);
    return payload;
  }

 private:
  ORIEL_DEVICE_FN Acc combine(Acc lower, Acc upper) const {
    if constexpr (kFamily == Family::sum) {
      return device::Reduction<T, ReduceOp::sum>{}.combine(lower, upper);
    } else if constexpr (kFamily == Family::product) {
      return device::Reduction<T, ReduceOp::prod>{}.combine(lower, upper);
    } else {
      return maximum_ ? device::Reduction<T, ReduceOp::max>{}.combine(lower, upper)
                      : device::Reduction<T, ReduceOp::min>{}.combine(lower, upper);
    }
  }

  ORIEL_DEVICE_FN T finish(Acc acc) const {
    if (kFamily == Family::sum && average_) {
      return detail::finish_average<T>(acc, ranks_);
    }
    return device::Reduction<T, ReduceOp::sum>{}.finish(acc);
  }

  int ranks_;
  bool average_;
  bool scaled_;
  bool maximum_;
  T scalar_{};
};

/// Folds the payloads of all ranks along the tree over the rank index. Calls `payload_of(r)` once
/// for each rank, in rank order. kRanks is 2, 4 or 8, or 0 for a number known at run time.
template <int kRanks, int kBytes, class Reduction, class PayloadOf>
ORIEL_DEVICE_FN auto fold_ranks(const Reduction& reduction, int ranks,
                                const PayloadOf& payload_of) {
  const auto leaf = [&](int rank) { return reduction.load(payload_of(rank)); };
  const auto combine = [&](const auto& lower, const auto& upper) {
    return reduction.combine(lower, upper);
  };
#if ORIEL_DEVICE_CODE
  constexpr int kMaxRanks = 8;  // ranks of one node; a deeper stack would cost registers
#else
  constexpr int kMaxRanks = 64;
#endif
  if constexpr (kRanks > 0) {
    return reduction.template finish<kBytes>(device::fold_tree_fixed<kRanks>(leaf, combine));
  } else {
    return reduction.template finish<kBytes>(device::fold_tree<kMaxRanks>(ranks, leaf, combine));
  }
}

}  // namespace oriel::kernels
