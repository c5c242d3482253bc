// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/comm.hpp"
#include "oriel/device/config.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/wait.hpp"
#include "oriel/device/world.hpp"

/// Barriers among all ranks of a communicator, on any number of nodes.
///
/// Example: gathers `bytes` bytes of every rank in the windows `to` of all ranks.
/// ```cpp
/// ORIEL_DEVICE_FN bool gather(const oriel::device::CommView& comm, std::uint64_t bytes,
///                             const oriel::device::WindowView& to,
///                             const oriel::device::WindowView& from) {
///   using namespace oriel::device;
///   const std::uint64_t at = static_cast<std::uint32_t>(comm.world_rank) * bytes;
///   for (std::int32_t peer = 0; peer < comm.world_size; ++peer) {
///     const WorldPosted posted = world_put(Cta{}, comm, peer, to, at, from, 0, bytes);
///     if (posted.outcome != WorldOutcome::done) return false;
///   }
///   return WorldBarrier<Cta>(Cta{}, comm, 0).sync() == WorldOutcome::done;  // all have arrived
/// }
/// ```
namespace oriel::device {

/// Slot of world barriers in control memory: one line that only its own rank accesses, and one word
/// per round. One rank writes each of these words.
struct WorldBarrierSlot {
  static constexpr std::uint32_t kRoundsMost = 31;  ///< enough for any number of ranks
  alignas(64) std::uint32_t epoch;  ///< number of the last barrier that this rank has completed
  /// Epoch of the latest signal of each round. The last word is unused.
  alignas(64) std::uint32_t arrived[kRoundsMost + 1];
};
static_assert(sizeof(WorldBarrierSlot) == 192);

/// Barrier among all ranks of the communicator, for the CTAs (CPU: threads) with the same slot
/// index. Collective over the world: every rank makes the same sequence of calls on a slot, one
/// session at a time. Sessions on different slots are independent. All threads of `group` call
/// every function. The device communicator was created with `world`.
///
/// Algorithm: the dissemination barrier of Hensgen, Finkel and Manber (1988), with ceil(log2 ranks)
/// rounds. In round k each rank signals the rank 2^k after it in rank order. The signal means that
/// the sender, and all ranks of which it has received signals, have arrived. A round is a store
/// within an LSA team and a NIC's write between teams, so no atomics are needed. Before the first
/// round all operations that this rank has posted to any peer are complete. A rank that learns of
/// the arrival through a third rank therefore sees them too.
///
/// The epoch is stored in control memory, as for LsaBarrier. After any outcome but `done`, further
/// calls of the session do nothing and return the same outcome.
template <class Group, class M = WorldMemory>
class WorldBarrier {
 public:
  /// Starts a session. `slot` is 0 to comm.world_barrier_slots - 1; with any other slot sync()
  /// returns `out_of_range`. `comm` outlives the session. Not blocking; accesses no memory.
  ORIEL_DEVICE_FN WorldBarrier(Group group, const CommView& comm, std::uint32_t slot)
      : group_(group), comm_(comm) {
    if (slot >= comm.world_barrier_slots) outcome_ = WorldOutcome::out_of_range;
    offset_ = comm.world_barrier_offset + slot * sizeof(WorldBarrierSlot);
  }
  WorldBarrier(const WorldBarrier&) = delete;             ///< not copyable
  WorldBarrier& operator=(const WorldBarrier&) = delete;  ///< not copyable

  /// Returns after every rank's group has arrived. Each rank then sees the earlier operations of
  /// every rank: its stores, and its puts, gets and signals to any rank (release and acquire).
  /// Blocking.
  [[nodiscard]] ORIEL_DEVICE_FN WorldOutcome sync() {
    if (outcome_ != WorldOutcome::done) return outcome_;
    WorldOutcome mine = world_flush<Group, M>(group_, comm_);
    if (mine == WorldOutcome::done && group_.rank() == 0) mine = run_rounds();
    group_.sync();
    outcome_ = static_cast<WorldOutcome>(group_.broadcast(static_cast<std::uint64_t>(mine)));
    return outcome_;
  }

 private:
  ORIEL_DEVICE_FN WorldBarrierSlot& slot_of(std::int32_t lsa_index) const {
    return *reinterpret_cast<WorldBarrierSlot*>(comm_.control(lsa_index, offset_));
  }

  ORIEL_DEVICE_FN WorldOutcome run_rounds() {
    WorldBarrierSlot& own = slot_of(comm_.lsa_rank);
    const std::uint32_t epoch = M::template load<Order::relaxed, Scope::device>(&own.epoch) + 1;
    const std::int32_t size = comm_.world_size;
    std::uint32_t round = 0;
    for (std::int64_t distance = 1; distance < size; distance *= 2, ++round) {
      const auto ahead = static_cast<std::int32_t>((comm_.world_rank + distance) % size);
      const auto behind = static_cast<std::int32_t>((comm_.world_rank - distance + size) % size);
      const WorldOutcome notified = notify(ahead, round, epoch);
      if (notified != WorldOutcome::done) return notified;
      const detail::Driving driving(comm_.network);
      const std::uint32_t* const word = &own.arrived[round];
      const WaitOutcome waited = wait_until<M>(
          [&] {
            const auto seen = M::template load<Order::acquire, Scope::system>(word);
            return static_cast<std::int32_t>(seen - epoch) >= 0;
          },
          comm_.wait, WaitTarget{behind, epoch});
      if (waited != WaitOutcome::ready) return static_cast<WorldOutcome>(waited);
    }
    M::template store<Order::relaxed, Scope::device>(&own.epoch, epoch);
    return WorldOutcome::done;
  }

  ORIEL_DEVICE_FN WorldOutcome notify(std::int32_t peer, std::uint32_t round, std::uint32_t epoch) {
    const detail::WorldPath path = detail::path_to(comm_, peer);
    if (path.outcome != WorldOutcome::done) return path.outcome;
    if (path.queue == nullptr) {
      M::template store<Order::release, Scope::system>(&slot_of(path.lsa_index).arrived[round],
                                                       epoch);
      ring_fence();
      comm_.ring_lsa_peer_fenced(path.lsa_index);
      return WorldOutcome::done;
    }
    const detail::Driving driving(comm_.network);
    const std::uint64_t word =
        offset_ + offsetof(WorldBarrierSlot, arrived) + round * sizeof(std::uint32_t);
    return detail::world_outcome(
        queue::put_value<Thread, std::uint32_t, M>(
            Thread(), *path.queue, epoch, comm_.control_network->peers[peer], word, comm_.wait)
            .outcome);
  }

  Group group_;
  const CommView& comm_;
  std::uint64_t offset_ = 0;
  WorldOutcome outcome_ = WorldOutcome::done;
};

}  // namespace oriel::device
