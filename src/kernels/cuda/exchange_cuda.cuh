// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"

#include "kernels/algorithms/exchange_streams.hpp"
#include "kernels/algorithms/family.hpp"
#include "kernels/algorithms/payload.hpp"
#include "kernels/algorithms/reduction.hpp"
#include "kernels/cuda/copy_bytes.cuh"
#include "kernels/cuda/signatures.cuh"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels::detail {

/// Moves bytes with the threads of one warp.
struct CopyMover {
  using Group = device::Warp;

  __device__ explicit CopyMover(const ExchangeArguments&) {}
  __device__ void send(std::byte* slot, const std::byte* from, std::uint64_t bytes) const {
    copy_bytes<Group>(slot, from, bytes);
  }
  __device__ void receive(std::byte* to, const std::byte* slot, std::uint64_t bytes) const {
    copy_bytes<Group>(to, slot, bytes);
  }
};

/// Moves bytes likewise, and combines elements of type T.
template <class T, Family kFamily>
class FoldMover {
 public:
  using Group = device::Warp;

  __device__ explicit FoldMover(const ExchangeArguments& arguments)
      : arguments_(arguments), reduction_(arguments.operation, arguments.ranks) {
    reduction_.begin(arguments.operation);
  }

  __device__ void send(std::byte* slot, const std::byte* from, std::uint64_t bytes) const {
    if (arguments_.operation.op != ReduceOp::premul_sum) {
      return copy_bytes<Group>(slot, from, bytes);
    }
    const Buffer source(from, bytes / sizeof(T));
    const Buffer target(slot, bytes / sizeof(T));
    for (std::uint64_t i = Group::rank(); i < source.payloads(); i += Group::size()) {
      target.store(i, reduction_.scale(source.load(i)));
    }
  }

  /// `slot_of_rank` gives where a peer's elements are; slots are aligned to a payload.
  template <class Slot>
  __device__ void fold(std::byte* to, const std::byte* own, const Slot& slot_of_rank,
                       std::uint64_t bytes) const {
    const std::uint64_t count = bytes / sizeof(T);
    const Buffer input(own, count);
    const Buffer output(to, count);
    const int ranks = arguments_.ranks;
    const device::Pack* slots[kMostRanks];
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) {
      const bool is_peer = rank < ranks && rank != arguments_.rank;
      slots[rank] = is_peer ? reinterpret_cast<const device::Pack*>(slot_of_rank(rank)) : nullptr;
    }
    for (std::uint64_t i = Group::rank(); i < input.payloads(); i += Group::size()) {
      Value values[kMostRanks];
#pragma unroll
      for (int rank = 0; rank < kMostRanks; ++rank) {
        if (slots[rank] != nullptr) {
          values[rank] = __builtin_bit_cast(Value, device::Memory::load_streaming(slots[rank] + i));
        }
      }
      const Value mine = reduction_.scale(input.load(i));
      device::TreeFold<AccPack<device::Accumulator<T>, Value::kCount>, kMostRanks> fold;
      const auto combine = [&](const auto& lower, const auto& upper) {
        return reduction_.combine(lower, upper);
      };
#pragma unroll
      for (int rank = 0; rank < kMostRanks; ++rank) {
        if (rank < ranks) {
          fold.push(reduction_.load(slots[rank] != nullptr ? values[rank] : mine), combine);
        }
      }
      output.store(i, reduction_.template finish<16>(fold.finish(combine)));
    }
  }

 private:
  using Buffer = UserBuffer<T, 16>;
  using Value = typename Buffer::Value;
  static constexpr int kMostRanks = 8;

  const ExchangeArguments& arguments_;
  FamilyReduction<T, kFamily> reduction_;
};

/// A grid as one group, for copies that wait for nobody.
struct WholeGrid {
  static __device__ std::uint32_t rank() { return blockIdx.x * blockDim.x + threadIdx.x; }
  static __device__ std::uint32_t size() { return gridDim.x * blockDim.x; }
};

__device__ inline void make_local_copies(const ExchangeArguments& arguments) {
  for (std::int32_t i = 0; i < arguments.copies; ++i) {
    const LocalCopy& copy = arguments.copy[i];
    copy_bytes<WholeGrid>(copy.to, copy.from, copy.bytes);
  }
}

/// Which stream a warp runs.
struct WarpPlace {
  std::int32_t run = -1;  // none
  std::int32_t lane = 0;
  bool folds = false;

  __device__ explicit WarpPlace(const ExchangeArguments& arguments) {
    const auto stream =
        static_cast<std::int32_t>(blockIdx.x * kMaxWarps + threadIdx.x / device::Warp::size());
    const std::int32_t folding = arguments.run[arguments.runs].stream;
    folds = stream >= folding;
    lane = stream - folding;
    if (folds) return;
    std::int32_t end = arguments.runs;
    run = 0;
    while (run + 1 < end) {
      const std::int32_t middle = (run + end) / 2;
      (arguments.run[middle].stream <= stream ? run : end) = middle;
    }
    lane = stream - arguments.run[run].stream;
  }
};

/// Runs the warp's stream of messages to its end, or until a wait is given up.
template <class Mover, bool kFar = false>
__device__ void run_messages(const ExchangeArguments& arguments, Mover& mover,
                             const WarpPlace& place) {
  using Warp = device::Warp;
  if (place.run < 0) return;
  if (place.run < arguments.send_runs) {
    run_stream<Warp>(arguments.wait, SendStream<Warp, Mover, device::Memory, kFar>(
                                         arguments, mover, place.run, place.lane));
  } else if constexpr (std::is_same_v<Mover, CopyMover>) {
    run_stream<Warp>(arguments.wait, ReceiveStream<Warp, Mover, device::Memory, kFar>(
                                         arguments, mover, place.run, place.lane));
  }
}

/// Begins any exchange: in order behind the kernel before it.
__device__ inline void begin_exchange(const ExchangeArguments& arguments) {
  device::grid_dependency_wait();
  device::grid_launch_dependents();
  Signatures::tell(arguments);
  make_local_copies(arguments);
}

template <class T, Family kFamily>
__global__ void __launch_bounds__(kMaxThreads, 1)
    fold_kernel(const __grid_constant__ ExchangeArguments arguments) {
  begin_exchange(arguments);
  using Mover = FoldMover<T, kFamily>;
  Mover mover(arguments);
  const WarpPlace place(arguments);
  if (place.folds) {
    if (arguments.fold.bytes == 0) return;
    run_stream<device::Warp>(arguments.wait,
                             FoldStream<device::Warp, Mover>(arguments, mover, place.lane));
  } else {
    run_messages(arguments, mover, place);
  }
}

}  // namespace oriel::kernels::detail
