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

/// A queue of the software NIC. It owns ring, doorbell record, doorbell, completions, indexes,
/// marks and the slots for old values. It registers the slots, and makes the view that device code
/// takes.
///
/// For CPU ranks all of it is memory of this process. For GPU kernels, the indexes and marks that
/// only kernels share lie in GPU memory. The words that the NIC reads and writes, and the position
/// of receives, lie in pinned host memory. view() and memory() then name the same words by
/// different addresses.
///
/// The destructor ends the queue at the NIC first, then deregisters the key and frees the memory.
/// The view must be out of use then. Move-only; the NIC outlives it. Thread safety: as for
/// std::vector.
class SendQueue {
 public:
  struct Options {
    std::uint32_t number = 0;    ///< see QueueSetup::number
    std::uint32_t depth = 1024;  ///< WQEBBs: a power of two, 128 to 32768
    bool gets_need_dump = false;
    std::uint32_t fetch_slots = 64;  ///< a power of two, at most depth
    std::int32_t peer = -1;          ///< world rank at the other end
    std::uint64_t base = 0;          ///< index of the first WQEBB
    std::uint32_t receives = 0;  ///< CQEs for immediates of the peer: a power of two from 2, or 0
    DoorbellMode mode = DoorbellMode::strict;
    Duration answer_timeout = QueueSetup().answer_timeout;
    std::uint32_t retransmissions_most = QueueSetup().retransmissions_most;
    std::uint32_t piece_bytes = QueueSetup().piece_bytes;
    /// For a queue that can continue on another NIC; must be fresh and outlive this queue.
    QueueRecords* records = nullptr;
    /// For GPU kernels; outlives the queue. If null, threads of this process use the queue.
    QueuePagesSource* pages = nullptr;
    /// For a queue whose WQEs carry keys of other NICs than those at its ends; outlives it.
    KeyAliases* aliases = nullptr;
    /// The local NIC whose keys are in the WQEs, if it is not the queue's own NIC. Requires
    /// `aliases`.
    NicSoft* namer = nullptr;
  };

  static Result<SendQueue> create(NicSoft& nic, const Options& options);
  SendQueue(SendQueue&&) noexcept;
  SendQueue& operator=(SendQueue&&) noexcept;
  ~SendQueue();

  std::uint32_t number() const;
  /// Connects the queue to `peer`, which has to connect in turn; then both can send.
  Status connect(const QueuePeer& peer);
  /// Returns the view, which is valid as long as this queue.
  const device::queue::QueueView& view() const;
  /// Returns the addresses at which the NIC accesses the queue.
  const QueueMemory& memory() const;
  /// Returns the setup that the NIC was given. With this queue's number as `named`, another NIC can
  /// make a queue of the same memory.
  const QueueSetup& setup() const;
  /// Returns the slots for old values as registered with the NIC; WQEs contain their address.
  /// Another NIC registers the same range.
  const MemoryRange& fetch_slots() const;

  /// Returns the send time of the latest request that the peer has answered. Any thread may call
  /// it.
  TimePoint answered() const;

  /// Refuses posts from now on as aborted; waits for them end likewise. For GPU kernels this calls
  /// the driver, which may wait until another call of the process has ended.
  Status refuse_posts();

  /// Returns the receives, for the functions of oriel/device/queue/immediates.hpp; valid as long as
  /// this queue. Host and kernels can access these words, and may take turns.
  const device::queue::ReceiveView& receives() const;

 private:
  struct State;
  explicit SendQueue(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace oriel::net
