// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/wire/wire_ring.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "oriel/device/memory.hpp"

#include "base/alignment.hpp"
#include "base/try.hpp"
#include "net/wire/wire_format.hpp"

namespace oriel::net {
namespace {

constexpr std::size_t kHeaderBytes = 4096;
constexpr std::size_t kWrittenAt = 0;
constexpr std::size_t kTakenAt = 128;
constexpr std::uint64_t kUnit = 8;
// Copies shorter payloads that wrap around the end of the ring. A copy costs less than a store of
// two parts. Moreover, a word must be stored as one.
constexpr std::size_t kTwoPartsLeast = std::size_t{16} << 10;

constexpr std::uint64_t record_bytes(std::uint64_t message_bytes) {
  return round_up(sizeof(std::uint32_t) + message_bytes, kUnit);
}

std::atomic_ref<std::uint64_t> counter(const SharedMapping& memory, std::size_t at) {
  return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory.data() + at));
}

Error impossible(const char* what, std::uint64_t value, std::uint64_t own, std::size_t ring_bytes) {
  return Error(ErrorCode::remote,
               fmt::format("{} {}, which cannot be: this side is at {} in a ring "
                           "of {} bytes",
                           what, value, own, ring_bytes));
}

}  // namespace

std::size_t ring_memory_bytes(std::size_t ring_bytes) {
  return kHeaderBytes + ring_bytes;
}

std::size_t ring_message_bytes_most(std::size_t ring_bytes) {
  return ring_bytes / 2 - sizeof(std::uint32_t);
}

RingWriter::RingWriter(SharedMapping memory, std::size_t ring_bytes)
    : memory_(std::move(memory)), ring_bytes_(ring_bytes) {}

void RingWriter::copy_in(ByteView bytes) {
  std::byte* const ring = memory_.data() + kHeaderBytes;
  const std::size_t at = written_ & (ring_bytes_ - 1);
  const std::size_t first = std::min(bytes.size(), ring_bytes_ - at);
  if (first != 0) std::memcpy(ring + at, bytes.data(), first);
  if (first != bytes.size()) std::memcpy(ring, bytes.data() + first, bytes.size() - first);
  written_ += bytes.size();
}

Result<bool> RingWriter::write(ByteView head, ByteView payload) {
  const std::size_t bytes = head.size() + payload.size();
  if (bytes == 0 || bytes > ring_message_bytes_most(ring_bytes_)) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a message of {} bytes for a ring that takes 1 to {}", bytes,
                             ring_message_bytes_most(ring_bytes_)))
        .with_hint("send 1 byte or more, in pieces that fit");
  }
  const std::uint64_t needed = record_bytes(bytes);
  if (written_ - taken_ + needed > ring_bytes_) {
    const std::uint64_t seen = counter(memory_, kTakenAt).load(std::memory_order_acquire);
    // The counter only grows, and not beyond what was written.
    if (seen - taken_ > written_ - taken_ || seen % kUnit != 0) {
      return impossible("its reader says that it has taken", seen, written_, ring_bytes_);
    }
    taken_ = seen;
    if (written_ - taken_ + needed > ring_bytes_) return false;
  }
  const std::uint64_t end = written_ + needed;
  const auto length = static_cast<std::uint32_t>(bytes);
  copy_in(std::as_bytes(std::span(&length, 1)));
  copy_in(head);
  copy_in(payload);
  written_ = end;
  device::arch::annotate_happens_before();
  counter(memory_, kWrittenAt).store(written_, std::memory_order_release);
  return true;
}

RingReader::RingReader(SharedMapping memory, std::size_t ring_bytes)
    : memory_(std::move(memory)), ring_bytes_(ring_bytes) {}

Result<std::size_t> RingReader::begin() {
  const std::uint64_t written = counter(memory_, kWrittenAt).load(std::memory_order_acquire);
  const std::uint64_t there = written - taken_;
  if (there == 0) return std::size_t{0};
  device::arch::annotate_happens_after();
  if (there > ring_bytes_ || there % kUnit != 0) {
    return impossible("its writer says that it has written", written, taken_, ring_bytes_);
  }
  // Read once: the value that is checked here is the one used below. The length does not wrap,
  // because records begin at multiples of 8.
  std::memcpy(&length_, memory_.data() + kHeaderBytes + (taken_ & (ring_bytes_ - 1)),
              sizeof length_);
  if (length_ == 0 || length_ > ring_message_bytes_most(ring_bytes_) ||
      record_bytes(length_) > there) {
    return impossible("its writer announces a message of bytes", length_, taken_, ring_bytes_);
  }
  return std::size_t{length_};
}

