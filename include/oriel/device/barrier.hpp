// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/comm.hpp"
#include "oriel/device/config.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/rounding.hpp"
#include "oriel/device/wait.hpp"

/// Barriers among the ranks of one LSA team, and their layout in control memory.
///
/// Example: each rank of the team writes a number into its window, then reads the next rank's.
/// ```cpp
/// #include "oriel/device/group.hpp"
/// ORIEL_DEVICE_FN bool read_next(const oriel::device::CommView& comm, std::uint32_t* mine,
///                                const std::uint32_t* next, std::uint32_t& number) {
///   using namespace oriel::device;
///   LsaBarrier<Cta> barrier(Cta{}, comm, 0);  // one CTA of each rank; more CTAs take more slots
///   if (Cta::rank() == 0) *mine = number;
///   if (barrier.sync() != WaitOutcome::ready) return false;  // every rank has written
///   number = *next;
///   return barrier.sync() == WaitOutcome::ready;  // every rank has read, so all may write again
/// }
/// ```
namespace oriel::device {

/// Selects the unicast path: each rank signals its arrival by one store to each peer.
struct UnicastPath {};
/// Selects one multicast store to all peers. No such barrier exists: the type is only declared, so
/// kernels that use it do not compile.
struct MulticastPath;

/// Layout of barrier slots in control memory. A slot starts with a 64-byte line for the epoch,
/// which only its own rank accesses. An inbox of one word per LSA rank follows, in separate lines.
/// Slots of different CTAs therefore share neither a 32-byte sector nor a 64-byte cache line. All
/// functions only compute: any thread may call them, they do not block and access no memory.
struct LsaBarrierLayout {
  static constexpr std::size_t kLineBytes = 64;  ///< alignment of the epoch and of the inbox

  /// Returns the bytes of one slot of a team of `lsa_size` ranks, a multiple of kLineBytes.
  static constexpr ORIEL_DEVICE_FN std::size_t slot_bytes(std::int32_t lsa_size) {
    const std::size_t inbox_bytes = static_cast<std::size_t>(lsa_size) * sizeof(std::uint32_t);
    return kLineBytes + round_up(inbox_bytes, kLineBytes);
  }
  /// Returns the bytes of control memory for `slots` slots of a team of `lsa_size` ranks.
  static constexpr ORIEL_DEVICE_FN std::size_t bytes_needed(std::int32_t lsa_size,
                                                            std::uint32_t slots) {
    return slot_bytes(lsa_size) * slots;
  }
};

/// Barrier among the ranks of the LSA team, for the CTAs (CPU: threads) with the same slot index.
/// Collective over the team: every rank makes the same sequence of calls on a slot, one session at
/// a time. Sessions on different slots are independent. All threads of `group` call every function.
///
/// Algorithm: a barrier of one round, like NCCL's LSA barrier. Every rank stores to one word of
/// every peer, and polls one word per peer.
///
/// The epoch (number of the barrier) is stored in control memory, not in a kernel argument. Kernels
/// in replayed CUDA graphs and plain launches therefore continue one sequence. Epochs are compared
/// modulo 2^32, so wrap-around needs no special handling. A kernel launched with programmatic
/// dependence calls grid_dependency_wait() before it creates a session.
///
/// If wait() returns anything but `ready`, further calls of the session do nothing and return the
/// same outcome. The caller then returns without publishing anything.
template <class Group, class M = Memory, class Path = UnicastPath>
class LsaBarrier;

/// LsaBarrier with one store to each peer, the only path that exists. See the template above.
template <class Group, class M>
class LsaBarrier<Group, M, UnicastPath> {
 public:
  /// Starts a session. `slot` is 0 to comm.barrier_slots - 1, usually the CTA's index. With any
  /// other slot nothing is written and wait() returns `aborted`. `comm` outlives the session. Not
  /// blocking; reads one word of memory in relaxed order.
  ORIEL_DEVICE_FN LsaBarrier(Group group, const CommView& comm, std::uint32_t slot)
      : group_(group), comm_(comm) {
    if (slot >= comm.barrier_slots) {
      outcome_ = WaitOutcome::aborted;
      return;
    }
    slot_offset_ = comm.barrier_offset + slot * LsaBarrierLayout::slot_bytes(comm.lsa_size);
    epoch_ = M::template load<Order::relaxed, Scope::device>(epoch_word());
  }
  LsaBarrier(const LsaBarrier&) = delete;             ///< not copyable
  LsaBarrier& operator=(const LsaBarrier&) = delete;  ///< not copyable

