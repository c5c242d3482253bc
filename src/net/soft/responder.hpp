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

/// Answers that wait for the wire, in the order of execution: the first holds up the rest.
class AnswerQueue {
 public:
  std::size_t size() const { return answers_.size(); }
  bool has(std::uint64_t number) const;
  void add(WireResponse response, bool is_done_write);
  /// Returns whether any has gone out.
  bool send(Wire& wire, WireAddress to);
  void forget() { answers_.clear(); }

 private:
  struct Answer {
    WireResponse response;
    bool is_done_write = false;
  };
  bool is_said_by_next() const;

  std::deque<Answer> answers_;
};

/// The receiving half of a queue: does in this side's memory what the peer's entries ask for, and
/// answers. Each request is executed once, in the order of their numbers, however often it comes:
/// a repeated write is answered again, a repeated read read again, and the old values of the last
/// atomics are kept for those that are repeated.
/// Nothing that a request says is trusted. Not thread-safe: the NIC's lock guards it.
class Responder {
 public:
  Responder(const QueueSetup& setup, std::uint32_t number, NicContext& nic);

  void connect(const QueuePeer& peer);
  /// `receives`: how many receives have been posted, modulo 65536.
  void receive(WireRequest& request, std::uint16_t receives, TimePoint now);
  /// Whether anything is still being fetched for it.
  bool is_fetching() const;
  Borrower peer() const { return end_.borrower(); }
  /// Goes on with what was accepted, and sends the answers.
  bool progress(TimePoint now);
  /// Goes on; whether something that was accepted is still to be copied from what the peer with
  /// this number has registered as `key`.
  bool needs(std::uint64_t process, std::uint32_t key, TimePoint now);
  /// The queue is in error: receives that nothing will use are completed as flushed, once what was
  /// begun is done, so that whoever waits for one hears of it. A bounded number. Whether there were
  /// any.
  bool flush(std::uint16_t receives);
  /// Does and says nothing any more. What has landed counts as executed; what else was accepted
  /// stays so in the record.
  void end();
  /// A request was refused: the queue is in error.
  bool failed() const { return failed_; }

 private:
  /// A request that is being executed, where that takes its time.
  struct Item {
    WireRequest request;
    WireResponse response;
    MemoryPlace place = MemoryPlace::host;
    Loading loading;
    Storing storing;
    AtomicMove atomic;
    MoveTicket ticket = 0;
    std::shared_ptr<WireFetch> fetch;
    std::uint32_t failures = 0;  // to fetch
    TimePoint again{};

    bool is_fetching() const {
      return fetch != nullptr && (!fetch->is_done() || fetch->has_failed());
    }
  };

  void receive_next(WireRequest& request, std::uint16_t receives, TimePoint now);
  void answer_again(WireRequest& request, TimePoint now);
  bool waits_for_fetches(const WireRequest& request, const std::byte* at) const;
  void fetch(Item& item, const MemoryKeys::Found& found);
  bool has_fetched(Item& item, TimePoint now);
  void fail_first(Syndrome syndrome);
  void execute(WireRequest& request, TimePoint now);
  bool advance(TimePoint now);
  bool begin(Item& item);
  bool begin_in(Item& item, const MemoryKeys::Found& found, DataMover& mover);
  bool finish(Item& item, TimePoint now);
  void fail(Syndrome syndrome);
  void answer(WireResponse response, bool is_done_write = false);
  void refuse(const WireRequest& request, Syndrome syndrome);

  ReceiveEnd end_;
  DeliveryRecord own_record_{kReadsInFlightMost};
  DeliveryRecord& record_;  // the queue's, or the one that outlives it
  CompletionWriter completions_;
  std::deque<Item> items_;        // begun and answered in this order
  std::size_t begun_ = 0;         // of items_
  std::uint16_t immediates_ = 0;  // of items_
  MoveTicket gpu_ticket_ = 0;     // when all that was begun in the GPU's memory is done
  AnswerQueue answers_;
  bool failed_ = false;
};

}  // namespace oriel::net
