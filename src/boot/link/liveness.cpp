// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/liveness.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "boot/link/vote_record.hpp"

namespace oriel::boot {
namespace {

constexpr std::size_t kRanksPerFrame = kMaxNoticeBytes / sizeof(std::int32_t);

void append_departures(std::vector<Bytes>& out, std::span<const int> ranks) {
  while (!ranks.empty()) {
    const auto chunk = ranks.first(std::min(ranks.size(), kRanksPerFrame));
    ByteWriter payload;
    for (const int rank : chunk) payload.put(static_cast<std::int32_t>(rank));
    out.push_back(encode_frame(FrameKind::left, payload.take()));
    ranks = ranks.subspan(chunk.size());
  }
}

Bytes encode_notice(FrameKind kind, int rank, const Error& error) {
  ByteWriter payload;
  payload.put(static_cast<std::int32_t>(rank));
  ErrorRecord::encode(payload, error);
  return encode_frame(kind, payload.take());
}

}  // namespace

Liveness::Liveness(int rank, int size)
    : rank_(rank),
      states_(static_cast<std::size_t>(size), State::alive),
      aborted_(static_cast<std::size_t>(size), false) {}

void Liveness::left(int rank) {
  if (!valid(rank) || state(rank) != State::alive) return;
  if (rank != rank_) {
    events_.push_back({PeerEvent::Kind::left, rank,
                       Error(ErrorCode::remote, fmt::format("rank {} has left", rank))});
  }
  departed_.push_back(rank);
  states_[static_cast<std::size_t>(rank)] = State::left;
}

void Liveness::died(int rank, const std::string& how) {
  if (!valid(rank) || state(rank) != State::alive) return;
  lose(FrameKind::dead, rank,
       Error(ErrorCode::remote, fmt::format("rank {} has died: {}", rank, how))
           .with_scope(Scope::communicator)
           .with_origin(rank));
}

void Liveness::aborted(int rank, const Error& reason) {
  // If a rank has left, its later failures do not concern the others.
  if (!valid(rank) || aborted_[static_cast<std::size_t>(rank)] || has_left(rank)) return;
  lose(FrameKind::aborted, rank, Error(reason).with_scope(Scope::communicator).with_origin(rank));
}

void Liveness::lose(FrameKind how, int rank, const Error& error) {
  if (how == FrameKind::aborted) {
    aborted_[static_cast<std::size_t>(rank)] = true;
  } else {
    states_[static_cast<std::size_t>(rank)] = State::dead;
  }
  if (failure_) return;
  failure_ = error;
  notice_ = encode_notice(how, rank, error);
  outgoing_.push_back(*notice_);
  events_.push_back({PeerEvent::Kind::lost, rank, error});
}

Status Liveness::receive(const Frame& frame) {
  if (frame.kind == FrameKind::left) return receive_left(frame.payload);
  if (frame.kind == FrameKind::stuck) return receive_stuck(frame.payload);
  ByteReader reader(frame.payload);
  const auto rank = reader.get<std::int32_t>();
  std::optional<Error> decoded;
  ORIEL_CHECK(ErrorRecord::decode(reader, decoded));
  ORIEL_CHECK(reader.finish("a notice"));
  if (!valid(rank)) {
    return Error(ErrorCode::remote,
                 fmt::format("a notice names rank {} of {}", rank, states_.size()));
  }
  const Error& error = *decoded;
  if (frame.kind == FrameKind::aborted) {
    aborted(rank, error);
    return {};
  }
  if (state(rank) != State::alive) return {};
  lose(FrameKind::dead, rank, error);  // keeps the witness's text, so every rank reports the same
  return {};
}

Status Liveness::receive_left(ByteView payload) {
  ByteReader reader(payload);
  if (payload.empty() || payload.size() % sizeof(std::int32_t) != 0) {
    return Error(ErrorCode::remote,
                 fmt::format("a notice of departure has {} bytes, not those of 1 or more ranks",
                             payload.size()));
  }
  while (reader.left() > 0) {
    const auto rank = reader.get<std::int32_t>();
    if (!valid(rank)) {
      return Error(ErrorCode::remote,
                   fmt::format("a notice of departure names rank {} of {}", rank, states_.size()));
    }
    if (rank != rank_) left(rank);
  }
  return {};
}

Status Liveness::receive_stuck(ByteView payload) {
  ByteReader reader(payload);
  const auto rank = reader.get<std::int32_t>();
  const auto on = reader.get<std::int32_t>();
  const auto serial = reader.get<std::uint32_t>();
  ORIEL_CHECK(reader.finish("a notice of waiting"));
  if (!valid(rank) || (on != -1 && !valid(on))) {
    return Error(ErrorCode::remote, fmt::format("a notice of waiting names ranks {} and {} of {}",
                                                rank, on, states_.size()));
  }
  const auto known = stuck_.find(rank);
  const std::uint32_t last = known == stuck_.end() ? 0 : known->second.serial;
  if (rank != rank_ && serial > last) set_stuck(rank, on, serial);
  return {};
}

void Liveness::stuck(int on) {
  set_stuck(rank_, on, stuck_[rank_].serial + 1);
}

void Liveness::set_stuck(int rank, int on, std::uint32_t serial) {
  ByteWriter payload;
  payload.put(static_cast<std::int32_t>(rank)).put(static_cast<std::int32_t>(on)).put(serial);
  Stuck& known = stuck_[rank];
  outgoing_.push_back(encode_frame(FrameKind::stuck, payload.take()));
  known = {on, serial};
}

ChainEnd Liveness::end_of_chain(int rank) const {
  for (std::size_t hops = 0; hops <= stuck_.size(); ++hops) {
    const auto it = stuck_.find(rank);
    if (it == stuck_.end() || it->second.on < 0) return {rank, false};
    if (it->second.on == rank) return {rank, true};
    rank = it->second.on;
  }
  return {};
}

bool Liveness::others_wait() const {
  return std::any_of(stuck_.begin(), stuck_.end(), [this](const auto& known) {
    return known.first != rank_ && state(known.first) == State::alive && known.second.on >= 0;
  });
}

std::vector<Bytes> Liveness::take_outgoing() {
  append_departures(outgoing_, departed_);
  departed_.clear();
  return std::exchange(outgoing_, {});
}

std::vector<Bytes> Liveness::everything() const {
  std::vector<Bytes> out;
  if (notice_) out.push_back(*notice_);
  std::vector<int> gone;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (states_[i] == State::left) gone.push_back(static_cast<int>(i));
  }
  append_departures(out, gone);
  return out;
}

std::vector<PeerEvent> Liveness::take_events() {
  return std::exchange(events_, {});
}

}  // namespace oriel::boot
