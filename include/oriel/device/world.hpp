// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "oriel/device/comm.hpp"
#include "oriel/device/config.hpp"
#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/network.hpp"
#include "oriel/device/queue.hpp"
#include "oriel/device/wait.hpp"
#include "oriel/device/window.hpp"

/// Operations on windows of any rank of the communicator. Ranks of the own LSA team are accessed by
/// loads and stores, other ranks through a NIC's queue. If a communicator has several LSA teams,
/// the device communicator must be created with `world`.
///
/// All threads of `group` call every function with the same arguments and get the same outcome.
/// Waits end as all waits do (wait.hpp). After `aborted`, `timed_out` and `failed` the caller
/// returns and posts nothing more. After any other error nothing was posted and nothing has
/// changed.
///
/// Order: a peer that sees a signal sees the puts that the same group of this rank posted to it
/// earlier. Puts through a queue also arrive in order. There is no order between different peers.
///
/// Example: one CTA of each rank passes bytes on around the ring of all ranks. `round` counts the
/// calls from 1, and all ranks meet at a WorldBarrier between two calls.
/// ```cpp
/// ORIEL_DEVICE_FN bool pass_on(const oriel::device::CommView& comm, std::uint64_t bytes,
///                              const oriel::device::WindowView& to,
///                              const oriel::device::WindowView& from, std::uint64_t round) {
///   using namespace oriel::device;
///   const std::int32_t next = (comm.world_rank + 1) % comm.world_size;
///   const WorldPosted sent = world_put_signal(Cta{}, comm, next, to, 0, from, 0, bytes, 0);
///   if (sent.outcome != WorldOutcome::done) return false;
///   if (wait_signal(Cta{}, comm, 0, round) != WorldOutcome::done) return false;  // `to` is filled
///   return world_wait(Cta{}, comm, sent) == WorldOutcome::done;  // `from` may be overwritten
/// }
/// ```
namespace oriel::device {

/// Outcome of an operation, or the reason for its refusal.
enum class WorldOutcome : std::uint32_t {
  done = 0,          ///< posted, or complete after a wait
  aborted = 1,       ///< the communicator was aborted, or a peer has died
  timed_out = 2,     ///< ORIEL_COLLECTIVE_TIMEOUT passed
  failed = 3,        ///< a NIC reported an error; the communicator's asynchronous error names it
  no_peer = 4,       ///< the communicator has no such rank
  no_path = 5,       ///< a rank of another node, and DeviceCommOptions::world was not set
  no_window = 6,     ///< a window of another communicator, or a deregistered window
  out_of_range = 7,  ///< beyond the window, or no such signal or counter
};

/// Returns a short text, for messages of the host. Any thread; does not block and accesses no
/// memory.
inline const char* to_string(WorldOutcome outcome) {
  switch (outcome) {
    case WorldOutcome::done:
      return "done";
    case WorldOutcome::aborted:
      return "aborted";
    case WorldOutcome::timed_out:
      return "timed out";
    case WorldOutcome::failed:
      return "failed by a NIC";
    case WorldOutcome::no_peer:
      return "no such rank";
    case WorldOutcome::no_path:
      return "no path to a rank of another node";
    case WorldOutcome::no_window:
      return "not a registered window of this communicator";
    case WorldOutcome::out_of_range:
      return "out of range";
  }
  return "unknown";
}

/// Handle of a posted operation, for world_wait and world_count.
struct WorldPosted {
  WorldOutcome outcome = WorldOutcome::done;  ///< outcome of the posting
  std::int32_t peer = -1;                     ///< world rank of the peer
  std::uint64_t end = 0;  ///< index in the queue to that peer; 0: complete already
};

/// Signal in control memory. Peers of the own team add to the first word, NICs to the second.
/// Reason: atomics of the two kinds are not atomic with each other. The value of the signal is the
/// sum.
struct SignalWords {
  std::uint64_t from_team;     ///< sum of what the ranks of the own team have added
  std::uint64_t from_network;  ///< sum of what NICs have added
};

namespace detail {

/// Path to a peer: its index in the own team, or a queue.
struct WorldPath {
  WorldOutcome outcome = WorldOutcome::done;
  std::int32_t lsa_index = -1;
  const queue::QueueView* queue = nullptr;
};

ORIEL_DEVICE_FN WorldPath path_to(const CommView& comm, std::int32_t peer) {
  WorldPath path;
  if (static_cast<std::uint32_t>(peer) >= static_cast<std::uint32_t>(comm.world_size)) {
    path.outcome = WorldOutcome::no_peer;
    return path;
  }
  path.lsa_index = comm.lsa_index_of == nullptr ? -1 : comm.lsa_index_of[peer];
  if (path.lsa_index >= 0) return path;
  if (comm.network == nullptr || comm.network->queues[peer].depth == 0) {
    path.outcome = WorldOutcome::no_path;
  } else {
    path.queue = &comm.network->queues[peer];
  }
  return path;
}

constexpr ORIEL_DEVICE_FN WorldOutcome world_outcome(queue::QueueOutcome outcome) {
  // The caller has already checked that the range lies inside the region.
  return outcome == queue::QueueOutcome::refused ? WorldOutcome::out_of_range
                                                 : static_cast<WorldOutcome>(outcome);
}

/// Checks whether a queue may access `count` bytes of a window. An empty range must also start
/// inside.
ORIEL_DEVICE_FN WorldOutcome check_window(const CommView& comm, const WindowView& window,
                                          std::int32_t peer, std::uint64_t offset,
                                          std::uint64_t count) {
  // Refuses other communicators' windows, because their ranks may be in another order.
  if (window.size_bytes == 0 || window.communicator != comm.communicator) {
    return WorldOutcome::no_window;
  }
  if (!window.contains(offset, count)) return WorldOutcome::out_of_range;
  if (comm.network == nullptr) return WorldOutcome::done;
  const NetworkWindow* const keys = window.network;
  // On a CPU another thread may be clearing the word.
  constexpr Order kOrder = queue::detail::kFencesOnce ? Order::weak : Order::relaxed;
  if (keys == nullptr || Memory::load<kOrder>(&keys->network) != comm.network->number) {
    return WorldOutcome::no_window;
  }
  const queue::Region& region = peer == comm.world_rank ? keys->local : keys->peers[peer];
  const bool needs_key = comm.lsa_index_of[peer] < 0 || peer == comm.world_rank;
  return needs_key && !region.holds(offset, count) ? WorldOutcome::no_window : WorldOutcome::done;
}

template <class Group, class M>
ORIEL_DEVICE_FN void copy_bytes(Group group, void* to, const void* from, std::uint64_t bytes) {
#if ORIEL_DEVICE_CODE
  auto* const target = static_cast<unsigned char*>(to);
  const auto* const source = static_cast<const unsigned char*>(from);
  const std::uint64_t joint =
      reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  const std::uint64_t packs = (joint & 15u) == 0 ? bytes / 16 : 0;
  for (std::uint64_t i = group.rank(); i < packs; i += group.size()) {
    reinterpret_cast<Pack*>(target)[i] = reinterpret_cast<const Pack*>(source)[i];
  }
  for (std::uint64_t i = packs * 16 + group.rank(); i < bytes; i += group.size()) {
    target[i] = source[i];
  }
#else
  static_cast<void>(group);
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
#endif
}

/// Arguments common to put and get: `there` is the peer's window, `here` is this rank's.
struct WorldTransfer {
  std::int32_t peer;
  const WindowView& there;
  std::uint64_t there_offset;
  const WindowView& here;
  std::uint64_t here_offset;
  std::uint64_t bytes;

