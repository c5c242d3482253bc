// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/error.hpp"

#include "net/soft/nic_memory.hpp"
#include "net/soft/soft_queue.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {

/// A NIC in software. It reads the bytes that device code writes for an mlx5 adapter. It checks
/// what an adapter would check: index and queue inside each WQE, keys, ranges, rights, states. It
/// executes in order and writes the last byte of a CQE last. After an error, it completes one WQE
/// with that error and flushes the rest. Its atomics are atomic among NICs only, as an adapter's
/// are.
///
/// Nothing happens without progress(), which does a bounded amount of work. Waiting threads call
/// it, or a NicThread, or both. Thread safety: any thread may call anything.
///
/// Calls block only for the lock, which progress() holds briefly, and in two cases. First, calls
/// that give up GPU memory or a queue hold the lock until the GPU's copies have ended. They do so
/// for 30 s at most, and unmap_peer_memory() for 60 s. Second, memory with rendezvous reads in
/// flight is waited for without the lock; after 5 s the wire to that peer is cut. After
/// end_receiving() all these waits together take 5 s at most. After end_sending() they take 0.1 s
/// at most.
class NicSoft final : public NicMemory {
 public:
  using Options = NicOptions;
  explicit NicSoft(const Options& options = {});
  /// Drops queues that are still in use.
  ~NicSoft();

  /// Creates a queue; returns its number of 24 bits, never 0. Unless the setup names the number, it
  /// is not reused before all others have been used.
  Result<std::uint32_t> create_queue(const QueueSetup& setup);
  /// Destroys a queue. After a successful call the NIC does not access the queue's memory.
  Status destroy_queue(std::uint32_t number);
  Status to_init(std::uint32_t number);
  Status to_ready_to_receive(std::uint32_t number, const QueuePeer& peer);
  Status to_ready_to_send(std::uint32_t number);
  Status to_error(std::uint32_t number);
  /// Resets the queue from any state to how create_queue made it. Its memory has to be as it was
  /// then, and the next connection needs another epoch. WQEs that were not complete are
  /// forgotten.
  Status to_reset(std::uint32_t number);
  /// Makes all three steps to ready_to_send.
  Status connect(std::uint32_t number, const QueuePeer& peer);
  Result<QueueState> state(std::uint32_t number) const;
  /// Returns the state and, for a queue with records, their contents.
  Result<QueueReport> report(std::uint32_t number) const;
  /// Repeats the last ring of the queue's doorbell. Use it for a ring that was missed or that came
  /// before the queue could send.
  Status ring_again(std::uint32_t number);
  /// Makes the queue's peer send a response, unless requests are already pending: sends a write of
  /// zero bytes. The write needs no WQE in the ring, so it does not matter who fills the ring. If
  /// there is no response, the queue ends with transport_retry and the opcode kProbeOpcode. Not for
  /// queues with records.
  Status probe(std::uint32_t number);

  /// Works on all queues and pending messages. Returns whether there was any work; false also if
  /// another thread holds the lock, or if the NIC has failed. Throws nothing: see
  /// has_failed().
  bool progress();

  /// Returns whether every queue has executed all WQEs it was rung for, or will never execute
  /// the rest.
  bool is_idle() const;
  /// Returns whether this queue has executed all WQEs it was rung for, or will never execute the
  /// rest. Returns true if there is no such queue.
  bool is_idle(std::uint32_t number) const;

 private:
  static constexpr std::size_t kMessagesMost = 64;  // from one wire in one progress()

  bool needs(std::uint64_t peer, std::uint32_t key) override;
  bool go_on() override;
  bool turn();
  bool receive(TimePoint now);
  bool progress_queues(TimePoint now);

  QueueTable queues_;
};

}  // namespace oriel::net