  /// Signals to every peer that this rank's group has arrived. Not blocking except for an initial
  /// group.sync().
  /// release: earlier accesses of any thread of the group are visible to a peer after its
  /// wait(acquire).
  /// relaxed: orders nothing, not even earlier reads of memory that a peer will overwrite.
  /// Each arrive is followed by one wait before the next arrive.
  ORIEL_DEVICE_FN void arrive(Order order = Order::release) {
    if (outcome_ != WaitOutcome::ready) return;
    group_.sync();
    ++epoch_;
    for (std::int32_t i = rank(); i < comm_.lsa_size; i += size()) {
      if (i == comm_.lsa_rank) continue;
      std::uint32_t* to = inbox(i, comm_.lsa_rank);
      if (order == Order::relaxed) {
        M::template store<Order::relaxed, Scope::system>(to, epoch_);
      } else {
        M::template store<Order::release, Scope::system>(to, epoch_);
      }
    }
    if (rank() == 0) {
      M::template store<Order::relaxed, Scope::device>(epoch_word(), epoch_);
      comm_.ring_lsa_peers();
    }
  }

  /// Waits until every peer's group has arrived at the same barrier. Blocking; ends with a
  /// group.sync(). For acquire see arrive(). All threads of the group get the same outcome.
  [[nodiscard]] ORIEL_DEVICE_FN WaitOutcome wait(Order order = Order::acquire) {
    if (outcome_ != WaitOutcome::ready) return outcome_;
    WaitOutcome mine = WaitOutcome::ready;
    for (std::int32_t i = rank(); i < comm_.lsa_size && mine == WaitOutcome::ready; i += size()) {
      if (i != comm_.lsa_rank) mine = wait_for(i, order);
    }
    if (group_.any(mine != WaitOutcome::ready)) {
      outcome_ = group_.any(mine == WaitOutcome::timed_out) ? WaitOutcome::timed_out
                                                            : WaitOutcome::aborted;
    }
    return outcome_;
  }

  /// Calls arrive, then wait. acq_rel: each rank sees the earlier accesses of every rank. release
  /// and acquire order only one half, and relaxed orders nothing.
  [[nodiscard]] ORIEL_DEVICE_FN WaitOutcome sync(Order order = Order::acq_rel) {
    const bool releases = order == Order::acq_rel || order == Order::release;
    const bool acquires = order == Order::acq_rel || order == Order::acquire;
    arrive(releases ? Order::release : Order::relaxed);
    return wait(acquires ? Order::acquire : Order::relaxed);
  }

 private:
  ORIEL_DEVICE_FN std::int32_t rank() const { return static_cast<std::int32_t>(group_.rank()); }
  ORIEL_DEVICE_FN std::int32_t size() const { return static_cast<std::int32_t>(group_.size()); }

  ORIEL_DEVICE_FN std::uint32_t* epoch_word() const {
    return reinterpret_cast<std::uint32_t*>(comm_.control(comm_.lsa_rank, slot_offset_));
  }
  ORIEL_DEVICE_FN std::uint32_t* inbox(std::int32_t owner, std::int32_t from) const {
    const std::uint64_t offset = slot_offset_ + LsaBarrierLayout::kLineBytes +
                                 static_cast<std::uint32_t>(from) * sizeof(std::uint32_t);
    return reinterpret_cast<std::uint32_t*>(comm_.control(owner, offset));
  }

  ORIEL_DEVICE_FN WaitOutcome wait_for(std::int32_t peer, Order order) const {
    const std::uint32_t* from = inbox(comm_.lsa_rank, peer);
    const WaitTarget target{comm_.world_rank_of(peer), epoch_};
    const auto arrived = [this](std::uint32_t seen) {
      return static_cast<std::int32_t>(seen - epoch_) >= 0;
    };
    if (order == Order::relaxed) {
      return wait_until<M>(
          [&] { return arrived(M::template load<Order::relaxed, Scope::system>(from)); },
          comm_.wait, target);
    }
    return wait_until<M>(
        [&] { return arrived(M::template load<Order::acquire, Scope::system>(from)); }, comm_.wait,
        target);
  }

  Group group_;
  const CommView& comm_;
  std::uint64_t slot_offset_ = 0;
  std::uint32_t epoch_ = 0;
  WaitOutcome outcome_ = WaitOutcome::ready;
};

}  // namespace oriel::device
