// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "net/queue/completion_writer.hpp"
#include "net/queue/delivery_record.hpp"
#include "net/soft/queue_ends.hpp"

namespace oriel::net {

/// Responses that wait for the wire, in the order of execution: the first blocks the rest.
class AnswerQueue {
 public:
  std::size_t size() const { return answers_.size(); }
  bool has(std::uint64_t number) const;
  void add(WireResponse response, bool is_done_write);
  /// Sends what the wire takes. Returns whether any response has been sent.
  bool send(Wire& wire, WireAddress to);
  void forget() { answers_.clear(); }

 private:
  struct Answer {
    WireResponse response;
    bool is_done_write = false;
  };
  bool is_covered_by_next() const;

  std::deque<Answer> answers_;
};

/// The receiving half of a queue: executes the peer's requests in this side's memory and answers
/// them. Each request is executed once, in the order of numbers. A retransmitted write is answered
/// again, and a retransmitted read is read again. Old values of the last atomics are kept for their
/// retransmissions. No field of a request is trusted. Not thread-safe: the NIC's lock guards it.
class Responder {
 public:
  Responder(const QueueSetup& setup, std::uint32_t number, NicContext& nic);

  void connect(const QueuePeer& peer);
  /// Processes a request. `receives` is the number of posted receives, modulo 65536.
  void receive(WireRequest& request, std::uint16_t receives, TimePoint now);
  /// Returns whether a rendezvous read for this queue is in flight.
  bool is_reading() const;
  WirePeer peer() const { return end_.wire_peer(); }
  /// Continues accepted requests, and sends the responses.
  bool progress(TimePoint now);
  /// Makes progress. Returns whether an accepted request still has to copy from memory that the
  /// peer with this number has registered as `key`.
  bool needs(std::uint64_t process, std::uint32_t key, TimePoint now);
  /// Flushes receives that will not be used, because the queue is in error. Does nothing until
  /// accepted requests have ended. Code that waits for a receive then sees a completion. Flushes a
  /// bounded number; returns whether there were any.
  bool flush(std::uint16_t receives);
  /// Stops executing and answering. Data that has arrived counts as executed. Other accepted
  /// requests stay accepted in the record.
  void end();
  /// Returns true if a request was refused: the queue is in error.
  bool failed() const { return failed_; }

 private:
  /// A request in execution.
  struct Item {
    WireRequest request;
    WireResponse response;
    MemoryPlace place = MemoryPlace::host;
    Loading loading;
    Storing storing;
    AtomicMove atomic;
    MoveTicket ticket = 0;
    std::shared_ptr<RendezvousRead> read;
    std::uint32_t failures = 0;  // failures of the rendezvous read
    TimePoint again{};

    bool is_reading() const { return read != nullptr && (!read->is_done() || read->has_failed()); }
  };

  void receive_next(WireRequest& request, std::uint16_t receives, TimePoint now);
  void answer_again(WireRequest& request, TimePoint now);
  bool waits_for_reads(const WireRequest& request, const std::byte* at) const;
  void begin_read(Item& item, const MemoryKeys::Found& found);
  bool has_read(Item& item, TimePoint now);
  void fail_first(Syndrome syndrome);
  void execute(WireRequest& request, TimePoint now);
  bool advance(TimePoint now);
  bool begin(Item& item);
  bool begin_in(Item& item, const MemoryKeys::Found& found, CopyEngine& engine);
  bool finish(Item& item, TimePoint now);
  void fail(Syndrome syndrome);
  void answer(WireResponse response, bool is_done_write = false);
  void refuse(const WireRequest& request, Syndrome syndrome);

  ReceiveEnd end_;
  DeliveryRecord own_record_{kReadsInFlightMost};
  DeliveryRecord& record_;  // own_record_, or the record that outlives the queue
  CompletionWriter completions_;
  std::deque<Item> items_;   // started and answered in this order
  std::size_t started_ = 0;  // number of started items_
  // Number of items_ with an immediate; too large once a request has failed or been dropped.
  std::uint16_t immediates_ = 0;
  MoveTicket gpu_ticket_ = 0;  // done when all changes started in GPU memory are done
  AnswerQueue answers_;
  bool failed_ = false;
};

}  // namespace oriel::net
