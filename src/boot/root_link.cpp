// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/root_link.hpp"

#include <array>

#include <fmt/format.h>

#include "base/try.hpp"
#include "boot/tcp.hpp"
#include "boot/verdict.hpp"

namespace oriel::boot {

Session::RootLink::~RootLink() {
  links_->poller().remove(token_);
}

Status Session::RootLink::greet(const RootHello& hello) {
  size_ = hello.size;
  const Bytes bytes = hello.encode();
  const ByteView view = bytes;
  ORIEL_TRY(const IoOutcome sent, write_some(fd_.get(), std::span(&view, 1)));
  if (sent.bytes != view.size()) return gone();
  return {};
}

Status Session::RootLink::read() {
  std::array<std::byte, 4096> buffer;
  for (;;) {
    ORIEL_TRY(const IoOutcome got, read_some(fd_.get(), buffer));
    if (got.would_block) return {};
    if (got.closed) return gone();
    std::vector<Frame> frames;
    ORIEL_CHECK(reader_.feed(ByteView(buffer).first(got.bytes), frames));
    for (const Frame& frame : frames) ORIEL_CHECK(on_frame(frame));
  }
}

Status Session::RootLink::on_frame(const Frame& frame) {
  ByteReader reader(frame.payload);
  switch (frame.kind) {
    case FrameKind::root_host: {
      const auto rank = reader.get<std::int32_t>();
      ORIEL_CHECK(reader.finish("the root service's notice"));
      if (rank >= 0 && rank < size_) host_rank_ = rank;
      return {};
    }
    case FrameKind::root_peers: {
      ORIEL_TRY(peers_, decode_peers(frame.payload, size_));
      return {};
    }
    case FrameKind::root_error: {
      std::optional<Error> error;
      ORIEL_CHECK(ErrorRecord::decode(reader, error));
      ORIEL_CHECK(reader.finish("the root service's error"));
      return std::move(*error);
    }
    default:
      return Error(ErrorCode::remote, "the root service sent a frame meant for links");
  }
}

Error Session::RootLink::gone() const {
  const char* what = "which serves the rendezvous, has died before all ranks had joined";
  if (host_rank_ < 0) {
    return Error(ErrorCode::remote, fmt::format("the process that made the unique id, {}", what));
  }
  return Error(ErrorCode::remote, fmt::format("rank {}, {}", host_rank_, what))
      .with_origin(host_rank_);
}

Status Session::RootLink::watch() {
  ORIEL_TRY(token_, links_->poller().add(fd_.get(), EPOLLIN, [this](std::uint32_t) {
    const Status status = read();
    if (status.ok()) return;
    links_->poller().remove(token_);
    links_->liveness().aborted(rank_, status.error());
  }));
  return {};
}

void Session::RootLink::done() {
  say(std::array{kRootDone});
}

void Session::RootLink::give_up(const Error& reason) {
  if (size_ == 0) return;  // not greeted yet
  ByteWriter word;
  word.put(kRootGaveUp);
  ErrorRecord::encode(word, reason);
  say(word.take());
}

void Session::RootLink::say(ByteView word) {
  // If it cannot be written the root service is gone, and has no more use for it.
  static_cast<void>(write_some(fd_.get(), std::span(&word, 1)));
}

}  // namespace oriel::boot
