// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "oriel/device/queue.hpp"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "net/queue/key_aliases.hpp"
#include "net/queue/memory_keys.hpp"
#include "net/queue/queue_pages.hpp"
#include "net/soft/nic_soft.hpp"

namespace oriel::net {

/// A queue of the software NIC. It owns ring, record, doorbell, completions, indexes, marks and the
/// slots for old values, registers the latter, and makes the view that device code takes.
///
/// For CPU ranks all of it is memory of this process. For kernels of a GPU what they share among
/// themselves, indexes and marks, lies in the GPU's memory, and what the NIC reads and writes, and
/// how far receives have come, in pinned memory of the host. view() and memory() then name the same
/// words by different addresses.
///
/// Destruction ends the queue at the NIC first, then gives back key and memory; nobody may be using
/// the view any more. Move-only; the NIC outlives it. Thread safety: as for std::vector.
class SendQueue {
 public:
  struct Options {
    std::uint32_t number = 0;    ///< as QueueSetup::number
    std::uint32_t depth = 1024;  ///< blocks: a power of two, 128 to 32768
    bool gets_need_dump = false;
    std::uint32_t fetch_slots = 64;  ///< a power of two, at most depth
    std::int32_t peer = -1;          ///< world rank at the other end
    std::uint64_t base = 0;          ///< index of the first block
    std::uint32_t receives =
        0;  ///< elements for immediates of the peer: a power of two from 2, or 0
    DoorbellMode mode = DoorbellMode::strict;
    Duration answer_timeout = QueueSetup().answer_timeout;
    std::uint32_t repeats_most = QueueSetup().repeats_most;
    std::uint32_t piece_bytes = QueueSetup().piece_bytes;
    /// Of a queue that can go on at another NIC; fresh, and outliving this queue.
    QueueRecords* records = nullptr;
    /// For kernels of a GPU; outlives the queue. Null: for threads of this process.
    QueuePagesSource* pages = nullptr;
    /// Of a queue in whose entries stand the keys of other NICs than those at its ends; outlives
    /// it.
    KeyAliases* aliases = nullptr;
    /// The one here whose keys they are, if it is not the queue's own; then aliases is there too.
    NicSoft* namer = nullptr;
  };

  static Result<SendQueue> create(NicSoft& nic, const Options& options);
  SendQueue(SendQueue&&) noexcept;
  SendQueue& operator=(SendQueue&&) noexcept;
  ~SendQueue();

  std::uint32_t number() const;
  /// Connects it to the queue `peer`, which does the same in turn; both can then send.
  Status connect(const QueuePeer& peer);
  /// Valid as long as this queue.
  const device::queue::QueueView& view() const;
  /// Where the NIC finds it.
  const QueueMemory& memory() const;
  /// What the NIC was told of it: with this queue's number as its name, another
  /// NIC makes a queue of the same memory.
  const QueueSetup& setup() const;
  /// Its slots for old values, as they are registered with the NIC: their address is that which
  /// stands in entries. Another NIC registers the same.
  const MemoryRange& fetch_slots() const;

  /// When the latest of the requests that the peer has answered was sent. Any thread.
  TimePoint answered() const;

  /// Posts from now on are refused as aborted, and their waits end so. For kernels of a GPU this
  /// calls the driver, and may have to wait until another call of the process has ended.
  Status refuse_posts();

  /// Its receives, for the functions of oriel/device/queue/immediates.hpp; valid as long as this
  /// queue. Words that the host can reach too, so that host and kernels may take turns.
  const device::queue::ReceiveView& receives() const;

 private:
  struct State;
  explicit SendQueue(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace oriel::net
