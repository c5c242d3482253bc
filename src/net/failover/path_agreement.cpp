// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/failover/path_agreement.hpp"

#include <bit>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::net {
namespace {

constexpr std::uint32_t kStatementMagic = 0x4f465631;  // "OFV1"

Error bad_statement(const char* field, std::uint64_t value) {
  return Error(ErrorCode::remote,
               fmt::format("a statement on the path of a queue has {} {}", field, value));
}

std::string describe_refusal(Syndrome syndrome) {
  if (syndrome != Syndrome::remote_gone) {
    return fmt::format("error {:#04x}", static_cast<unsigned>(syndrome));
  }
  return fmt::format("error {:#04x}, of memory that has been deregistered",
                     static_cast<unsigned>(Syndrome::remote_access));
}

}  // namespace

const char* to_string(PathStage stage) {
  switch (stage) {
    case PathStage::fenced:
      return "fenced";
    case PathStage::ready:
      return "ready";
    case PathStage::running:
      return "running";
    case PathStage::over:
      return "over";
  }
  return "unknown";
}

Bytes encode_statement(const PathStatement& statement) {
  ByteWriter to;
  to.put(kStatementMagic).put(statement.epoch).put(statement.serial).put(statement.delivered);
  to.put(statement.stage).put(statement.usable).put(statement.usable_now);
  to.put(statement.fatal).put(statement.refused);
  for (const PathCause& cause : statement.causes) to.put(cause.kind).put(cause.syndrome);
  for (const std::uint32_t epoch : statement.probes) to.put(epoch);
  return to.take();
}

Result<PathStatement> decode_statement(ByteView bytes) {
  ByteReader from(bytes);
  const auto magic = from.get<std::uint32_t>();
  PathStatement statement;
  statement.epoch = from.get<std::uint32_t>();
  statement.serial = from.get<std::uint64_t>();
  statement.delivered = from.get<std::uint64_t>();
  const auto stage = from.get<std::uint8_t>();
  statement.usable = from.get<std::uint8_t>();
  statement.usable_now = from.get<std::uint8_t>();
  statement.fatal = static_cast<Syndrome>(from.get<std::uint8_t>());
  statement.refused = static_cast<Syndrome>(from.get<std::uint8_t>());
  for (PathCause& cause : statement.causes) {
    const auto kind = from.get<std::uint8_t>();
    if (kind > static_cast<std::uint8_t>(PathCause::Kind::given_up))
      return bad_statement("the cause", kind);
    cause.kind = static_cast<PathCause::Kind>(kind);
    cause.syndrome = static_cast<Syndrome>(from.get<std::uint8_t>());
  }
  for (std::uint32_t& epoch : statement.probes) epoch = from.get<std::uint32_t>();
  ORIEL_CHECK(from.finish("a statement on the path of a queue"));
  if (magic != kStatementMagic) return bad_statement("the first word", magic);
  if (statement.epoch == 0) return bad_statement("the epoch", 0);
  if (statement.serial == 0) return bad_statement("the serial number", 0);
  if (stage < static_cast<std::uint8_t>(PathStage::fenced) ||
      stage > static_cast<std::uint8_t>(PathStage::over)) {
    return bad_statement("the stage", stage);
  }
  statement.stage = static_cast<PathStage>(stage);
  constexpr PathMask kAll = (1u << kPathsMost) - 1;
  if ((statement.usable & ~kAll) != 0) return bad_statement("the paths", statement.usable);
  if ((statement.usable_now & ~kAll) != 0) return bad_statement("the paths", statement.usable_now);
  return statement;
}

PathAgreement::PathAgreement(const AgreementPolicy& policy, std::uint32_t paths)
    : policy_(policy), paths_(paths), must_send_(true) {
  mine_.usable = mine_.usable_now = static_cast<PathMask>((1u << paths) - 1);
}

void PathAgreement::set_usable(PathMask usable, const std::array<PathCause, kPathsMost>& causes) {
  must_send_ = must_send_ || usable != mine_.usable_now;
  mine_.usable_now = usable;
  mine_.causes = causes;
}

void PathAgreement::set_probes(const std::array<std::uint32_t, kPathsMost>& epochs) {
  must_send_ = must_send_ || epochs != mine_.probes;
  mine_.probes = epochs;
}

void PathAgreement::fence() {
  if (has_queue()) actions_.push_back({Action::Kind::fence, path_, epoch_});
}

void PathAgreement::enter(std::uint32_t epoch, TimePoint now) {
  fence();
  if (stage_ == PathStage::running) left_ = now;
  epoch_ = epoch;
  stage_ = PathStage::fenced;
  path_ = -1;
  mine_.usable = mine_.usable_now;
  must_send_ = true;
}

void PathAgreement::leave(TimePoint now) {
  if (stage_ == PathStage::over) return;
  enter(epoch_ + 1, now);
}