void RingReader::copy_out(std::size_t from, std::size_t count, Bytes& to) const {
  const std::byte* const ring = memory_.data() + kHeaderBytes;
  const std::size_t at = (taken_ + sizeof length_ + from) & (ring_bytes_ - 1);
  const std::size_t first = std::min(count, ring_bytes_ - at);
  to.insert(to.end(), ring + at, ring + at + first);
  to.insert(to.end(), ring, ring + (count - first));
}

Payload RingReader::expose(std::size_t from, std::size_t count) const {
  const std::byte* const ring = memory_.data() + kHeaderBytes;
  const std::size_t at = (taken_ + sizeof length_ + from) & (ring_bytes_ - 1);
  const std::size_t first = std::min(count, ring_bytes_ - at);
  return Payload::borrow({ring + at, first}, {ring, count - first});
}

void RingReader::end() {
  taken_ += record_bytes(length_);
  counter(memory_, kTakenAt).store(taken_, std::memory_order_release);
}

void RingWire::add_peer(WireAddress peer, int rank, std::uint32_t queue, RingWriter writer,
                        RingReader reader, RingDoorbell doorbell) {
  places_[peer.value] = connections_.size();
  connections_.push_back(
      {peer, rank, queue, std::move(writer), std::move(reader), std::move(doorbell)});
}

void RingWire::kill(Connection& connection, Error error) {
  connection.dead = true;
  const std::lock_guard lock(failure_mutex_);
  if (failure_) return;
  failure_ = std::move(error)
                 .with_origin(connection.rank)
                 .with_context(fmt::format("on the ring between this NIC and that of rank {}",
                                           connection.rank));
}

bool RingWire::send(WireAddress to, WireMessage& message) {
  const auto place = places_.find(to.value);
  if (place == places_.end()) return true;
  Connection& connection = connections_[place->second];
  if (connection.dead) return true;
  auto sent = connection.writer.write(encode_head(message), payload_of(message).joined());
  if (!sent.ok()) {
    kill(connection, std::move(sent).error());
    return true;
  }
  if (sent.value()) device::ring(connection.doorbell.doorbell());
  return sent.value();
}

bool RingWire::receive(WireMessage& message) {
  end_receive();
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const std::size_t place = next_;
    next_ = next_ + 1 == connections_.size() ? 0 : next_ + 1;
    if (!connections_[place].dead && receive_from(place, message)) return true;
  }
  return false;
}

void RingWire::end_receive() {
  if (!exposed_.has_value()) return;
  Connection& connection = connections_[*exposed_];
  exposed_.reset();
  connection.reader.end();
  // The writer may be waiting for room.
  device::ring(connection.doorbell.doorbell());
}

bool RingWire::receive_from(std::size_t place, WireMessage& message) {
  Connection& connection = connections_[place];
  auto read = read_from(connection, message);
  if (!read.ok()) {
    kill(connection, std::move(read).error());
    return false;
  }
  if (!read.value()) return false;
  exposed_ = place;
  if (!payload_of(message).is_borrowed()) end_receive();
  return true;
}

Payload RingWire::payload_on(const Connection& connection, const WireHead& head) {
  Payload payload = connection.reader.expose(head.bytes, head.payload_bytes);
  if (payload.size() < kTwoPartsLeast) static_cast<void>(payload.joined());
  return payload;
}

Result<bool> RingWire::read_from(Connection& connection, WireMessage& message) {
  ORIEL_TRY(const std::size_t length, connection.reader.begin());
  if (length == 0) return false;
  beginning_.clear();
  connection.reader.copy_out(0, std::min(length, kWireHeadBytesMost), beginning_);
  ORIEL_TRY(WireHead head, decode_head(beginning_, length));
  ORIEL_CHECK(check_sender(connection, head.message));
  message = std::move(head.message);
  payload_of(message) = payload_on(connection, head);
  return true;
}

Status RingWire::check_sender(const Connection& connection, const WireMessage& message) {
  const auto* request = std::get_if<WireRequest>(&message.body);
  if (request != nullptr && !(request->from == connection.peer)) {
    return Error(ErrorCode::remote, fmt::format("it asks in the name of NIC {:#x}, but is {:#x}",
                                                request->from.value, connection.peer.value));
  }
  const std::uint32_t queue =
      request != nullptr ? request->to_queue : std::get<WireResponse>(message.body).to_queue;
  if (connection.queue == 0 || queue == connection.queue) return {};
  return Error(ErrorCode::remote, fmt::format("it speaks to queue {:#x}, but its own is {:#x}",
                                              queue, connection.queue));
}

std::optional<Error> RingWire::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

}  // namespace oriel::net