  [[nodiscard]] ORIEL_DEVICE_FN WorldOutcome check(const CommView& comm) const {
    const WorldOutcome outcome = check_window(comm, there, peer, there_offset, bytes);
    if (outcome != WorldOutcome::done) return outcome;
    return check_window(comm, here, comm.world_rank, here_offset, bytes);
  }
  [[nodiscard]] ORIEL_DEVICE_FN queue::Transfer by_queue() const {
    return {here.network->local, here_offset, there.network->peers[peer], there_offset, bytes};
  }
  /// Returns whether the bytes fit into a WQE as inline data, so that the NIC need not read them.
  [[nodiscard]] ORIEL_DEVICE_FN bool fits_wqe() const {
    return bytes != 0 && bytes <= queue::kInlineBytesMost;
  }
};

#if ORIEL_DEVICE_CODE
template <class T>
ORIEL_DEVICE_FN std::uint64_t one_word_of_each_sector(const T* object) {
  constexpr std::uint32_t kSectorWords = 4;
  const auto* const words = reinterpret_cast<const std::uint64_t*>(object);
  std::uint64_t sum = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < sizeof(T) / 8; i += kSectorWords) sum += words[i];
  return sum + words[sizeof(T) / 8 - 1];
}
#endif

/// Prefetches the data that posting to another node reads, in two rounds. Without it each of about
/// a dozen loads waits for the previous one. None of this data is in the GPU's L1 cache, because
/// every wait for a signal empties that cache.
ORIEL_DEVICE_FN void bring_near([[maybe_unused]] const CommView& comm,
                                [[maybe_unused]] const WorldTransfer& transfer) {
#if ORIEL_DEVICE_CODE
  const NetworkWindow* const there = transfer.there.network;
  const NetworkWindow* const here = transfer.here.network;
  const auto peer = static_cast<std::uint32_t>(transfer.peer);
  if (peer >= static_cast<std::uint32_t>(comm.world_size) || comm.network == nullptr ||
      comm.control_network == nullptr || there == nullptr || here == nullptr) {
    return;
  }
  const queue::QueueView* queues = comm.network->queues;
  const queue::Region* regions = there->peers;
  const queue::Region* signals = comm.control_network->peers;
  std::uint64_t sum = static_cast<std::uint32_t>(comm.lsa_index_of[peer]) + comm.network->number +
                      there->network + one_word_of_each_sector(here);
  if (regions == nullptr) return;
  sum += one_word_of_each_sector(queues + peer) + one_word_of_each_sector(regions + peer) +
         one_word_of_each_sector(signals + peer);
  keep_in_register(sum);
#endif
}

template <class Group, class M>
ORIEL_DEVICE_FN queue::Posted put_by_queue(Group group, const CommView& comm,
                                           const queue::QueueView& queue,
                                           const WorldTransfer& transfer) {
  const Driving driving(comm.network);
  if (!transfer.fits_wqe()) {
    return queue::put<Group, M>(group, queue, transfer.by_queue(), comm.wait);
  }
  return queue::put_bytes<Group, M>(
      group, queue, transfer.here.local(transfer.here_offset, transfer.bytes), transfer.bytes,
      transfer.there.network->peers[transfer.peer], transfer.there_offset, comm.wait);
}

/// Writes as put_by_queue does, then adds to the word at `signal` of the peer's control memory.
template <class Group, class M>
ORIEL_DEVICE_FN queue::Posted put_signal_by_queue(Group group, const CommView& comm,
                                                  const queue::QueueView& queue,
                                                  const WorldTransfer& transfer,
                                                  std::uint64_t signal, std::uint64_t value) {
  constexpr auto kAdd = queue::SignalOp::add;
  const Driving driving(comm.network);
  const queue::Region& signals = comm.control_network->peers[transfer.peer];
  if (!transfer.fits_wqe()) {
    return queue::put_signal<kAdd, Group, M>(group, queue, transfer.by_queue(), signals, signal,
                                             value, comm.wait);
  }
  return queue::put_bytes_signal<kAdd, Group, M>(
      group, queue, transfer.here.local(transfer.here_offset, transfer.bytes), transfer.bytes,
      transfer.there.network->peers[transfer.peer], transfer.there_offset, signals, signal, value,
      comm.wait);
}

template <class Group, class M>
ORIEL_DEVICE_FN WorldPosted world_transfer(Group group, const CommView& comm,
                                           const WorldTransfer& transfer, bool reads) {
  const WorldPath path = path_to(comm, transfer.peer);
  WorldPosted posted{path.outcome, transfer.peer, 0};
  if (posted.outcome == WorldOutcome::done) posted.outcome = transfer.check(comm);
  if (posted.outcome != WorldOutcome::done) return posted;
  if (path.queue == nullptr) {
    void* const far =
        transfer.there.lsa_peer(path.lsa_index, transfer.there_offset, transfer.bytes);
    void* const near = transfer.here.local(transfer.here_offset, transfer.bytes);
    group.sync();  // each thread copies what others of the group have written, or still read
    copy_bytes<Group, M>(group, reads ? near : far, reads ? far : near, transfer.bytes);
    group.sync();
    return posted;
  }
  queue::Posted made;
  if (reads) {
    const Driving driving(comm.network);
    made = queue::get<Group, M>(group, *path.queue, transfer.by_queue(), comm.wait);
  } else {
    made = put_by_queue<Group, M>(group, comm, *path.queue, transfer);
  }
  posted.outcome = world_outcome(made.outcome);
  posted.end = made.end;
  return posted;
}

template <class M>
ORIEL_DEVICE_FN WorldOutcome wait_in_world(const CommView& comm, std::int32_t peer,
                                           std::uint64_t end) {
  const Driving driving(comm.network);
  return world_outcome(queue::wait_complete<M>(comm.network->queues[peer], end, comm.wait));
}

}  // namespace detail

