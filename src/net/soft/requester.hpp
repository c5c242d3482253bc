// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "net/soft/bare_transfers.hpp"
#include "net/soft/landings.hpp"
#include "net/soft/posted_entries.hpp"
#include "net/soft/queue_ends.hpp"
#include "net/soft/request_sender.hpp"
#include "net/soft/send_completions.hpp"
#include "net/soft/sent_requests.hpp"

namespace oriel::net {

/// The sending half of a queue: takes entries from the ring in order, asks the peer for what they
/// want, and completes them in order. Requests of several entries are on their way at once, so
/// reads and atomics may be answered after later writes have been done, but for fences.
///
/// Of the first entry that fails all earlier ones are complete; it gets the one completion with its
/// syndrome, and all later ones, rung then or afterwards, get one that says they were flushed.
/// Not thread-safe: the NIC's lock guards it. Each call does a bounded amount of work.
class Requester {
 public:
  Requester(const QueueSetup& setup, std::uint32_t number, NicContext& nic);
  ~Requester() { sender_.forget_sent(); }
  Requester(const Requester&) = delete;
  Requester& operator=(const Requester&) = delete;

  void connect(const QueuePeer& peer);
  /// The doorbell has told of everything before `end`.
  void ring(std::uint64_t end) { posted_.ring(end); }
  std::uint64_t end() const { return posted_.end(); }
  /// When the peer last answered.
  TimePoint heard() const { return retransmission_.heard(); }
  /// Everything before this is complete.
  std::uint64_t completed() const { return posted_.completed(); }
  /// Implements NicSoft::probe().
  void probe();

  /// While the queue is ready to send, after its doorbell was looked at. Whether anything was done.
  bool progress(TimePoint now);
  void receive(WireResponse& response, TimePoint now);
  /// An entry has failed, or fail() was called: the queue is in error.
  bool failed() const { return failed_; }
  /// Ends the queue for a reason that no entry gives.
  void fail(Syndrome syndrome, Complaint complaint);
  /// While the queue is in error: what is left is flushed.
  bool flush();

 private:
  bool begin_entries(TimePoint now);
  bool may_begin(const PostedEntry& entry) const;
  void begin(PostedEntry& entry);
  void look_at_timer(TimePoint now);
  void take_answer(SentRequest& request, WireResponse* response, TimePoint now);
  bool retire();
  void end_with(const WorkRequest& work, Syndrome syndrome, Complaint complaint);
  void give_up();

  SendEnd end_;
  PostedEntries posted_;
  SentRequests sent_;
  Retransmission retransmission_;
  BareTransfers bare_;
  RequestSender sender_;
  Landings landings_;
  SendCompletions completions_;
  /// Reads and atomics started since the oldest request without a response; the peer keeps their
  /// answers.
  std::size_t reads_in_window_ = 0;
  bool failed_ = false;
};

}  // namespace oriel::net
