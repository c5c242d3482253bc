// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"

#include "kernels/algorithms/exchange_streams.hpp"
#include "kernels/cuda/copy_bytes.cuh"
#include "kernels/cuda/signatures.cuh"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels::detail {

/// Moves bytes with the threads of one warp.
struct CopyMover {
  using Group = device::Warp;

  __device__ void send(std::byte* slot, const std::byte* from, std::uint64_t bytes) const {
    copy_bytes<Group>(slot, from, bytes);
  }
  __device__ void place(std::byte* to, const std::byte* from, std::uint64_t bytes) const {
    copy_bytes<Group>(to, from, bytes);
  }
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

/// Tells the peers which call this is. One warp.
__device__ inline void tell_peers(const ExchangeArguments& arguments) {
  const ChannelPlaces places(arguments);
  Signatures::tell(arguments.signatures, arguments.signature_calls, arguments.signature,
                   arguments.rank, arguments.ranks, [&](std::int32_t rank, std::uint64_t offset) {
                     return places.at(rank, offset);
                   });
}

/// Which stream a warp runs: the first ones are on different CTAs, so that senders, which come
/// first, use all multiprocessors.
struct WarpPlace {
  std::int32_t run = -1;  // none
  std::int32_t lane = 0;

  __device__ explicit WarpPlace(const ExchangeArguments& arguments) {
    const auto stream =
        static_cast<std::int32_t>(threadIdx.x / device::Warp::size() * gridDim.x + blockIdx.x);
    std::int32_t end = arguments.runs;
    if (stream >= arguments.run[end].stream) return;
    run = 0;
    while (run + 1 < end) {
      const std::int32_t middle = (run + end) / 2;
      (arguments.run[middle].stream <= stream ? run : end) = middle;
    }
    lane = stream - arguments.run[run].stream;
  }
};

/// Begins in order behind the kernel before this one. Runs the warp's stream of messages to its
/// end, or until a wait is given up. The last warp of CTA 0, which seldom has a stream, tells the
/// peers of the call. Local copies are made while messages are on their way: by senders afterwards.
template <bool kFar>
__device__ void run_exchange(const ExchangeArguments& arguments) {
  using Warp = device::Warp;
  const WarpPlace place(arguments);
  device::grid_dependency_wait();
  device::grid_launch_dependents();
  if (blockIdx.x == 0 && threadIdx.x / Warp::size() == kMaxWarps - 1) tell_peers(arguments);
  CopyMover mover;
  const bool sends = place.run >= 0 && place.run < arguments.send_runs;
  if (sends) {
    run_stream<Warp>(arguments.wait, SendStream<Warp, CopyMover, device::Memory, kFar>(
                                         arguments, mover, place.run, place.lane));
  }
  make_local_copies(arguments);
  if (place.run < 0 || sends) return;
  run_stream<Warp>(arguments.wait, ReceiveStream<Warp, CopyMover, device::Memory, kFar>(
                                       arguments, mover, place.run, place.lane));
}

}  // namespace oriel::kernels::detail
