// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "boot/link/frame.hpp"

namespace oriel::boot {

/// State change of a rank. An abort of this rank itself is also reported: it may come from a link
/// that failed outside any call.
struct PeerEvent {
  enum class Kind : std::uint8_t { left, lost };
  Kind kind;
  int rank;
  Error error;  ///< lost: the reason; left: unused
};

/// Last rank of a chain of waiting ranks. If it waits for nobody, it is stopped or has not made the
/// call. If it waits for itself, its kernel waits for CTAs of its own grid.
struct ChainEnd {
  int rank = -1;  ///< -1: the chain is a cycle of several ranks
  bool waits_for_itself = false;
};

/// Knowledge of one rank about all ranks, and the notices it still has to send. Each notice is
/// forwarded once to every link. So it reaches every rank that the link graph still connects. It
/// takes at most log2(size) hops while no link is missing.
///
/// Only the first death or abort that a rank learns of is forwarded. It ends the session on every
/// rank that receives it. If all were forwarded, a job that ends as a whole would send
/// size^2 * log2(size) notices. A state machine without I/O, not thread-safe.
class Liveness {
 public:
  Liveness(int rank, int size);

  /// Records that a rank has left regularly. Later reports of its death are ignored.
  void left(int rank);
  /// Records that a rank has died; `how` completes "rank 3 has died: ".
  void died(int rank, const std::string& how);
  /// Records that a rank (this rank or another) has aborted with `reason`. Does nothing if it has
  /// left.
  void aborted(int rank, const Error& reason);
  /// Records that this rank has waited long for rank `on`; -1 ends the wait. `on` may be this rank.
  void stuck(int on);
  /// Follows the chain of waiting ranks from `rank` and returns its last rank.
  ChainEnd end_of_chain(int rank) const;
  /// Returns whether a rank other than this one is known to be waiting.
  bool others_wait() const;
  /// Processes a notice of a peer: a left, aborted, dead or stuck frame. Returns an error if it is
  /// malformed.
  Status receive(const Frame& frame);

  bool has_left(int rank) const { return state(rank) == State::left; }
  bool has_died(int rank) const { return state(rank) == State::dead; }
  /// Returns the first known death or abort; once set, the session is unusable.
  const std::optional<Error>& failure() const { return failure_; }

  /// Returns the frames to send to every link now; empty if there is no notice.
  std::vector<Bytes> take_outgoing();
  /// Queues the outgoing frames at all `links`, a map by rank. Calls `write(rank, link)` for each
  /// link with queued bytes. A write may read the last frames of a peer, which may cause notices
  /// again. The loop ends because each notice is sent once.
  template <typename Links, typename Write>
  void spread(Links& links, const Write& write) {
    do {  // also without notices: forwarded notes are written here
      const std::vector<Bytes> notices = take_outgoing();
      for (auto& [rank, link] : links) {
        for (const Bytes& notice : notices) link.enqueue(notice);
        if (link.queued_bytes() > 0) write(rank, link);
      }
    } while (!outgoing_.empty() || !departed_.empty());
  }
  /// Returns the frames for a new link: the first death or abort, and the departures. Leaves out
  /// the known waits.
  std::vector<Bytes> everything() const;
  /// Returns the events since the last call, in the order of arrival. Of all deaths and aborts,
  /// only the first is reported.
  std::vector<PeerEvent> take_events();

 private:
  enum class State : std::uint8_t { alive, left, dead };
  State state(int rank) const { return states_[static_cast<std::size_t>(rank)]; }
  bool valid(int rank) const { return rank >= 0 && rank < static_cast<int>(states_.size()); }
  /// Completes a death or an abort: records it, and reports it if it is the first.
  void lose(FrameKind how, int rank, const Error& error);
  Status receive_stuck(ByteView payload);
  void set_stuck(int rank, int on, std::uint32_t serial);
  Status receive_left(ByteView payload);

  int rank_;
  std::vector<State> states_;
  std::vector<bool> aborted_;
  std::optional<Error> failure_;
  struct Stuck {
    int on = -1;
    std::uint32_t serial = 0;  // serial of the rank's notice; a higher one replaces a lower one
  };
  std::map<int, Stuck> stuck_;
  std::vector<int> departed_;    // not yet sent
  std::vector<Bytes> outgoing_;  // other notices not yet sent
  std::optional<Bytes> notice_;  // notice of failure_, for new links
  std::vector<PeerEvent> events_;
};

}  // namespace oriel::boot