/// Writes the `bytes` bytes at `from_offset` of this rank's part of `from` to `to_offset` of the
/// peer's part of `to`. Not blocking unless the queue is full. Sends what the group's threads have
/// written before the call. After world_wait or world_flush the source may be overwritten and the
/// bytes have arrived. The bytes are visible to the peer once it sees a later signal or barrier.
template <class Group, class M = WorldMemory>
[[nodiscard]] ORIEL_DEVICE_FN WorldPosted world_put(Group group, const CommView& comm,
                                                    std::int32_t peer, const WindowView& to,
                                                    std::uint64_t to_offset, const WindowView& from,
                                                    std::uint64_t from_offset,
                                                    std::uint64_t bytes) {
  return detail::world_transfer<Group, M>(
      group, comm, detail::WorldTransfer{peer, to, to_offset, from, from_offset, bytes}, false);
}

/// Reads the `bytes` bytes at `from_offset` of the peer's part of `from` into this rank's part of
/// `to`, at `to_offset`. The bytes have arrived, and are visible to the group, after world_wait or
/// world_flush. Not blocking unless the queue is full.
template <class Group, class M = WorldMemory>
[[nodiscard]] ORIEL_DEVICE_FN WorldPosted world_get(Group group, const CommView& comm,
                                                    std::int32_t peer, const WindowView& from,
                                                    std::uint64_t from_offset, const WindowView& to,
                                                    std::uint64_t to_offset, std::uint64_t bytes) {
  return detail::world_transfer<Group, M>(
      group, comm, detail::WorldTransfer{peer, from, from_offset, to, to_offset, bytes}, true);
}

