// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "net/soft/landings.hpp"
#include "net/soft/posted_wqes.hpp"
#include "net/soft/queue_ends.hpp"
#include "net/soft/request_sender.hpp"
#include "net/soft/send_completions.hpp"
#include "net/soft/sent_requests.hpp"
#include "net/soft/zero_copy_transfers.hpp"

namespace oriel::net {

/// The sending half of a queue. It takes WQEs from the ring in order, sends requests to the
/// peer, and completes the WQEs in order. Requests of several WQEs are in flight at once.
/// Hence, without fences, reads and atomics may be answered after later writes have been executed.
///
/// When a WQE fails, all earlier WQEs are complete. The failed WQE gets the one completion
/// with its syndrome. All later WQEs, rung before or after the failure, are completed as
/// flushed. Not thread-safe: the NIC's lock guards it. Each call does a bounded amount of work.
class Requester {
 public:
  Requester(const QueueSetup& setup, std::uint32_t number, NicContext& nic);
  ~Requester() { sender_.forget_sent(); }
  Requester(const Requester&) = delete;
  Requester& operator=(const Requester&) = delete;

  void connect(const QueuePeer& peer);
  /// Notes that the doorbell has announced everything before `end`.
  void ring(std::uint64_t end) { posted_.ring(end); }
  std::uint64_t end() const { return posted_.end(); }
  /// Returns when the peer last answered.
  TimePoint last_received() const { return retransmission_.last_received(); }
  /// Everything before this WQEBB is complete.
  std::uint64_t completed() const { return posted_.completed(); }
  /// Implements NicSoft::probe().
  void probe();

  /// Makes progress; call it while the queue is ready to send, after its doorbell was polled.
  /// Returns whether anything was done.
  bool progress(TimePoint now);
  void receive(WireResponse& response, TimePoint now);
  /// Returns true if a WQE has failed or fail() was called: the queue is in error.
  bool failed() const { return failed_; }
  /// Fails the queue for a reason other than a WQE.
  void fail(Syndrome syndrome, Complaint complaint);
  /// Flushes the remaining WQEs; call it while the queue is in error. Returns whether there were
  /// any.
  bool flush();

 private:
  bool begin_wqes(TimePoint now);
  bool may_begin(const PostedWqe& wqe) const;
  void begin(PostedWqe& wqe);
  void check_timer(TimePoint now);
  void take_answer(SentRequest& request, WireResponse* response, TimePoint now);
  bool retire();
  void end_with(const WorkRequest& work, Syndrome syndrome, Complaint complaint);
  void give_up();

  SendEnd end_;
  PostedWqes posted_;
  SentRequests sent_;
  Retransmission retransmission_;
  ZeroCopyTransfers zero_copy_;
  RequestSender sender_;
  Landings landings_;
  SendCompletions completions_;
  /// Counts reads and atomics started since the oldest request without a response. The peer keeps
  /// their responses.
  std::size_t reads_in_window_ = 0;
  bool failed_ = false;
};

}  // namespace oriel::net
