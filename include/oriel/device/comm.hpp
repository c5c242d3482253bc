// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/doorbell.hpp"
#include "oriel/device/wait.hpp"
#include "oriel/device/window.hpp"

namespace oriel::device {

struct NetworkView;    // network.hpp
struct NetworkWindow;  // network.hpp

/// Of the structures that the library fills and functions of this folder, compiled into somebody's
/// kernels, use: CommView, what it points to, and the words of barriers, signals and queues. One
/// more with each change of their layout or meaning.
inline constexpr std::uint32_t kDeviceVersion = 2;

/// A communicator as a kernel sees it, passed by value. The host makes it; what it points to
/// belongs to the communicator and outlives its kernels. The same value on all ranks except where a
/// field is about "this rank".
///
/// Control memory is a small window of the communicator's own, zeroed when it is made, mapped by
/// all ranks of the LSA team at the same offset of their slots. Nobody but the functions of this
/// folder touches it.
struct CommView {
  std::int32_t world_rank = 0;  ///< this rank in the communicator
  std::int32_t world_size = 1;
  std::int32_t lsa_rank = 0;  ///< this rank's index in its LSA team
  std::int32_t lsa_size = 1;  ///< ranks of this rank's LSA team

  WaitControl wait;  ///< how this rank's waits end; wait.doorbell is its own doorbell below

  /// LSA rank -> world rank, lsa_size entries, readable by the kernel: it names culprits.
  const std::int32_t* lsa_world_ranks = nullptr;

  char* control_base = nullptr;         ///< first byte of the control memory of LSA rank 0
  std::uint32_t control_stride_4g = 0;  ///< distance of two ranks' control memories in 4 GiB
  std::uint32_t barrier_slots = 0;      ///< slots at barrier_offset: the largest number of CTAs
  /// Where LsaBarrier's slots begin in each control memory, a multiple of 64;
  /// LsaBarrierLayout::bytes_needed(lsa_size, barrier_slots) bytes.
  std::uint64_t barrier_offset = 0;
  std::uint64_t doorbell_offset = 0;  ///< CPU only: where each rank's Doorbell lies

  // For world.hpp and world_barrier.hpp: what reaches the ranks of all nodes.
  std::uint64_t communicator = 0;  ///< random, the same on all ranks and in its windows, never 0
  const std::int32_t* lsa_index_of = nullptr;  ///< world rank -> LSA rank, -1 for other teams
  /// Null where all ranks are of one LSA team, or the network was not asked for.
  const NetworkView* network = nullptr;
  const NetworkWindow* control_network = nullptr;  ///< the control memory as NICs reach it
  std::uint32_t signals = 0;                       ///< SignalWords at signal_offset
  std::uint32_t counters = 0;                      ///< of world_size words each
  std::uint64_t signal_offset = 0;
  std::uint64_t counter_offset = 0;
  std::uint32_t world_barrier_slots = 0;  ///< WorldBarrierSlots at world_barrier_offset
  std::uint64_t world_barrier_offset = 0;

  /// Address in the control memory of LSA rank `index` (0 to lsa_size - 1, not checked).
  [[nodiscard]] ORIEL_DEVICE_FN char* control(std::int32_t index, std::uint64_t offset) const {
    return advance_4g(control_base + offset, static_cast<std::uint32_t>(index) * control_stride_4g);
  }

  /// The world rank of LSA rank `index` (0 to lsa_size - 1, not checked), for a WaitTarget. Local,
  /// not blocking.
  [[nodiscard]] ORIEL_DEVICE_FN std::int32_t world_rank_of(std::int32_t index) const {
    return lsa_world_ranks == nullptr ? index : lsa_world_ranks[index];
  }

  /// Wakes the peers that sleep until this rank has stored something: on the CPU, call it after the
  /// last packet or flag of a step. Nothing in GPU code. Local, not blocking, one thread.
  ORIEL_DEVICE_FN void ring_lsa_peers() const {
#if !ORIEL_DEVICE_CODE
    ring_fence();
    for (std::int32_t i = 0; i < lsa_size; ++i) {
      if (i != lsa_rank) ring_lsa_peer_fenced(i);
    }
#endif
  }

  /// As ring_lsa_peers for one peer, after a ring_fence() of the caller.
  ORIEL_DEVICE_FN void ring_lsa_peer_fenced([[maybe_unused]] std::int32_t index) const {
#if !ORIEL_DEVICE_CODE
    ring_fenced(*reinterpret_cast<Doorbell*>(control(index, doorbell_offset)));
#endif
  }
};

}  // namespace oriel::device
