// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "oriel/error.hpp"

#include "net/soft/nic_context.hpp"
#include "net/soft/nic_faults.hpp"
#include "net/soft/soft_queue.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {

/// A NIC in software. It reads the very bytes that device code writes for an mlx5 adapter and
/// checks what that would check: index and queue inside each entry, keys, ranges, rights,
/// protection domains, states. It executes in order, completes last byte last, and answers to an
/// error with one completion and flushes the rest. Its atomics are to be taken for
/// atomic among NICs only, as an adapter's are.
///
/// It does nothing by itself: progress() does a bounded amount of work, and is called by whoever
/// waits for it, by a NicThread, or both.
/// Thread safety: any thread may call anything. No call blocks but for the lock, which progress()
/// holds briefly; giving up memory or a queue holds it until a GPU's copies have ended, 30 s at
/// most. Memory that a peer fetches from, or that is fetched into, is waited for as well, without
/// the lock; after 5 s the wire to that peer is cut. Behind end_receiving() all of that memory
/// together is waited for so long, and behind end_sending() for 0.1 s.
class NicSoft {
 public:
  struct Options {
    const Clock* clock = &SteadyClock::instance();  ///< outlives the NIC
    /// For memory of the GPU; outlives the NIC, which alone uses it. Null: there is none. NICs that
    /// serve the same GPU memory need shares of one mover (MoverShare).
    DataMover* gpu = nullptr;
    NicFaults faults;
  };

  NicSoft() : NicSoft(Options()) {}
  explicit NicSoft(Options options);
  /// Stores that were on their way land first; queues in use are simply gone.
  ~NicSoft();
  NicSoft(const NicSoft&) = delete;
  NicSoft& operator=(const NicSoft&) = delete;

  /// As Options::gpu, for a NIC that has no keys yet.
  void serve_gpu(DataMover& mover);
  /// The number of the wire, for QueuePeer::wire.
  std::uint32_t add_wire(std::unique_ptr<Wire> wire);
  WireAddress address(std::uint32_t wire) const;

  std::uint32_t create_domain();
  /// Refused while it has keys or queues.
  Status destroy_domain(std::uint32_t domain);

  Result<std::uint32_t> register_memory(std::uint32_t domain, const MemoryRange& range);
  /// Once this returns the NIC does not touch the memory any more; who still names the key gets an
  /// error. No error are writes that the peer has done and has yet to answer: they are repeated
  /// without their bytes.
  Status deregister_memory(std::uint32_t key);

  /// What the peer with this number (QueuePeer::process) has registered as `key` is mapped here as
  /// `range`, until unmap_peer_memory() returns, which first has what was accepted copied from
  /// there; see PeerMemory. Later puts from there come by the wire.
  Status map_peer_memory(std::uint64_t peer, std::uint32_t key, const MemoryRange& range);
  Status unmap_peer_memory(std::uint64_t peer, std::uint32_t key);
  /// The peer has mapped what this NIC has registered as `key`, or has it no more.
  void set_reached(std::uint64_t peer, std::uint32_t key, bool reached);

  /// The queue's number: 24 bits, never 0, and unless the setup names it, not used again before all
  /// others have been.
  Result<std::uint32_t> create_queue(const QueueSetup& setup);
  /// Once this returns the NIC does not touch the queue's memory any more.
  Status destroy_queue(std::uint32_t number);
  Status to_init(std::uint32_t number);
  Status to_ready_to_receive(std::uint32_t number, const QueuePeer& peer);
  Status to_ready_to_send(std::uint32_t number);
  Status to_error(std::uint32_t number);
  /// From everywhere, back to how create_queue made it: its memory has to be as it was then, and
  /// the next connection needs another epoch. What was not complete is forgotten.
  Status to_reset(std::uint32_t number);
  /// All three steps to ready_to_send.
  Status connect(std::uint32_t number, const QueuePeer& peer);
  Result<QueueState> state(std::uint32_t number) const;
  /// State and, if it has any, what stands in its records.
  Result<QueueReport> report(std::uint32_t number) const;
  /// As if what the queue's doorbell says were rung once more: after a ring that was overlooked,
  /// or that came before the queue could send.
  Status ring_again(std::uint32_t number);
  /// Has the queue's peer answer something, unless it has yet to answer: a write of no bytes that
  /// stands in no ring, whoever fills that. If there is no answer the queue ends with
  /// transport_retry and the opcode kProbeOpcode. Not for queues with records.
  Status probe(std::uint32_t number);

  /// Works on every queue and message that there is. Whether there was any; false also where
  /// another thread is at it. Throws nothing: see has_failed().
  bool progress();

  /// Memory has run out, and for more than a moment, in the middle of its work: as after die(), for
  /// nobody knows what was left half done. Whoever owns it tells the peers. Takes no lock.
  bool has_failed() const { return failed_; }
  /// The same for what another could not do, for want of memory.
  void fail();

  /// Does nothing until resume(): no completion, no response. Messages stay where they are.
  void stop();
  void resume();
  /// As a NIC that has lost its power: for good, and without telling anybody.
  void die();
  /// From now on begins nothing of what this side's queues were or are told of, for good; peers are
  /// still answered, so that none of them takes this NIC for dead. What was posted after this has
  /// returned is never executed. Takes no lock.
  void end_sending() { context_.sends_nothing = true; }
  /// From now on is deaf to what peers ask for, for good, as if it were gone: what was accepted
  /// before is still done and answered, unless it would have to be refused. So that the keys which
  /// are given back behind this look like nobody's mistake. Takes no lock.
  void end_receiving() { context_.takes_nothing = true; }
  void set_faults(NicFaults faults);
  NicCounters counters() const;
  /// Whether every queue has executed what it was told of.
  bool is_idle() const;
  /// The same of one queue; true if there is none of this number.
  bool is_idle(std::uint32_t number) const;

 private:
  static constexpr std::size_t kMessagesMost = 64;  // from one wire in one progress()

  bool turn();
  void fail_locked();
  SoftQueue* find(std::uint32_t number);
  Result<SoftQueue*> find_or_fail(std::uint32_t number);
  bool receive(TimePoint now);
  bool progress_queues(TimePoint now);
  void end_copies(std::uint64_t peer, std::uint32_t key);
  void end_fetches(std::unique_lock<std::mutex>& lock, std::uint32_t key);
  bool is_fetched(std::uint32_t key) const;
  bool wait_until_none(std::unique_lock<std::mutex>& lock, const std::function<bool()>& any);
  TimePoint patience_ends(TimePoint begin);
  void cut(const std::vector<Borrower>& whom);
  Status settle();

  mutable std::mutex mutex_;
  NicContext context_;
  std::map<std::uint32_t, std::unique_ptr<SoftQueue>> queues_;
  std::vector<SoftQueue*> order_;
  std::uint32_t last_number_ = 0;
  std::optional<TimePoint> last_wait_;  // the first of the last ones, as of patience_ends()
  std::atomic<bool> failed_{false};
};

}  // namespace oriel::net
