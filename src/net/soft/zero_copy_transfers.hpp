// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "net/soft/posted_wqes.hpp"
#include "net/soft/queue_ends.hpp"
#include "net/soft/sent_requests.hpp"

namespace oriel::net {

/// Zero-copy transfers: no message carries their bytes. The bytes are copied from a mapping, or
/// read by the peer's wire (rendezvous).
class ZeroCopyTransfers {
 public:
  explicit ZeroCopyTransfers(SendEnd& end) : end_(end) {}

  /// Chooses the kind of transfer for a WQE whose local bytes lie in `place`.
  void choose(PostedWqe& wqe, MemoryPlace place) const;
  std::uint32_t piece_bytes(const PostedWqe& wqe) const;
  /// Allows the peer a rendezvous read of this piece. Returns false if the bytes have to go in
  /// messages.
  bool expose(const PostedWqe& wqe, SentRequest& request);
  /// Ends the permission, because the peer no longer reads the piece or was never asked to.
  void revoke(const PostedWqe& wqe, SentRequest& request);
  /// Ends the permission although no answer of the peer will be processed: a read may still be in
  /// flight.
  void lose(const PostedWqe& wqe, const SentRequest& request);
  /// Notes that the peer cannot get these bytes without messages, nor others of the same kind.
  void note_refusal(const PostedWqe& wqe, const SentRequest& request);
  /// Returns whether a noted refusal holds for this WQE too.
  bool is_refused(const PostedWqe& wqe) const;

  /// Returns whether the peer may have executed the request with this number.
  bool may_be_done(std::uint64_t number, bool was_sent) const;
  /// Returns whether a retransmission only asks if the peer has executed the request, because the
  /// key of its bytes was deregistered. This happens when a collective has ended and its window was
  /// deregistered while responses were lost. The request is sent as a direct one: a peer that has
  /// not executed it finds no source memory.
  bool asks_only(const PostedWqe& wqe, const SentRequest& request) const;

 private:
  bool can_copy(const WorkRequest& work, MemoryPlace place) const;
  bool can_be_read(const WorkRequest& work, MemoryPlace place) const;

  SendEnd& end_;
  bool reads_ = true;  // cleared when the peer refuses a rendezvous read
};

}  // namespace oriel::net