/// Adds `value` to signal `signal` (0 to comm.signals - 1) of the peer, after earlier puts to it.
/// Release: a peer that sees the signal sees the group's earlier puts to it, and its earlier stores
/// if both are in one LSA team. Not blocking unless the queue is full. Thread 0 of the group posts
/// it after a group.sync().
template <class Group, class M = WorldMemory>
[[nodiscard]] ORIEL_DEVICE_FN WorldPosted world_signal(Group group, const CommView& comm,
                                                       std::int32_t peer, std::uint32_t signal,
                                                       std::uint64_t value = 1) {
  const detail::WorldPath path = detail::path_to(comm, peer);
  WorldPosted posted{path.outcome, peer, 0};
  if (posted.outcome != WorldOutcome::done) return posted;
  if (signal >= comm.signals) {
    posted.outcome = WorldOutcome::out_of_range;
    return posted;
  }
  const std::uint64_t offset = comm.signal_offset + signal * sizeof(SignalWords);
  group.sync();
  if (path.queue == nullptr) {
    if (group.rank() == 0) {
      auto* const words = reinterpret_cast<SignalWords*>(comm.control(path.lsa_index, offset));
      M::template reduce_add<Order::release, Scope::system>(&words->from_team, value);
      ring_fence();
      comm.ring_lsa_peer_fenced(path.lsa_index);
    }
    return posted;
  }
  const detail::Driving driving(comm.network);
  const queue::Posted made = queue::atomic<queue::AtomicOp::add, Group, std::uint64_t, M>(
      group, *path.queue, comm.control_network->peers[peer],
      offset + offsetof(SignalWords, from_network), value, comm.wait);
  posted.outcome = detail::world_outcome(made.outcome);
  posted.end = made.end;
  return posted;
}

