// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "oriel/error.hpp"

#include "net/queue/doorbell_reader.hpp"
#include "net/soft/nic_context.hpp"
#include "net/soft/requester.hpp"
#include "net/soft/responder.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {

/// One queue pair of the software NIC: its state, its doorbell and both halves. The NIC's lock
/// guards it; nothing blocks.
class SoftQueue {
 public:
  SoftQueue(const QueueSetup& setup, std::uint32_t number, NicContext& nic);

  QueueState state() const { return state_; }
  std::uint32_t number() const { return number_; }
  const QueueSetup& setup() const { return setup_; }

  /// Each call makes one step, and fails in any other state. Rings before ready_to_send are
  /// dropped.
  Status to_init();
  Status to_ready_to_receive(const QueuePeer& peer);
  Status to_ready_to_send();
  /// Goes to `error` from any state; incomplete WQEs are flushed.
  Status to_error();
  /// Goes to `error`, and no longer serves or answers the peer. Used for a queue that continues on
  /// another NIC.
  void fence();

  /// Treats the doorbell's current value as a new ring.
  void ring_again() { doorbell_.forget(); }
  /// Implements NicSoft::probe().
  Status probe();
  QueueReport report() const;
  /// Returns whether everything that producers have announced is complete, or will never be.
  bool is_idle() const;

  /// Does a bounded amount of work. Returns whether there was any.
  bool progress(TimePoint now);
  void receive(WireRequest& request, TimePoint now);
  void receive(WireResponse& response, TimePoint now);
  bool is_reading() const { return responder_.is_reading(); }
  WirePeer reads_from() const { return responder_.peer(); }
  /// Forwards to Responder::needs().
  bool needs(std::uint64_t process, std::uint32_t key, TimePoint now) {
    return responder_.needs(process, key, now);
  }

 private:
  Status expect(QueueState state, const char* next) const;
  bool poll_doorbell();

  const QueueSetup setup_;
  const std::uint32_t number_;
  NicContext& nic_;
  QueueState state_ = QueueState::reset;
  DoorbellReader doorbell_;
  Requester requester_;
  Responder responder_;
};

/// The queues of a NIC by their 24-bit numbers. Not thread-safe: the NIC's lock guards it.
class QueueTable {
 public:
  /// `start` determines the sequence of numbers.
  explicit QueueTable(std::uint32_t start) : last_number_(start & 0xffffff) {}

  /// Creates a queue with the number that the setup names, or with a number not used lately.
  Result<std::uint32_t> add(const QueueSetup& setup, NicContext& nic);
  void remove(SoftQueue* queue);
  /// Replaces the queue by a fresh one with the same setup and number.
  void replace(SoftQueue* queue, NicContext& nic);
  /// Returns null if there is no queue of this number.
  SoftQueue* find(std::uint32_t number) const;
  Result<SoftQueue*> find_or_fail(std::uint32_t number) const;
  /// Returns the queues in the order of their creation.
  const std::vector<SoftQueue*>& all() const { return order_; }

 private:
  std::map<std::uint32_t, std::unique_ptr<SoftQueue>> queues_;
  std::vector<SoftQueue*> order_;
  std::uint32_t last_number_;
};

const char* to_string(QueueState state);

/// Checks that a queue can be made with this setup.
Status check_setup(const QueueSetup& setup);

}  // namespace oriel::net
