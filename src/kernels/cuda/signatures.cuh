// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/group.hpp"

#include "kernels/algorithms/lines.hpp"
#include "kernels/algorithms/places.hpp"
#include "kernels/plan/hierarchy_plan.hpp"

namespace oriel::kernels {

/// In each call one CTA more than the algorithm has tells those of the other ranks the call's
/// signature, and looks at theirs: lines have no room for it, and ranks that have chosen different
/// algorithms would not look at each other's. It does so while the others move data: of the 1.75 us
/// of a small call on two H200 that takes 0.05. Done by the threads that move data it took 0.85,
/// the time of one look more behind the last line.
///
/// Words have two parities, for the same reason as lines (kParities), and none of fresh memory, all
/// zero or all ones, looks like one. A rank that is in another call is reported to the host, which
/// aborts those who wait for it. The other collectives of a team look at words of their own, but
/// tell that they are none of these calls: a rank in an all-reduce sees that, and all are aborted.
class Signatures {
 public:
  static __device__ __forceinline__ bool is_here() { return blockIdx.x == data_ctas(); }
  static __device__ __forceinline__ std::uint32_t data_ctas() { return gridDim.x - kSignatureCtas; }

  static __device__ __forceinline__ void exchange(const AllReduceArguments& arguments) {
    if (threadIdx.x >= device::Warp::size() || threadIdx.y > 0) return;
    // All that does not depend on the last call comes before it has ended.
    const Places places(arguments, 0);
    const auto rank = static_cast<int>(threadIdx.x);
    const bool has_peer = rank < arguments.ranks && rank != arguments.rank;
    std::uint32_t* const counter = &places.counters()->signature;
    std::uint64_t* theirs = places.signature(rank, 0, arguments.rank);
    std::uint64_t* ours = places.signature(arguments.rank, 0, rank);
    const std::uint64_t parity = places.signature(0, 1, 0) - places.signature(0, 0, 0);
    std::uint64_t signature = static_cast<std::uint64_t>(arguments.signature) << 32;
    device::keep_in_register(theirs);
    device::keep_in_register(ours);
    device::keep_in_register(signature);

    device::grid_dependency_wait();
    device::grid_launch_dependents();
    const std::uint32_t call = device::Memory::load<device::Order::weak>(counter);
    const std::uint64_t word = signature | flag_of(call);
    if (has_peer) {
      device::Memory::store<device::Order::relaxed>(theirs + (call & 1) * parity, word);
    }
    device::Warp::sync();  // all have read it
    if (rank == 0) device::Memory::store<device::Order::weak>(counter, call + 1);
    if (has_peer) hear(arguments, ours + (call & 1) * parity, rank, call, word);
  }

  /// Tells the peers of a call that is no all-reduce. One warp, once grid_dependency_wait() has
  /// returned.
  static __device__ void tell(const HierarchyArguments& arguments) {
    const device::CommView& comm = arguments.comm;
    tell(arguments.signatures, arguments.signature_calls, arguments.signature, comm.lsa_rank,
         comm.lsa_size, [&](std::int32_t rank, std::uint64_t offset) {
           return reinterpret_cast<std::byte*>(comm.control(rank, offset));
         });
  }
  /// Does the same with offsets of the words and of their count, which is 0 where nobody is told.
  /// `at` gives what lies at an offset of a rank's scratch memory.
  template <class At>
  static __device__ void tell(std::uint64_t signatures, std::uint64_t calls,
                              std::uint32_t signature, std::int32_t own, std::int32_t ranks,
                              const At& at) {
    if (signatures == 0) return;
    auto* const counter = reinterpret_cast<std::uint32_t*>(at(own, calls));
    const std::uint32_t call = device::Memory::load<device::Order::weak>(counter);
    const auto rank = static_cast<int>(device::Warp::rank());
    if (rank < ranks && rank != own) {
      const auto slot = static_cast<std::uint64_t>((call & 1) * ranks + own);
      device::Memory::store<device::Order::relaxed>(
          reinterpret_cast<std::uint64_t*>(at(rank, signatures + slot * kSectorBytes)),
          word_of(kOtherCollective ^ signature, call));
    }
    device::Warp::sync();  // all have read it
    if (rank == 0) device::Memory::store<device::Order::weak>(counter, call + 1);
  }

 private:
  /// Above the bits of a HierarchyArguments::signature.
  static constexpr std::uint32_t kOtherCollective = 0xa5u << kSignatureBits;
  static_assert(kSignatureBits + 8 <= 32);

  static __device__ __forceinline__ std::uint64_t word_of(std::uint32_t signature,
                                                          std::uint32_t call) {
    return static_cast<std::uint64_t>(signature) << 32 | flag_of(call);
  }
  static __device__ __forceinline__ void hear(const AllReduceArguments& arguments,
                                              const std::uint64_t* slot, int rank,
                                              std::uint32_t call, std::uint64_t expected) {
    // Quick looks first: the long wait also looks at the abort word, which lies across PCIe.
    std::uint64_t word = load(slot);
#pragma unroll 1
    for (std::uint32_t poll = 0; !is_of(call, word) && poll < kQuickPolls; ++poll) {
      word = load(slot);
    }
    if (word != expected) wait_and_report(arguments, slot, rank, call, expected);
  }
  static __device__ __noinline__ void wait_and_report(const AllReduceArguments& arguments,
                                                      const std::uint64_t* slot, int rank,
                                                      std::uint32_t call, std::uint64_t expected) {
    std::uint64_t word = 0;
    const auto arrived = [&] {
      word = load(slot);
      return is_of(call, word);
    };
    const auto outcome = device::wait_until(arrived, arguments.wait, {rank, call});
    if (outcome == device::WaitOutcome::ready && word != expected) {
      report_other_call(arguments, rank);
    }
  }

  static __device__ __forceinline__ std::uint64_t load(const std::uint64_t* slot) {
    return device::Memory::load<device::Order::relaxed>(slot);
  }
  static __device__ __forceinline__ bool is_of(std::uint32_t call, std::uint64_t word) {
    return static_cast<std::uint32_t>(word) == flag_of(call);
  }
};

}  // namespace oriel::kernels