/// Executes world_put, then world_signal. A peer that sees the signal sees the bytes. A queue posts
/// both at once.
template <class Group, class M = WorldMemory>
[[nodiscard]] ORIEL_DEVICE_FN WorldPosted
world_put_signal(Group group, const CommView& comm, std::int32_t peer, const WindowView& to,
                 std::uint64_t to_offset, const WindowView& from, std::uint64_t from_offset,
                 std::uint64_t bytes, std::uint32_t signal, std::uint64_t value = 1) {
  const detail::WorldTransfer transfer{peer, to, to_offset, from, from_offset, bytes};
  detail::bring_near(comm, transfer);
  const detail::WorldPath path = detail::path_to(comm, peer);
  WorldPosted posted{path.outcome, peer, 0};
  if (posted.outcome == WorldOutcome::done && signal >= comm.signals) {
    posted.outcome = WorldOutcome::out_of_range;
  }
  if (posted.outcome == WorldOutcome::done && path.queue == nullptr) {
    posted = detail::world_transfer<Group, M>(group, comm, transfer, false);
    if (posted.outcome != WorldOutcome::done) return posted;
    return world_signal<Group, M>(group, comm, peer, signal, value);
  }
  if (posted.outcome == WorldOutcome::done) posted.outcome = transfer.check(comm);
  if (posted.outcome != WorldOutcome::done) return posted;
  const queue::Posted made = detail::put_signal_by_queue<Group, M>(
      group, comm, *path.queue, transfer,
      comm.signal_offset + signal * sizeof(SignalWords) + offsetof(SignalWords, from_network),
      value);
  posted.outcome = detail::world_outcome(made.outcome);
  posted.end = made.end;
  return posted;
}

namespace detail {

template <Order kOrder, class M>
ORIEL_DEVICE_FN std::uint64_t load_signal(const CommView& comm, std::uint32_t signal) {
  const auto* const words = reinterpret_cast<const SignalWords*>(
      comm.control(comm.lsa_rank, comm.signal_offset + signal * sizeof(SignalWords)));
  return M::template load<kOrder, Scope::system>(&words->from_team) +
         M::template load<kOrder, Scope::system>(&words->from_network);
}

}  // namespace detail

/// Returns the current value of this rank's signal, or 0 if the signal does not exist. Earlier
/// writes of the signallers are visible (acquire). Not blocking; one thread.
template <class M = WorldMemory>
[[nodiscard]] ORIEL_DEVICE_FN std::uint64_t read_signal(const CommView& comm,
                                                        std::uint32_t signal) {
  if (signal >= comm.signals) return 0;
  return detail::load_signal<Order::acquire, M>(comm, signal);
}

/// Waits until this rank's signal is at least `value`, the sum of all additions so far. Blocking.
/// Acquire: the group's threads then see the earlier writes of the signallers. `from` is the
/// awaited world rank for stall records, or -1.
template <class Group, class M = WorldMemory>
[[nodiscard]] ORIEL_DEVICE_FN WorldOutcome wait_signal(Group group, const CommView& comm,
                                                       std::uint32_t signal, std::uint64_t value,
                                                       std::int32_t from = -1) {
  if (signal >= comm.signals) return WorldOutcome::out_of_range;
  WaitOutcome mine = WaitOutcome::ready;
  if (group.rank() == 0) {
    const detail::Driving driving(comm.network);
    // Relaxed loads of both words overlap. The final acquire load provides the order.
    mine =
        wait_until<M>([&] { return detail::load_signal<Order::relaxed, M>(comm, signal) >= value; },
                      comm.wait, WaitTarget{from, value});
    static_cast<void>(read_signal<M>(comm, signal));
  }
  group.sync();
  return static_cast<WorldOutcome>(group.broadcast(static_cast<std::uint64_t>(mine)));
}

/// Waits until the posted operation is complete: written at the peer, or read and visible here.
/// Blocking. If the posting failed, returns the outcome of the posting.
template <class Group, class M = WorldMemory>
[[nodiscard]] ORIEL_DEVICE_FN WorldOutcome world_wait(Group group, const CommView& comm,
                                                      const WorldPosted& posted) {
  WorldOutcome outcome = posted.outcome;
  if (outcome != WorldOutcome::done || posted.end == 0) return outcome;
  if (group.rank() == 0) {
    const detail::Driving driving(comm.network);
    const queue::QueueView& queue = comm.network->queues[posted.peer];
    outcome = queue.gets_need_dump ? detail::world_outcome(queue::wait_visible<M>(queue, comm.wait))
                                   : detail::wait_in_world<M>(comm, posted.peer, posted.end);
  }
  group.sync();
  return static_cast<WorldOutcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
}

