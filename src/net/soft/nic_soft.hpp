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

/// A NIC in software. It reads the very bytes that device code writes for an mlx5 adapter and
/// checks what that would check: index and queue inside each entry, keys, ranges, rights, states.
/// It executes in order, completes last byte last, and answers to an error with one completion and
/// flushes the rest. Its atomics are to be taken for atomic among NICs only, as an adapter's are.
///
/// It does nothing by itself: progress() does a bounded amount of work, and is called by whoever
/// waits for it, by a NicThread, or both.
/// Thread safety: any thread may call anything. No call blocks but for the lock, which progress()
/// holds briefly; giving up memory or a queue holds it until a GPU's copies have ended, 30 s at
/// most. Memory that a peer fetches from, or that is fetched into, is waited for as well, without
/// the lock; after 5 s the wire to that peer is cut. Behind end_receiving() all of that memory
/// together is waited for so long, and behind end_sending() for 0.1 s.
class NicSoft final : public NicMemory {
 public:
  using Options = NicOptions;
  explicit NicSoft(const Options& options = {});
  /// Queues in use are simply gone.
  ~NicSoft();

  /// The queue's number: 24 bits, never 0, and unless the setup names it, not used again before all
  /// others have been.
  Result<std::uint32_t> create_queue(const QueueSetup& setup);
  /// Once this returns the NIC does not touch the queue's memory any more.
  Status destroy_queue(std::uint32_t number);
  Status to_init(std::uint32_t number);
  Status to_ready_to_receive(std::uint32_t number, const QueuePeer& peer);
  Status to_ready_to_send(std::uint32_t number);
  Status to_error(std::uint32_t number);
  /// Resets the queue from any state to how create_queue made it. Its memory has to be as it was
  /// then, and the next connection needs another epoch. Entries that were not complete are
  /// forgotten.
  Status to_reset(std::uint32_t number);
  /// All three steps to ready_to_send.
  Status connect(std::uint32_t number, const QueuePeer& peer);
  Result<QueueState> state(std::uint32_t number) const;
  /// State and, if it has any, what stands in its records.
  Result<QueueReport> report(std::uint32_t number) const;
  /// Repeats the last ring of the queue's doorbell, for a ring that was overlooked or that came
  /// before the queue could send.
  Status ring_again(std::uint32_t number);
  /// Has the queue's peer answer something, unless it has yet to answer: a write of no bytes that
  /// stands in no ring, whoever fills that. If there is no answer the queue ends with
  /// transport_retry and the opcode kProbeOpcode. Not for queues with records.
  Status probe(std::uint32_t number);

  /// Works on every queue and message that there is. Whether there was any; false also where
  /// another thread is at it. Throws nothing: see has_failed().
  bool progress();

  /// Returns whether every queue has executed all entries it was rung for.
  bool is_idle() const;
  /// Returns whether this queue has executed all entries it was rung for; true if there is no such
  /// queue.
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
