// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "net/soft/bare_transfers.hpp"
#include "net/soft/posted_entries.hpp"
#include "net/soft/queue_ends.hpp"
#include "net/soft/sent_requests.hpp"

namespace oriel::net {

/// Cuts entries into requests and puts these on the wire, with the payload that has to be loaded
/// first; again, or in another way, where the peer has to be asked again.
class RequestSender {
 public:
  RequestSender(SendEnd& end, PostedEntries& posted, SentRequests& sent, BareTransfers& bare)
      : end_(end), posted_(posted), sent_(sent), bare_(bare) {}

  /// Begins a pass: sends the requests that are not on the wire. Returns false if nothing goes any
  /// further now.
  bool send_again(TimePoint now);
  /// Sends what the entry has not sent yet, in the pass of the last send_again(). Returns whether
  /// all of it is under way.
  bool send_pieces(PostedEntry& entry, TimePoint now);
  /// The peer has accepted none of the requests from this position on, because the first has no
  /// bytes in it: they go again, by the wire, with their bytes and under the same numbers.
  void go_by_wire(std::size_t position);
  /// Nobody will hear of the answers to come.
  void forget_sent();
  /// Forgets requests that were never sent, so that their memory is not kept for peers that will
  /// never be asked to fetch it.
  void forget_unsent();

 private:
  /// Sends the request unless an earlier one of this pass waits for its payload; its own is then
  /// loaded meanwhile. False if nothing goes any further now.
  bool send(SentRequest& request, TimePoint now);
  void cut_for_wire(PostedEntry& entry);
  enum class Step : std::uint8_t { sent, loading, blocked };
  Step transmit(PostedEntry& entry, SentRequest& request, TimePoint now);
  Step load(PostedEntry& entry, SentRequest& request);
  void load_ahead(PostedEntry& entry, SentRequest& request);
  WireRequest request_for(const PostedEntry& entry, const SentRequest& request) const;
  void note_sent(SentRequest& request);

  SendEnd& end_;
  PostedEntries& posted_;
  SentRequests& sent_;
  BareTransfers& bare_;
  bool held_up_ = false;  // a request waits for its payload, and all behind it for that
};

}  // namespace oriel::net
