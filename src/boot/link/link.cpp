// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/link.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/try.hpp"

namespace oriel::boot {
namespace {

constexpr int kReadsAtOnce = 16;  // then the other links get their turn
constexpr std::size_t kBuffersAtOnce = 16;

}  // namespace

Status Link::watch(Poller::Handler handler) {
  ORIEL_TRY(token_, poller_->add(fd_.get(), EPOLLIN, std::move(handler)));
  return {};
}

void Link::enqueue(Bytes frame) {
  if (closed_) return;
  queue_bytes_ += frame.size();
  queue_.push_back(std::move(frame));
}

bool Link::unsent() const {
  return !closed_ && (queue_bytes_ > 0 || unsent_bytes(fd_.get()) > 0);
}

Result<bool> Link::write() {
  while (!closed_ && !queue_.empty()) {
    ORIEL_TRY(const IoOutcome sent, write_queue());
    if (sent.would_block) break;
    if (sent.closed) {
      silent_ = sent.silent;
      queue_.clear();
      queue_bytes_ = queue_offset_ = 0;
      return false;
    }
    take_off_queue(sent.bytes);
  }
  ORIEL_CHECK(update_interest());
  return true;
}

Result<bool> Link::read(bool to_the_end, std::span<std::byte> scratch,
                        std::vector<Frame>& notices) {
  for (int i = 0; !closed_ && (to_the_end || i < kReadsAtOnce); ++i) {
    if (!to_the_end && inbox_bytes_ > kMaxInboxBytes) break;
    ORIEL_TRY(const IoOutcome got, read_some(fd_.get(), scratch));
    if (got.closed) {
      silent_ = silent_ || got.silent;
      return false;
    }
    if (got.would_block) break;
    std::vector<Frame> frames;
    const Status fed = reader_.feed(ByteView(scratch).first(got.bytes), frames);
    for (Frame& frame : frames) {
      if (frame.kind != FrameKind::message) {
        notices.push_back(std::move(frame));
        continue;
      }
      inbox_bytes_ += frame.payload.size();
      inbox_.push_back(std::move(frame.payload));
    }
    if (!fed.ok()) return fed.error();
    if (got.bytes < scratch.size() && !to_the_end) break;
  }
  ORIEL_CHECK(update_interest());
  return true;
}

void Link::drain_and_close(std::span<std::byte> scratch) {
  while (!queue_.empty()) {
    const auto sent = write_queue();
    if (!sent.ok() || sent.value().bytes == 0) break;
    take_off_queue(sent.value().bytes);
  }
  // If unread bytes remained, the kernel would reset the connection and discard unsent data.
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const auto got = read_some(fd_.get(), scratch);
    if (!got.ok() || got.value().bytes == 0) break;
  }
  close();
}

void Link::close() {
  poller_->remove(token_);
  token_ = 0;
  closed_ = true;
  fd_.reset();
  queue_.clear();
  queue_bytes_ = queue_offset_ = 0;
}

std::optional<Bytes> Link::pop() {
  if (inbox_.empty()) return std::nullopt;
  Bytes message = std::move(inbox_.front());
  inbox_.pop_front();
  inbox_bytes_ -= message.size();
  static_cast<void>(update_interest());  // an error here recurs at the next read
  return message;
}

Result<IoOutcome> Link::write_queue() const {
  std::array<ByteView, kBuffersAtOnce> buffers;
  const std::size_t count = std::min(queue_.size(), buffers.size());
  for (std::size_t i = 0; i < count; ++i) buffers[i] = queue_[i];
  buffers[0] = buffers[0].subspan(queue_offset_);
  return write_some(fd_.get(), std::span(buffers).first(count));
}

void Link::take_off_queue(std::size_t bytes) {
  queue_bytes_ -= bytes;
  queue_offset_ += bytes;
  while (!queue_.empty() && queue_offset_ >= queue_.front().size()) {
    queue_offset_ -= queue_.front().size();
    queue_.pop_front();
  }
}

Status Link::update_interest() {
  if (closed_) return {};
  std::uint32_t events = EPOLLRDHUP;
  if (inbox_bytes_ <= kMaxInboxBytes) events |= EPOLLIN;
  if (!queue_.empty()) events |= EPOLLOUT;
  return poller_->watch(token_, events);
}

}  // namespace oriel::boot
