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

/// Something a session has learned about a rank. That this rank itself has given up is told too:
/// it may have been for a link that failed while nobody was in a call.
struct PeerEvent {
  enum class Kind : std::uint8_t { left, lost };
  Kind kind;
  int rank;
  Error error;  ///< of a loss: the reason; of a departure: unused text
};

/// What one rank knows of the life of all ranks, and what it still has to tell its neighbours. Each
/// piece of news is forwarded once to every link, so that it reaches every rank that the link graph
/// still connects, in at most log2(size) hops. Of deaths and aborts only the first that a rank
/// learns of is forwarded: it ends the session on every rank that hears of it, and a job that ends
/// as a whole would else send size^2 * log2(size) notices. A state machine without I/O, not
/// thread-safe.
class Liveness {
 public:
  Liveness(int rank, int size);

  /// A rank has left in order. Nothing that comes later makes it dead.
  void left(int rank);
  /// A rank has died; `how` completes "rank 3 has died: ".
  void died(int rank, const std::string& how);
  /// A rank (this one or another) has given up, with its error. Does nothing once it has left.
  void aborted(int rank, const Error& reason);
  /// This rank has waited long for rank `on`; -1: it no longer does.
  void stuck(int on);
  /// At the end of the chain of who waits for whom, from `rank` on: a rank that is not known to
  /// wait for anybody, so it is stopped or has not made the call; `rank` itself if it waits for
  /// nobody, -1 if the chain is a circle.
  int end_of_chain(int rank) const;
  /// Returns whether a rank other than this one is known to wait.
  bool others_wait() const;
  /// Takes in a peer's notice, any frame kind but message. The error is one of form.
  Status receive(const Frame& frame);

  bool has_left(int rank) const { return state(rank) == State::left; }
  bool has_died(int rank) const { return state(rank) == State::dead; }
  /// The first death or abort that was learned of: the session is of no more use.
  const std::optional<Error>& failure() const { return failure_; }

  /// The frames that every link is to get now; empty without news.
  std::vector<Bytes> take_outgoing();
  /// Queues these frames at all of `links`, a map by rank, and calls `write(rank, link)` where a
  /// link has something queued. Writing may read a peer's last words, which may be news again; each
  /// is told once, so this ends.
  template <typename Links, typename Write>
  void spread(Links& links, const Write& write) {
    do {  // also without news: notes on their way are written here
      const std::vector<Bytes> news = take_outgoing();
      for (auto& [rank, link] : links) {
        for (const Bytes& notice : news) link.enqueue(notice);
        if (link.queued_bytes() > 0) write(rank, link);
      }
    } while (!outgoing_.empty() || !departed_.empty());
  }
  /// The frames for a link that has just been made: all that is known.
  std::vector<Bytes> everything() const;
  /// What happened since the last call, in the order in which it was learned; of deaths and aborts
  /// the first.
  std::vector<PeerEvent> take_events();

 private:
  enum class State : std::uint8_t { alive, left, dead };
  State state(int rank) const { return states_[static_cast<std::size_t>(rank)]; }
  bool valid(int rank) const { return rank >= 0 && rank < static_cast<int>(states_.size()); }
  /// The last step of learning that a rank has died or given up.
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
    std::uint32_t serial = 0;  // of the rank's notices: later ones replace earlier ones
  };
  std::map<int, Stuck> stuck_;
  std::vector<int> departed_;    // not yet told
  std::vector<Bytes> outgoing_;  // other notices not yet told
  std::optional<Bytes> notice_;  // of failure_, for new links
  std::vector<PeerEvent> events_;
};

}  // namespace oriel::boot
