// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/root_link.hpp"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "boot/link/tcp.hpp"
#include "boot/link/vote_record.hpp"

namespace oriel::boot {

namespace {

constexpr Duration kNoticeTime = std::chrono::seconds(1);

Bytes last_word(const Error& reason) {
  ByteWriter word;
  word.put(kRootGaveUp);
  ErrorRecord::encode(word, reason);
  return word.take();
}

// Waits until the root service closes the connection, after it has read and forwarded our last
// message. If this end closed first, and bytes had arrived meanwhile, that message would be lost.
Task<void> until_closed(EventLoop& loop, int fd, Deadline end) {
  std::array<std::byte, 1024> unread;
  for (;;) {
    const Status ready = co_await loop.readable(fd, end);
    if (!ready.ok()) co_return;
    const auto got = read_some(fd, unread);
    if (!got.ok() || got.value().closed) co_return;
  }
}

}  // namespace

RootLink::~RootLink() {
  links_->poller().remove(token_);
}

Task<void> RootLink::linger(EventLoop& loop) {
  if (!hello_sent_) co_return;
  co_await until_closed(loop, fd_.get(), Deadline::after(kNoticeTime, loop.clock()));
}

void RootLink::take(OwnedFd fd) {
  fd_ = std::move(fd);
  reader_ = FrameReader();
  hello_sent_ = received_ = turned_away_ = false;
}

Status RootLink::send_hello(const RootHello& hello) {
  size_ = hello.size;
  const Bytes bytes = hello.encode();
  const ByteView view = bytes;
  ORIEL_TRY(const IoOutcome sent, write_some(fd_.get(), std::span(&view, 1)));
  if (sent.bytes != view.size()) return ended();
  hello_sent_ = true;
  return {};
}

Status RootLink::read() {
  std::array<std::byte, 4096> buffer;
  for (;;) {
    ORIEL_TRY(const IoOutcome got, read_some(fd_.get(), buffer));
    if (got.would_block) return {};
    if (got.closed) return ended();
    std::vector<Frame> frames;
    ORIEL_CHECK(reader_.feed(ByteView(buffer).first(got.bytes), frames));
    received_ = received_ || !frames.empty();
    for (const Frame& frame : frames) ORIEL_CHECK(on_frame(frame));
  }
}

Status RootLink::on_frame(const Frame& frame) {
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

Error RootLink::ended() {
  turned_away_ = !received_;
  if (turned_away_) hello_sent_ = false;
  return gone();
}

Error RootLink::gone() const {
  const char* what = "which serves the rendezvous, has died before all ranks had joined";
  if (host_rank_ < 0) {
    return Error(ErrorCode::remote, fmt::format("the process that made the unique id, {}", what));
  }
  return Error(ErrorCode::remote, fmt::format("rank {}, {}", host_rank_, what))
      .with_origin(host_rank_);
}

Status RootLink::watch() {
  ORIEL_TRY(token_, links_->poller().add(fd_.get(), EPOLLIN, [this](std::uint32_t) {
    const Status status = read();
    if (status.ok()) return;
    links_->poller().remove(token_);
    links_->liveness().aborted(rank_, status.error());
  }));
  return {};
}

void RootLink::done() {
  send(std::array{kRootDone});
}

void RootLink::give_up(const Error& reason) {
  if (!hello_sent_) return;
  links_->poller().remove(std::exchange(token_, 0));  // for linger()
  // If unread bytes remained, close() would reset the connection and lose our last message.
  std::array<std::byte, 4096> unread;
  for (auto got = read_some(fd_.get(), unread); got.ok() && got.value().bytes > 0;) {
    got = read_some(fd_.get(), unread);
  }
  send(last_word(reason));
}

void RootLink::send(ByteView word) {
  // If the write fails, the root service is gone and no longer needs the message.
  static_cast<void>(write_some(fd_.get(), std::span(&word, 1)));
}

Task<Status> notify_root(EventLoop& loop, DialTarget target, RootHello hello, Error reason,
                         Deadline deadline) {
  const Deadline end = earlier(deadline, Deadline::after(kNoticeTime, loop.clock()));
  const Retries::Timeouts timeout = {.refused = kNoticeTime, .local = kNoticeTime};
  ORIEL_CO_TRY(const OwnedFd connection, co_await dial(loop, target, timeout, end));
  const Bytes introduction = hello.encode();
  const Bytes word = last_word(reason);
  const std::array<ByteView, 2> views = {introduction, word};
  const int fd = connection.get();
  ORIEL_CO_CHECK(write_some(fd, views));
  co_await until_closed(loop, fd, end);
  co_return Status();
}

}  // namespace oriel::boot