/// Waits until everything that any thread of this rank has posted to `peer` is complete. Blocking.
/// Bytes of gets are then visible to the group.
template <class Group, class M = WorldMemory>
[[nodiscard]] ORIEL_DEVICE_FN WorldOutcome world_flush(Group group, const CommView& comm,
                                                       std::int32_t peer) {
  const detail::WorldPath path = detail::path_to(comm, peer);
  WorldOutcome outcome = path.outcome;
  if (outcome != WorldOutcome::done) return outcome;
  group.sync();
  if (group.rank() == 0 && path.queue != nullptr) {
    const detail::Driving driving(comm.network);
    outcome = detail::world_outcome(queue::wait_visible<M>(*path.queue, comm.wait));
  } else if (group.rank() == 0) {
    M::template fence<Scope::system>();
  }
  group.sync();
  return static_cast<WorldOutcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
}

/// Waits until everything that any thread of this rank has posted to any peer is complete.
/// Blocking. Bytes of gets are then visible to the group.
template <class Group, class M = WorldMemory>
[[nodiscard]] ORIEL_DEVICE_FN WorldOutcome world_flush(Group group, const CommView& comm) {
  WorldOutcome outcome = WorldOutcome::done;
  group.sync();
  if (group.rank() == 0) {
    M::template fence<Scope::system>();
    for (std::int32_t peer = 0; comm.network != nullptr && peer < comm.world_size; ++peer) {
      const queue::QueueView& queue = comm.network->queues[peer];
      if (queue.depth == 0 || outcome != WorldOutcome::done) continue;
      const detail::Driving driving(comm.network);
      outcome = detail::world_outcome(queue::wait_visible<M>(queue, comm.wait));
    }
  }
  group.sync();
  return static_cast<WorldOutcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
}

/// Adds a posted operation to this rank's counter `counter` (0 to comm.counters - 1). If the
/// posting failed, returns the outcome of the posting. Not blocking; thread 0 does the work. Orders
/// no memory.
template <class Group, class M = WorldMemory>
[[nodiscard]] ORIEL_DEVICE_FN WorldOutcome world_count(Group group, const CommView& comm,
                                                       std::uint32_t counter,
                                                       const WorldPosted& posted) {
  if (posted.outcome != WorldOutcome::done) return posted.outcome;
  if (counter >= comm.counters) return WorldOutcome::out_of_range;
  if (posted.end == 0 || group.rank() != 0) return WorldOutcome::done;
  auto* const ends = reinterpret_cast<std::uint64_t*>(comm.control(
      comm.lsa_rank, comm.counter_offset + std::uint64_t{counter} *
                                               static_cast<std::uint32_t>(comm.world_size) *
                                               sizeof(std::uint64_t)));
  M::template fetch_max<Order::acq_rel, Scope::device>(&ends[posted.peer], posted.end);
  return WorldOutcome::done;
}

/// Waits until all operations added to the counter are complete, for all peers. Blocking. Bytes of
/// gets among them are then visible to the group.
template <class Group, class M = WorldMemory>
[[nodiscard]] ORIEL_DEVICE_FN WorldOutcome wait_counter(Group group, const CommView& comm,
                                                        std::uint32_t counter) {
  if (counter >= comm.counters) return WorldOutcome::out_of_range;
  WorldOutcome outcome = WorldOutcome::done;
  group.sync();
  if (group.rank() == 0 && comm.network != nullptr) {
    const std::uint64_t offset =
        comm.counter_offset + std::uint64_t{counter} * static_cast<std::uint32_t>(comm.world_size) *
                                  sizeof(std::uint64_t);
    const auto* const ends =
        reinterpret_cast<const std::uint64_t*>(comm.control(comm.lsa_rank, offset));
    for (std::int32_t peer = 0; peer < comm.world_size && outcome == WorldOutcome::done; ++peer) {
      const std::uint64_t end = M::template load<Order::acquire, Scope::device>(&ends[peer]);
      if (end != 0) outcome = world_wait<Thread, M>(Thread(), comm, {outcome, peer, end});
    }
  }
  group.sync();
  return static_cast<WorldOutcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
}

}  // namespace oriel::device
