// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "net/failover/path_health.hpp"

namespace oriel::net {

/// Paths between two ends have numbers, the same on both; a lower one is the better.
inline constexpr std::uint32_t kPathsMost = 4;
using PathMask = std::uint8_t;  ///< bit i: path i

/// How far an end is in an epoch.
enum class PathStage : std::uint8_t {
  fenced = 1,   ///< its queue of the epoch before is in error: it takes and gives nothing any more
  ready = 2,    ///< its queue on the chosen path takes what the peer sends
  running = 3,  ///< and it sends
  over = 4,     ///< there is no path any more, or it has met an error that no path can help with
};
const char* to_string(PathStage stage);

/// What one end tells the other, always all that it has to say, so that any statement makes good
/// for all before it that were lost.
struct PathStatement {
  std::uint64_t serial = 0;  ///< later ones have greater ones
  std::uint32_t epoch = 0;
  PathStage stage = PathStage::fenced;
  PathMask usable = 0;          ///< as the choice of this epoch's path needs it: does not change
  PathMask usable_now = 0;      ///< as it is at the moment
  std::uint64_t delivered = 0;  ///< requests of the peer that this end has accepted
  Syndrome fatal = Syndrome::none;    ///< over: of an entry of its own that no path can help with
  Syndrome refused = Syndrome::none;  ///< over: of one of the peer's
  std::array<PathCause, kPathsMost> causes{};
  /// Epochs of the queues by which paths are probed; both ends go on with the greater one.
  std::array<std::uint32_t, kPathsMost> probes{};
};
Bytes encode_statement(const PathStatement& statement);
/// ErrorCode::remote, naming the field, for anything that encode_statement() does not make.
Result<PathStatement> decode_statement(ByteView bytes);

struct AgreementPolicy {
  Duration repeat_every = std::chrono::milliseconds(20);  ///< of what was not answered
  /// An agreement that has not come about by then never does.
  Duration give_up_after = std::chrono::seconds(10);
};

/// How both ends of a queue come to go on with the same path and epoch. A state machine without
/// I/O, one at each end: it is told of what was seen and heard, and says what to do.
///
/// An epoch begins with whoever leaves the one before it, and its number is one greater; who hears
/// of a greater epoch goes along. Both fence their old queue and then say so with the paths that
/// they take for usable, which for one epoch they never change; once an end knows of both it takes
/// the best path that both have named, makes its queue ready to receive and says so; once it hears
/// the same of the peer it sends. So nobody sends in an epoch before both have left the last one,
/// and both choose alike. Whoever leaves again, be it in the midst of this, begins the next epoch.
///
/// Statements may be lost, repeated, delayed and overtake each other: they are repeated until the
/// peer's show that it has them, and only the newest counts. Not thread-safe; times never go back.
class PathAgreement {
 public:
  /// Both ends begin in epoch 1, running on path 0.
  PathAgreement(const AgreementPolicy& policy, std::uint32_t paths);

  std::uint32_t epoch() const { return epoch_; }
  PathStage stage() const { return stage_; }
  /// The path of this epoch, -1 while there is none.
  int path() const { return path_; }
  /// Whether the queue on path() is at work, if only to receive.
  bool has_queue() const { return stage_ == PathStage::ready || stage_ == PathStage::running; }
  PathMask peer_usable_now() const { return peer_.usable_now; }
  /// What the peer has said last.
  const PathStatement& peer() const { return peer_; }

  /// When the peer last said something new; while path() is not 0 it does so ten times as seldom as
  /// AgreementPolicy::repeat_every says, though nothing has changed.
  TimePoint heard() const { return heard_; }

  /// Which paths this end takes for usable, and why not the others.
  void set_usable(PathMask usable, const std::array<PathCause, kPathsMost>& causes);
  void set_probes(const std::array<std::uint32_t, kPathsMost>& epochs);
  /// After a fence: how much of the peer's requests has been accepted.
  void set_delivered(std::uint64_t delivered) { mine_.delivered = delivered; }
  /// This end cannot go on with path(), or knows a better one.
  void leave(TimePoint now);
  /// No path can help any more: an entry of this end, or one of the peer's, has met this error.
  void end(Syndrome fatal, Syndrome refused);
  /// What the peer says cannot be.
  void end(const std::string& nonsense);
  void hear(const PathStatement& statement, TimePoint now);
  /// Time has passed.
  void tick(TimePoint now);

  /// What is to be done, in this order, before anything is said.
  struct Action {
    enum class Kind : std::uint8_t {
      fence,   ///< put the queue in use into error
      listen,  ///< make the one on `path` ready to receive
      go,      ///< and to send
      fail,    ///< tell producers that it is over
    };
    Kind kind;
    int path = -1;
    std::uint32_t epoch = 0;
  };
  std::vector<Action> take_actions();
  /// What is to be said now, if anything.
  std::optional<PathStatement> take_statement(TimePoint now);

  /// Why it is over: how both ends see each path, or what the peer said.
  std::string reason() const;

 private:
  void fence();
  void enter(std::uint32_t epoch, TimePoint now);
  void advance(TimePoint now);
  void finish(std::string reason);
  bool is_answered() const;

  AgreementPolicy policy_;
  std::uint32_t paths_;
  std::uint32_t epoch_ = 1;
  PathStage stage_ = PathStage::running;
  int path_ = 0;
  PathStatement mine_;
  PathStatement peer_;
  std::vector<Action> actions_;
  std::string reason_;
  bool has_news_ = false;
  TimePoint said_{};
  TimePoint heard_{};
  TimePoint left_{};  // when this end last stopped running
  std::optional<TimePoint> over_;
};

}  // namespace oriel::net
