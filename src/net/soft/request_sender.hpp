// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "net/soft/posted_wqes.hpp"
#include "net/soft/queue_ends.hpp"
#include "net/soft/sent_requests.hpp"
#include "net/soft/zero_copy_transfers.hpp"

namespace oriel::net {

/// Splits WQEs into requests and sends them, after loading the payload if needed. Also
/// retransmits requests, and changes the kind of transfer if the peer refuses it.
class RequestSender {
 public:
  RequestSender(SendEnd& end, PostedWqes& posted, SentRequests& sent, ZeroCopyTransfers& zero_copy)
      : end_(end), posted_(posted), sent_(sent), zero_copy_(zero_copy) {}

  /// Starts a pass: sends the requests that are not on the wire. Returns false if nothing more can
  /// be sent now.
  bool send_again(TimePoint now);
  /// Sends the remaining pieces of the WQE, in the pass of the last send_again(). Returns whether
  /// all of them have been passed on.
  bool send_pieces(PostedWqe& wqe, TimePoint now);
  /// Resends the requests from this position on, with their bytes and under the same numbers. The
  /// peer has accepted none of them, because it cannot get the bytes of the first one.
  void go_by_wire(std::size_t position);
  /// Forgets all requests; their responses will be ignored.
  void forget_sent();
  /// Forgets requests that were never sent, so that their memory is not kept for reads that no peer
  /// will make.
  void forget_unsent();

 private:
  /// Sends the request, unless an earlier request of this pass waits for its payload. If so, only
  /// loads the payload of this request. Returns false if nothing more can be sent now.
  bool send(SentRequest& request, TimePoint now);
  void cut_for_wire(PostedWqe& wqe);
  enum class Step : std::uint8_t { sent, loading, blocked };
  Step transmit(PostedWqe& wqe, SentRequest& request, TimePoint now);
  Step load(PostedWqe& wqe, SentRequest& request);
  void load_ahead(PostedWqe& wqe, SentRequest& request);
  WireRequest request_for(const PostedWqe& wqe, const SentRequest& request) const;
  void note_sent(SentRequest& request);

  SendEnd& end_;
  PostedWqes& posted_;
  SentRequests& sent_;
  ZeroCopyTransfers& zero_copy_;
  bool held_up_ = false;  // a request waits for its payload, and all later ones wait for it
};

}  // namespace oriel::net
