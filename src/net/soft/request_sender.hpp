// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "net/soft/bare_transfers.hpp"
#include "net/soft/posted_entries.hpp"
#include "net/soft/queue_ends.hpp"
#include "net/soft/sent_requests.hpp"

namespace oriel::net {

/// Puts requests on the wire, with the payload that has to be loaded first.
class RequestSender {
 public:
  RequestSender(SendEnd& end, PostedEntries& posted, const BareTransfers& bare)
      : end_(end), posted_(posted), bare_(bare) {}

  /// Once for each pass over the requests that are not on the wire, before the first.
  void begin_pass() { held_up_ = false; }
  /// Sends the request unless an earlier one of this pass waits for its payload; its own is then
  /// loaded meanwhile. False if nothing goes any further now.
  bool send(SentRequest& request, TimePoint now);

 private:
  enum class Step : std::uint8_t { sent, loading, blocked };
  Step transmit(PostedEntry& entry, SentRequest& request, TimePoint now);
  Step load(PostedEntry& entry, SentRequest& request);
  void load_ahead(PostedEntry& entry, SentRequest& request);
  WireRequest request_for(const PostedEntry& entry, const SentRequest& request) const;
  void note_sent(SentRequest& request);

  SendEnd& end_;
  PostedEntries& posted_;
  const BareTransfers& bare_;
  bool held_up_ = false;  // a request waits for its payload, and all behind it for that
};

}  // namespace oriel::net
