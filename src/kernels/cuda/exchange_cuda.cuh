// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/rounding.hpp"

#include "kernels/algorithms/copy_bytes.hpp"
#include "kernels/algorithms/exchange_streams.hpp"
#include "kernels/algorithms/lines.hpp"
#include "kernels/cuda/signatures.cuh"
#include "kernels/cuda/sub_cta.cuh"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels::detail {

/// A group: the threads of a CTA with one index in its second dimension, at least a warp. A CTA may
/// have 16 of them. Kernels of exchanges do not call __syncthreads(), which uses barrier 0.
struct StreamGroup : SubCta {
  static __device__ __forceinline__ void sync() { device::arch::barrier_sync(threadIdx.y, size()); }
  static __device__ __forceinline__ bool any(bool mine) {
    return device::arch::barrier_any(threadIdx.y, size(), mine);
  }
};

/// Group that moves a stream in launches of a form.
template <ExchangeForm kForm>
using GroupOf =
    std::conditional_t<kForm == ExchangeForm::one_gpu, StreamGroup,
                       std::conditional_t<kForm == ExchangeForm::wide, SubCta, device::Warp>>;

/// Copies bytes with the threads of a group.
template <class Group>
struct CopyOps {
  static constexpr bool kReads = false;

  __device__ void send(std::byte* slot, const std::byte* from, std::uint64_t bytes) const {
    copy_out_of_line<Group>(slot, from, bytes);
  }
  __device__ void place(std::byte* to, const std::byte* from, std::uint64_t bytes) const {
    copy_out_of_line<Group>(to, from, bytes);
  }
};

/// Sends the signature of the call to the peers. For one warp.
__device__ inline void send_to_peers(const ExchangeArguments& arguments) {
  const ChannelPlaces places(arguments);
  Signatures::send(arguments.signatures, arguments.signature_calls, arguments.signature,
                   arguments.rank, arguments.ranks, [&](std::int32_t rank, std::uint64_t offset) {
                     return places.at(rank, offset);
                   });
}

/// Assigns a stream to a group: the threads of a CTA with one index in its second dimension.
/// Consecutive streams are on different CTAs, so that senders, which come first, use all
/// multiprocessors, or those of `send_ctas`.
template <ExchangeForm kForm>
struct StreamPlace {
  std::int32_t ctas;      // CTAs that do what this one does: all, those that send, or the others
  std::int32_t group;     // index of the group among those of these CTAs
  bool is_divided;        // some CTAs only send
  bool only_sends;        // this one does
  std::int32_t run = -1;  // -1: the group has no stream
  std::int32_t channel = 0;

  __device__ explicit StreamPlace(const ExchangeArguments& arguments) {
    const auto cta = static_cast<std::int32_t>(blockIdx.x);
    constexpr bool kMayDivide = kForm == ExchangeForm::near || kForm == ExchangeForm::wide;
    const std::int32_t sending = kMayDivide ? arguments.send_ctas : 0;
    is_divided = sending > 0;
    only_sends = kMayDivide && cta < sending;
    ctas = only_sends ? sending : static_cast<std::int32_t>(gridDim.x) - sending;
    group = static_cast<std::int32_t>(threadIdx.y) * ctas + (only_sends ? cta : cta - sending);
    std::int32_t end = only_sends ? arguments.send_runs : arguments.runs;
    const std::int32_t first = is_divided && !only_sends ? arguments.send_runs : 0;
    const std::int32_t index = (first > 0 ? arguments.run[first].stream : 0) + group;
    if (index >= arguments.run[end].stream) return;
    run = first;
    while (run + 1 < end) {
      const std::int32_t middle = (run + end) / 2;
      (arguments.run[middle].stream <= index ? run : end) = middle;
    }
    channel = index - arguments.run[run].stream;
  }
};

