// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "oriel/error.hpp"

#include "net/soft/nic_context.hpp"

namespace oriel::net {

struct NicOptions {
  const Clock* clock = &SteadyClock::instance();  ///< outlives the NIC
  /// For memory of the GPU; outlives the NIC, which alone uses it. Null: there is none. NICs that
  /// serve the same GPU memory need shares of one mover (MoverShare).
  DataMover* gpu = nullptr;
};

/// A software NIC's lock and state, without its queues: whether it works, its wires.
class NicCore {
 public:
  NicCore(const NicCore&) = delete;
  NicCore& operator=(const NicCore&) = delete;

  /// Sets NicOptions::gpu of a NIC that has no keys yet.
  void serve_gpu(DataMover& mover);
  /// The number of the wire, for QueuePeer::wire.
  std::uint32_t add_wire(std::unique_ptr<Wire> wire);
  WireAddress address(std::uint32_t wire) const;

  /// Memory has run out in the middle of its work: it is stopped for good, without telling anybody,
  /// for nobody knows what was left half done. Whoever owns it tells the peers. Takes no lock.
  bool has_failed() const { return failed_; }
  /// Fails the NIC because another part of the network has run out of memory.
  void fail();

  /// Does nothing until resume(): no completion, no response. Messages stay where they are.
  void stop();
  void resume();
  /// Executes no entry of this side's queues from now on, for good. Peers are still answered, so
  /// that none of them takes this NIC for dead. Entries posted after this has returned are never
  /// executed. Takes no lock.
  void end_sending() { context_.sends_nothing = true; }
  /// Ignores requests of peers from now on, for good, as if the NIC were gone. Requests accepted
  /// before are still executed and answered, unless they would have to be refused. So keys that are
  /// deregistered after this look like nobody's mistake. Takes no lock.
  void end_receiving() { context_.takes_nothing = true; }

 protected:
  explicit NicCore(const NicOptions& options);
  ~NicCore() = default;
  /// Returns the start of a NIC's keys and queue numbers, random so that NICs differ.
  static std::uint32_t random_start();
  void fail_locked();
  bool is_working() const { return !context_.stopped && !failed_; }
  /// Waits for copies that have started. Until it succeeds they may still touch memory.
  Status settle();

  mutable std::mutex mutex_;
  NicContext context_;

 private:
  std::atomic<bool> failed_{false};
};

/// Memory that a software NIC may touch: its own by keys, and mappings of its peers'. Deregistering
/// waits until the memory is unused, while the queues go on.
class NicMemory : public NicCore {
 public:
  Result<std::uint32_t> register_memory(const MemoryRange& range);
  /// Once this returns the NIC does not touch the memory any more; who still names the key gets an
  /// error. No error are writes that the peer has done and has yet to answer: they are repeated
  /// without their bytes.
  Status deregister_memory(std::uint32_t key);

  /// Maps as `range` the memory that the peer with this number (QueuePeer::process) has registered
  /// as `key`; see PeerMemory. unmap_peer_memory() first has accepted puts copied from there. Later
  /// puts from there come by the wire.
  Status map_peer_memory(std::uint64_t peer, std::uint32_t key, const MemoryRange& range);
  Status unmap_peer_memory(std::uint64_t peer, std::uint32_t key);
  /// The peer has mapped what this NIC has registered as `key`, or has it no more.
  void set_reached(std::uint64_t peer, std::uint32_t key, bool reached);

 protected:
  using NicCore::NicCore;
  ~NicMemory() = default;

  // Implemented by the queues, called with the lock.
  /// Goes on; returns whether a queue has still to copy from memory that the peer has registered as
  /// `key`.
  virtual bool needs(std::uint64_t peer, std::uint32_t key) = 0;
  /// Does a bounded amount of work. Returns whether there was any.
  virtual bool go_on() = 0;

  /// Goes on meanwhile, and lets others in. False if there still are some when their time is over.
  bool wait_until_none(std::unique_lock<std::mutex>& lock, const std::function<bool()>& any);
  void cut(const std::vector<Borrower>& whom);

 private:
  void end_copies(std::uint64_t peer, std::uint32_t key);
  void end_fetches(std::unique_lock<std::mutex>& lock, std::uint32_t key);
  bool is_fetched(std::uint32_t key) const;
  TimePoint patience_ends(TimePoint begin);

  std::optional<TimePoint> last_wait_;  // the first of the last ones, as of patience_ends()
};

}  // namespace oriel::net
