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

/// Most paths between two ends. Both ends number the paths alike; a lower number is a better path.
inline constexpr std::uint32_t kPathsMost = 4;
using PathMask = std::uint8_t;  ///< bit i: path i

/// Stage of an end within an epoch.
enum class PathStage : std::uint8_t {
  fenced = 1,   ///< queue of the previous epoch is in error: no sends or receives
  ready = 2,    ///< queue on the chosen path can receive
  running = 3,  ///< queue on the chosen path can also send
  over = 4,     ///< no usable path, no agreement in time, or an error that no path can help with
};
const char* to_string(PathStage stage);

/// Message from one end to the other. It always has the sender's whole state, so that any statement
/// makes up for lost earlier ones.
struct PathStatement {
  std::uint64_t serial = 0;  ///< increases with each statement
  std::uint32_t epoch = 0;
  PathStage stage = PathStage::fenced;
  PathMask usable = 0;      ///< input to the choice of this epoch's path: constant within an epoch
  PathMask usable_now = 0;  ///< paths that are usable at the moment
  std::uint64_t delivered = 0;        ///< requests of the peer that this end has accepted
  Syndrome fatal = Syndrome::none;    ///< over: error of an own request that no path can help with
  Syndrome refused = Syndrome::none;  ///< over: error with which a request of the peer was refused
  std::array<PathCause, kPathsMost> causes{};
  /// Epochs of the queues that probe paths; both ends take the greater epoch.
  std::array<std::uint32_t, kPathsMost> probes{};
};
Bytes encode_statement(const PathStatement& statement);
/// Decodes a statement. Returns ErrorCode::remote for a wrong length or an invalid field, which the
/// error then names. Syndromes are not checked.
Result<PathStatement> decode_statement(ByteView bytes);

struct AgreementPolicy {
  Duration retransmit_interval =
      std::chrono::milliseconds(20);  ///< retransmits unanswered statements
  /// Timeout of an agreement: one that is not reached by then has failed.
  Duration give_up_after = std::chrono::seconds(10);
};

/// Agreement of both ends of a queue on the next path and epoch. A state machine without I/O, one
/// at each end: its caller reports events and messages, and executes its actions.
///
/// An end that leaves an epoch starts the next one, whose number is one greater. An end that
/// receives a greater epoch enters it. Each end then fences its old queue and states which paths it
/// finds usable. Within an epoch this set never changes. Once an end knows both sets, it takes the
/// best path in both, makes its queue ready to receive and states that. Once it receives the same
/// from the peer, it sends.
///
/// So nobody sends in an epoch before both have left the last one, and both choose the same path.
/// An end may leave again at any time, even during an agreement; that starts the next epoch.
///
/// Statements may be lost, duplicated, delayed and reordered. They are retransmitted until the
/// peer's statements show that it has them, and only the newest counts. Not thread-safe; times
/// never go back.
class PathAgreement {
 public:
  /// Starts in epoch 1, running on path 0, as the peer does.
  PathAgreement(const AgreementPolicy& policy, std::uint32_t paths);

  std::uint32_t epoch() const { return epoch_; }
  PathStage stage() const { return stage_; }
  /// Returns the path of this epoch; -1 while there is none.
  int path() const { return path_; }
  /// Returns whether the queue on path() is at work, at least to receive.
  bool has_queue() const { return stage_ == PathStage::ready || stage_ == PathStage::running; }
  PathMask peer_usable_now() const { return peer_.usable_now; }
  /// Returns the peer's latest statement.
  const PathStatement& peer() const { return peer_; }

  /// Returns when the peer's latest new statement came. While path() is not 0, the peer sends one
  /// every ten AgreementPolicy::retransmit_interval even if nothing has changed.
  TimePoint last_received() const { return last_received_; }

  /// Sets the paths that this end finds usable, and why it does not find the others usable.
  void set_usable(PathMask usable, const std::array<PathCause, kPathsMost>& causes);
  void set_probes(const std::array<std::uint32_t, kPathsMost>& epochs);
  /// Sets, after a fence, how many of the peer's requests have been accepted.
  void set_delivered(std::uint64_t delivered) { mine_.delivered = delivered; }
  /// Starts the next epoch: this end cannot go on with path(), or knows a better path.
  void leave(TimePoint now);
  /// Ends the queue: an own request (`fatal`) or one of the peer's (`refused`) has met an error
  /// that no path can help with.
  void end(Syndrome fatal, Syndrome refused);
  /// Ends the queue: the peer's statement is impossible.
  void end(const std::string& nonsense);
  void receive(const PathStatement& statement, TimePoint now);
  /// Checks the timeout.
  void tick(TimePoint now);

  /// Action for the caller, which executes actions in order before it sends a statement.
  struct Action {
    enum class Kind : std::uint8_t {
      fence,   ///< put the queue in use into the error state
      listen,  ///< make the queue on `path` ready to receive
      go,      ///< make it ready to send
      fail,    ///< report the end to producers
    };
    Kind kind;
    int path = -1;
    std::uint32_t epoch = 0;
  };
  std::vector<Action> take_actions();
  /// Returns the statement that is to be sent now, if any.
  std::optional<PathStatement> take_statement(TimePoint now);

  /// Returns why the queue has ended, with both ends' view of each path.
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
  bool must_send_ = false;
  TimePoint last_sent_{};
  TimePoint last_received_{};
  TimePoint left_{};  // when this end last stopped or started running
  std::optional<TimePoint> over_;
};

}  // namespace oriel::net