/// A group's share of the local copies, made a piece at a time. A receiving group copies while it
/// waits; one without a stream copies at once. Sending groups have no share, unless all groups
/// send, or receivers copy all that this rank sends.
template <class Group, ExchangeForm kForm>
class LocalCopies {
 public:
  __device__ LocalCopies(const ExchangeArguments& arguments, const StreamPlace<kForm>& place)
      : arguments_(arguments) {
    if (place.only_sends) return;
    const std::int32_t groups = place.ctas * static_cast<std::int32_t>(blockDim.y);
    const bool pushes = !place.is_divided &&
                        (kForm != ExchangeForm::one_gpu || arguments.pulled_parts < kPulledParts);
    const std::int32_t senders = pushes ? arguments.run[arguments.send_runs].stream : 0;
    sharers_ = senders < groups ? groups - senders : groups;
    turn_ = groups - 1 - place.group;  // the last groups have no stream
    if (turn_ < sharers_) enter(0);
  }

  /// Copies a piece. Returns false if no piece is left.
  __device__ bool step() {
    if (at_ >= end_) return false;
    const LocalCopy& copy = arguments_.copy[item_];
    const std::uint64_t bytes = smaller(end_ - at_, kThreadBytes * Group::size());
    copy_out_of_line<Group>(copy.to + at_, copy.from + at_, bytes);
    at_ += bytes;
    if (at_ >= end_) enter(item_ + 1);
    return true;
  }

 private:
  // One batch of loads, or four on one GPU, where messages between windows need fewer polls.
  static constexpr std::uint64_t kThreadBytes = kForm == ExchangeForm::one_gpu ? 512 : 128;
  static constexpr std::uint64_t kLeastBytes = 1024;

  /// Moves to the share of copy `item`, or of the next copy in which this group has a share.
  __device__ void enter(std::int32_t item) {
    for (at_ = end_ = 0; at_ >= end_ && item < arguments_.copies; ++item) {
      const std::uint64_t bytes = arguments_.copy[item].bytes;
      const auto sharers = static_cast<std::uint64_t>(sharers_);
      const std::uint64_t share = device::round_up(device::divide_up(bytes, sharers), kLeastBytes);
      item_ = item;
      at_ = smaller(share * static_cast<std::uint64_t>(turn_), bytes);
      end_ = smaller(at_ + share, bytes);
    }
  }

  const ExchangeArguments& arguments_;
  std::int32_t sharers_ = 1;
  std::int32_t turn_ = 0;
  std::int32_t item_ = 0;
  std::uint64_t at_ = 0;
  std::uint64_t end_ = 0;
};

/// Runs one launch of an exchange, after the predecessor in the stream has ended. Runs the group's
/// stream to its end, or until a wait is given up, and makes the group's share of the local copies.
/// The last warp of CTA 0 first sends the signature of the call.
template <ExchangeForm kForm>
__device__ void run_exchange(const ExchangeArguments& arguments) {
  using Group = GroupOf<kForm>;
  const StreamPlace<kForm> place(arguments);
  LocalCopies<Group, kForm> copies(arguments, place);
  device::grid_dependency_wait();
  device::grid_launch_dependents();
  const std::uint32_t warp = device::Cta::rank() / device::Warp::size();
  if (blockIdx.x == 0 && warp == kMaxWarps - 1) send_to_peers(arguments);
  CopyOps<Group> ops;
  // No copies while waiting for packets: these waits are short, and registers would not suffice for
  // both.
  const auto copy = [&] { return kForm != ExchangeForm::packets && copies.step(); };
  if (place.run >= 0 && place.run < arguments.send_runs) {
    run_stream<Group>(arguments.wait,
                      SendStream<Group, CopyOps<Group>, device::Memory, kForm>(
                          arguments, ops, place.run, place.channel),
                      copy);
  } else if (place.run >= 0) {
    run_stream<Group>(arguments.wait,
                      ReceiveStream<Group, CopyOps<Group>, device::Memory, kForm>(
                          arguments, ops, place.run, place.channel),
                      copy);
  }
  while (copies.step()) {
  }
}

}  // namespace oriel::kernels::detail