void PathAgreement::finish(std::string reason) {
  if (stage_ == PathStage::over) return;
  fence();
  stage_ = PathStage::over;
  reason_ = std::move(reason);
  actions_.push_back({Action::Kind::fail, path_, epoch_});
  must_send_ = true;
}

void PathAgreement::end(Syndrome fatal, Syndrome refused) {
  if (stage_ == PathStage::over) return;
  mine_.fatal = fatal;
  mine_.refused = refused;
  finish(refused == Syndrome::none
             ? fmt::format("a WQE has failed with error {:#04x}, which is not that of a path",
                           static_cast<unsigned>(fatal))
             : "a WQE of the peer was refused with " + describe_refusal(refused));
}

void PathAgreement::end(const std::string& nonsense) {
  finish("the peer's statement cannot be: " + nonsense);
}

void PathAgreement::advance(TimePoint now) {
  if (peer_.epoch != epoch_) return;
  if (stage_ == PathStage::fenced) {
    const unsigned both = mine_.usable & peer_.usable & ((1u << paths_) - 1);
    if (both == 0) return finish("no path is left");
    path_ = std::countr_zero(both);
    stage_ = PathStage::ready;
    actions_.push_back({Action::Kind::listen, path_, epoch_});
    must_send_ = true;
  }
  if (stage_ == PathStage::ready && peer_.stage >= PathStage::ready) {
    stage_ = PathStage::running;
    actions_.push_back({Action::Kind::go, path_, epoch_});
    left_ = now;
    must_send_ = true;
  }
}

void PathAgreement::receive(const PathStatement& statement, TimePoint now) {
  if (statement.serial <= peer_.serial) return;
  last_received_ = now;
  peer_ = statement;
  if (stage_ == PathStage::over) {
    must_send_ = must_send_ || statement.stage != PathStage::over;
    return;
  }
  if (statement.stage == PathStage::over) {
    if (statement.refused != Syndrome::none) {
      return finish("the peer has refused a WQE with " + describe_refusal(statement.refused));
    }
    if (statement.fatal != Syndrome::none) {
      return finish(fmt::format("a WQE of the peer has failed with error {:#04x}",
                                static_cast<unsigned>(statement.fatal)));
    }
    const bool same = statement.epoch == epoch_ && (statement.usable & mine_.usable) == 0;
    return finish(same ? "no path is left" : "the peer has given up");
  }
  if (statement.epoch > epoch_) {
    // Impossible: the peer goes on before it can have received that this end has fenced.
    if (statement.stage != PathStage::fenced) {
      return end(fmt::format("{} in epoch {}, while this end is in {}", to_string(statement.stage),
                             statement.epoch, epoch_));
    }
    enter(statement.epoch, now);
  }
  // A peer that is behind has missed statements: sends again.
  if (statement.epoch < epoch_ || statement.stage < stage_) must_send_ = true;
  advance(now);
}

void PathAgreement::tick(TimePoint now) {
  if ((stage_ == PathStage::fenced || stage_ == PathStage::ready) &&
      now - left_ >= policy_.give_up_after) {
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(policy_.give_up_after);
    finish(peer_.epoch == epoch_
               ? fmt::format("the peer has not agreed on a path within {} ms", limit.count())
               : fmt::format("the peer has not answered within {} ms", limit.count()));
  }
}

bool PathAgreement::is_answered() const {
  if (stage_ == PathStage::over) return peer_.stage == PathStage::over;
  return stage_ == PathStage::running && peer_.epoch == epoch_ &&
         peer_.stage == PathStage::running && peer_.probes == mine_.probes;
}

std::vector<PathAgreement::Action> PathAgreement::take_actions() {
  return std::exchange(actions_, {});
}

std::optional<PathStatement> PathAgreement::take_statement(TimePoint now) {
  // On a path other than the best, both ends have to know when the other would take the best again.
  const Duration pause =
      !is_answered() ? policy_.retransmit_interval : policy_.retransmit_interval * 10;
  const bool retransmits = !is_answered() || (stage_ == PathStage::running && path_ != 0);
  if (stage_ == PathStage::over) {
    if (!over_.has_value()) over_ = now;
    if (now - *over_ > policy_.give_up_after) return std::nullopt;
  }
  if (!must_send_ && (!retransmits || now - last_sent_ < pause)) return std::nullopt;
  must_send_ = false;
  last_sent_ = now;
  ++mine_.serial;
  mine_.epoch = epoch_;
  mine_.stage = stage_;
  return mine_;
}

std::string PathAgreement::reason() const {
  std::string text = reason_;
  for (std::uint32_t i = 0; i < paths_; ++i) {
    text += fmt::format("; path {}: here {}, there {}", i, to_string(mine_.causes[i]),
                        to_string(peer_.causes[i]));
  }
  return text;
}

}  // namespace oriel::net
