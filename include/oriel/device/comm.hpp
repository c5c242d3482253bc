// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/doorbell.hpp"
#include "oriel/device/wait.hpp"
#include "oriel/device/window.hpp"

/// View of a communicator in a kernel. All functions are local and do not block, and any thread may
/// call them. All functions but ring_lsa_peers() and ring_lsa_peer_fenced() order no memory, and
/// read only what the host wrote before the kernel.
///
/// Example: waits for a word that LSA rank `peer` stores, then answers.
/// ```cpp
/// ORIEL_DEVICE_FN bool answer(const oriel::device::CommView& comm, std::int32_t peer,
///                             const std::uint32_t* request, std::uint32_t* reply) {
///   using namespace oriel::device;
///   const auto arrived = [&] { return Memory::load<Order::acquire>(request) == 1; };
///   const WaitTarget target{comm.world_rank_of(peer), 1};
///   if (wait_until(arrived, comm.wait, target) != WaitOutcome::ready) return false;
///   Memory::store<Order::release>(reply, 1u);
///   comm.ring_lsa_peers();  // the peer may sleep if it is a CPU rank
///   return true;
/// }
/// ```
namespace oriel::device {

struct NetworkView;    // network.hpp
struct NetworkWindow;  // network.hpp

/// Version of the structures and functions of this folder that user kernels use. Covers CommView,
/// its pointees, and the words of barriers, signals and queues. Incremented with each change of
/// their layout or meaning.
inline constexpr std::uint32_t kDeviceVersion = 2;

/// View of a communicator in a kernel, passed by value. The host creates it. Its pointees belong to
/// the DeviceComm or the communicator, and outlive its kernels. Fields are the same on all ranks
/// unless they describe "this rank".
///
/// Control memory is a small window of the communicator itself, initially zero. All ranks of the
/// LSA team map it at the same offset of their slots. Only the functions of this folder access it.
struct CommView {
  std::int32_t world_rank = 0;  ///< this rank in the communicator
  std::int32_t world_size = 1;  ///< ranks of the communicator
  std::int32_t lsa_rank = 0;    ///< this rank's index in its LSA team
  std::int32_t lsa_size = 1;    ///< ranks of this rank's LSA team

  WaitControl wait;  ///< how this rank's waits end; wait.doorbell is this rank's doorbell

  /// Maps LSA rank to world rank: lsa_size entries, readable by the kernel. Identifies the peer in
  /// stall records. Null: both ranks are equal.
  const std::int32_t* lsa_world_ranks = nullptr;

  char* control_base = nullptr;         ///< first byte of the control memory of LSA rank 0
  std::uint32_t control_stride_4g = 0;  ///< distance of two ranks' control memories in 4 GiB
  std::uint32_t barrier_slots = 0;      ///< slots at barrier_offset: the largest number of CTAs
  /// Offset of LsaBarrier's slots in each control memory, a multiple of 64. The slots take
  /// LsaBarrierLayout::bytes_needed(lsa_size, barrier_slots) bytes.
  std::uint64_t barrier_offset = 0;
  std::uint64_t doorbell_offset = 0;  ///< CPU only: offset of each rank's Doorbell

  // Fields for world.hpp and world_barrier.hpp, which access the ranks of all nodes.
  std::uint64_t communicator = 0;  ///< random, the same on all ranks and in its windows, never 0
  const std::int32_t* lsa_index_of = nullptr;  ///< world rank -> LSA rank, -1 for other teams
  /// Null if all ranks are in one LSA team, or if the network was not requested.
  const NetworkView* network = nullptr;
  const NetworkWindow* control_network = nullptr;  ///< the control memory as registered with NICs
  std::uint32_t signals = 0;                       ///< number of SignalWords at signal_offset
  std::uint32_t counters = 0;                      ///< at counter_offset, world_size words each
  std::uint64_t signal_offset = 0;                 ///< in bytes, in each control memory
  std::uint64_t counter_offset = 0;                ///< in bytes, in each control memory
  std::uint32_t world_barrier_slots = 0;   ///< number of WorldBarrierSlots at world_barrier_offset
  std::uint64_t world_barrier_offset = 0;  ///< in bytes, in each control memory

  /// Returns the address `offset` bytes from the begin of the control memory of LSA rank `index` (0
  /// to lsa_size - 1, not checked).
  [[nodiscard]] ORIEL_DEVICE_FN char* control(std::int32_t index, std::uint64_t offset) const {
    return advance_4g(control_base + offset, static_cast<std::uint32_t>(index) * control_stride_4g);
  }

  /// Returns the world rank of LSA rank `index` (0 to lsa_size - 1, not checked), for a WaitTarget.
  [[nodiscard]] ORIEL_DEVICE_FN std::int32_t world_rank_of(std::int32_t index) const {
    return lsa_world_ranks == nullptr ? index : lsa_world_ranks[index];
  }

  /// Wakes the LSA peers that sleep until this rank has stored something. On the CPU, call it after
  /// the last packet or flag of a step. Does nothing in GPU code. Begins with a ring_fence(), which
  /// orders the step's stores before the look for sleepers. Not blocking; one thread.
  ORIEL_DEVICE_FN void ring_lsa_peers() const {
#if !ORIEL_DEVICE_CODE
    ring_fence();
    for (std::int32_t i = 0; i < lsa_size; ++i) {
      if (i != lsa_rank) ring_lsa_peer_fenced(i);
    }
#endif
  }

  /// Wakes LSA peer `index` as ring_lsa_peers does, but in relaxed order. The caller has called
  /// ring_fence() before.
  ORIEL_DEVICE_FN void ring_lsa_peer_fenced([[maybe_unused]] std::int32_t index) const {
#if !ORIEL_DEVICE_CODE
    ring_fenced(*reinterpret_cast<Doorbell*>(control(index, doorbell_offset)));
#endif
  }
};

}  // namespace oriel::device
