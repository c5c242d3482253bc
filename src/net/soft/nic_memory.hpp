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
  /// Engine for GPU memory; it outlives the NIC, which alone uses it. Null: the NIC serves no GPU
  /// memory. NICs that serve the same GPU memory need shares of one engine (CopyEngineShare).
  CopyEngine* gpu = nullptr;
};

/// A software NIC's lock and state without its queues: whether it works, and its wires.
class NicCore {
 public:
  NicCore(const NicCore&) = delete;
  NicCore& operator=(const NicCore&) = delete;

  /// Sets NicOptions::gpu of a NIC that has no keys yet.
  void serve_gpu(CopyEngine& engine);
  /// Adds a wire; returns its index for QueuePeer::wire.
  std::uint32_t add_wire(std::unique_ptr<Wire> wire);
  WireAddress address(std::uint32_t wire) const;

  /// Returns whether the NIC has failed, for example because it ran out of memory in the middle of
  /// its work. It then stops for good without sending anything, because work may be half done. The
  /// owner notifies the peers. Takes no lock.
  bool has_failed() const { return failed_; }
  /// Fails the NIC because another part of the network has run out of memory.
  void fail();

  /// Executes no WQE of this side's queues from now on, for good. Peers are still answered, so
  /// that none of them takes this NIC for dead. WQEs posted after the call are never executed.
  /// Takes no lock.
  void end_sending() { context_.sends_nothing = true; }
  /// Ignores requests of peers from now on, for good, as if the NIC were gone. Requests accepted
  /// before are still executed and answered, unless they would have to be refused. So keys that are
  /// deregistered after this call do not look like an error of a peer. Takes no lock.
  void end_receiving() { context_.takes_nothing = true; }

 protected:
  explicit NicCore(const NicOptions& options);
  ~NicCore() = default;
  /// Returns the start of a NIC's keys and queue numbers, random so that NICs differ.
  static std::uint32_t random_start();
  void fail_locked();
  /// Waits for copies that have started. Until it succeeds they may still touch memory.
  Status settle();

  mutable std::mutex mutex_;
  NicContext context_;

 private:
  std::atomic<bool> failed_{false};
};

/// Memory that a software NIC may access: its own by keys, and mappings of its peers' memory.
/// Deregistration waits until the memory is unused, up to a time limit. While it waits for
/// rendezvous reads, the queues continue. While it waits for the GPU's copies, they do not.
class NicMemory : public NicCore {
 public:
  Result<std::uint32_t> register_memory(const MemoryRange& range);
  /// Deregisters a key. After a successful call the NIC does not access the memory. If GPU copies
  /// have not ended, the key is gone too, but the error says that they may still be running. A WQE
  /// or a peer that still uses the key gets an error. Writes that the peer has executed and not yet
  /// answered are no error: they are retransmitted without their bytes.
  Status deregister_memory(std::uint32_t key);

  /// Maps as `range` the memory that the peer with this number (QueuePeer::process) has registered
  /// as `key`; see PeerMemory. unmap_peer_memory() first waits for accepted puts to be copied from
  /// there. Later puts from there come by the wire.
  Status map_peer_memory(std::uint64_t peer, std::uint32_t key, const MemoryRange& range);
  Status unmap_peer_memory(std::uint64_t peer, std::uint32_t key);
  /// Records whether the peer has mapped what this NIC has registered as `key`.
  void set_reached(std::uint64_t peer, std::uint32_t key, bool reached);

 protected:
  using NicCore::NicCore;
  ~NicMemory() = default;

  // Implemented by the queues, called under the lock.
  /// Makes progress. Returns whether a queue still has to copy from memory that the peer has
  /// registered as `key`.
  virtual bool needs(std::uint64_t peer, std::uint32_t key) = 0;
  /// Does a bounded amount of work. Returns whether there was any.
  virtual bool go_on() = 0;

  /// Makes progress until `any` returns false, releasing the lock in between. Returns false if the
  /// time limit came first, or if the NIC has failed.
  bool wait_until_none(std::unique_lock<std::mutex>& lock, const std::function<bool()>& any);
  void cut(const std::vector<WirePeer>& whom);

 private:
  void end_copies(std::uint64_t peer, std::uint32_t key);
  void end_reads(std::unique_lock<std::mutex>& lock, std::uint32_t key);
  bool is_rendezvous(std::uint32_t key) const;
  TimePoint timeout_end(TimePoint begin);

  std::optional<TimePoint> last_wait_;  // start of the shared time limit, see timeout_end()
};

}  // namespace oriel::net
