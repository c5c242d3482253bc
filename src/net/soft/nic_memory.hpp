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

  /// As NicOptions::gpu, for a NIC that has no keys yet.
  void serve_gpu(DataMover& mover);
  /// The number of the wire, for QueuePeer::wire.
  std::uint32_t add_wire(std::unique_ptr<Wire> wire);
  WireAddress address(std::uint32_t wire) const;
  NicCounters counters() const;

  /// Memory has run out in the middle of its work: as after die(), for nobody knows what was left
  /// half done. Whoever owns it tells the peers. Takes no lock.
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

 protected:
  explicit NicCore(const NicOptions& options);
  ~NicCore() = default;
  /// Where a NIC's keys and queue numbers begin: elsewhere than those of others.
  static std::uint32_t random_start();
  void fail_locked();
  bool is_working() const { return !context_.stopped && !context_.dead; }
  /// Until it returns well what has begun to move may still touch memory.
  Status settle();

  mutable std::mutex mutex_;
  NicContext context_;

 private:
  std::atomic<bool> failed_{false};
};

/// What a software NIC may touch: its memory by keys, and mappings of its peers'. Memory that is
/// given up is first waited for, while the queues go on.
class NicMemory : public NicCore {
 public:
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

 protected:
  using NicCore::NicCore;
  ~NicMemory() = default;

  // Of the queues, all with the lock.
  virtual bool has_queue_in(std::uint32_t domain) const = 0;
  /// Goes on; whether a queue has still to copy from what the peer has registered as `key`.
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
