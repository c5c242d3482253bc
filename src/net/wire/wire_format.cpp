// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/wire/wire_format.hpp"

#include <bit>
#include <string>

#include <fmt/format.h>

#include "base/try.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {
namespace {

static_assert(std::endian::native == std::endian::little);
static_assert(kWireMessageBytesMost == kWireHeadBytesMost + kPieceBytesMost);

constexpr std::uint8_t kVersion = 1;
constexpr std::uint8_t kRequest = 1;
constexpr std::uint8_t kResponse = 2;
constexpr std::uint8_t kHasImmediate = 1;  // in requests
constexpr std::uint8_t kDirect = 2;        // in requests
constexpr std::uint8_t kRead = 4;          // in requests
constexpr std::uint8_t kNotReady = 1;      // in responses
constexpr std::uint8_t kNotMapped = 2;     // in responses
constexpr std::uint32_t kQueueMost = 0xff'ffff;

struct Common {
  std::uint8_t type = 0;
  std::uint8_t kind = 0;  // in a response the syndrome
  std::uint8_t flags = 0;
  std::uint32_t to_queue = 0;
  std::uint32_t epoch = 0;
  std::uint32_t payload_bytes = 0;
  std::uint64_t number = 0;
};

void put_common(ByteWriter& to, const Common& common) {
  to.put(kVersion).put(common.type).put(common.kind).put(common.flags);
  to.put(common.to_queue).put(common.epoch).put(common.payload_bytes).put(common.number);
}

void put_request(ByteWriter& to, const WireRequest& request) {
  const auto flags = static_cast<std::uint8_t>((request.has_immediate ? kHasImmediate : 0) |
                                               (request.direct ? kDirect : 0) |
                                               (request.source.has_value() ? kRead : 0));
  put_common(to,
             {kRequest, static_cast<std::uint8_t>(request.kind), flags, request.to_queue,
              request.epoch, static_cast<std::uint32_t>(request.payload.size()), request.number});
  to.put(request.from.value).put(request.from_queue).put(request.key);
  to.put(request.address).put(request.bytes).put(request.offset).put(request.piece_bytes);
  to.put(request.has_immediate ? request.immediate : std::uint32_t{0});
  if (request.kind == WorkKind::write && request.direct) {
    to.put(request.source_address).put(request.source_key).put(std::uint32_t{0});
  }
  if (request.source.has_value()) to.put(request.source->address).put(request.source->key);
  if (request.kind != WorkKind::atomic) return;
  const AtomicWork& atomic = request.atomic;
  to.put(static_cast<std::uint32_t>(atomic.form)).put(static_cast<std::uint32_t>(atomic.bytes));
  to.put(atomic.operand).put(atomic.boundary).put(atomic.compare);
  to.put(atomic.swap_mask).put(atomic.compare_mask);
}

void put_response(ByteWriter& to, const WireResponse& response) {
  const auto flags = static_cast<std::uint8_t>((response.not_ready ? kNotReady : 0) |
                                               (response.not_mapped ? kNotMapped : 0));
  put_common(
      to, {kResponse, static_cast<std::uint8_t>(response.syndrome), flags, response.to_queue,
           response.epoch, static_cast<std::uint32_t>(response.payload.size()), response.number});
  to.put(response.old_value);
}

Error bad(const char* field, std::uint64_t value, const std::string& wanted) {
  return Error(ErrorCode::remote,
               fmt::format("a NIC's message has {} {}; it must be {}", field, value, wanted));
}

Status check_common(const Common& common) {
  const std::uint8_t flags_most = common.type == kRequest ? kHasImmediate | kRead : kNotMapped;
  if (common.flags > flags_most) {
    return bad("flags", common.flags, fmt::format("at most {}", flags_most));
  }
  if (common.to_queue == 0 || common.to_queue > kQueueMost) {
    return bad("a queue", common.to_queue, fmt::format("1 to {}", kQueueMost));
  }
  if (common.payload_bytes > kPieceBytesMost) {
    return bad("a payload of bytes", common.payload_bytes,
               fmt::format("at most {}", kPieceBytesMost));
  }
  return {};
}

Status check_request(const Common& common, const WireRequest& request) {
  if (request.from_queue == 0 || request.from_queue > kQueueMost) {
    return bad("a sender's queue", request.from_queue, fmt::format("1 to {}", kQueueMost));
  }
  if (request.piece_bytes > kPieceBytesMost) {
    return bad("a piece of bytes", request.piece_bytes, fmt::format("at most {}", kPieceBytesMost));
  }
  const bool is_write = request.kind == WorkKind::write;
  const bool is_rendezvous = request.source.has_value();
  const std::uint32_t wanted =
      is_write && !request.direct && !is_rendezvous ? request.piece_bytes : 0;
  if (common.payload_bytes != wanted) {
    return bad("a payload of bytes", common.payload_bytes, std::to_string(wanted));
  }
  if (request.has_immediate && !is_write) return bad("an immediate", 1, "0 unless it writes");
  if (!request.has_immediate && request.immediate != 0) {
    return bad("an immediate's value", request.immediate, "0 without an immediate");
  }
  if (request.direct && request.kind == WorkKind::atomic) {
    return bad("flags", common.flags, "0 for an atomic");
  }
  if (is_rendezvous && !is_write) return bad("flags", common.flags, "those of a rendezvous write");
  return {};
}

/// Reads the source of a direct write, whose message carries no payload.
Status read_source(ByteReader& from, WireRequest& request) {
  request.source_address = from.get<std::uint64_t>();
  request.source_key = from.get<std::uint32_t>();
  const auto zero = from.get<std::uint32_t>();
  if (!from.good()) return from.finish("a request of a NIC");
  if (zero != 0) return bad("a word behind a source's key", zero, "0");
  return {};
}

Status read_atomic(ByteReader& from, AtomicWork& atomic) {
  const auto form = from.get<std::uint32_t>();
  const auto width = from.get<std::uint32_t>();
  atomic.operand = from.get<std::uint64_t>();
  atomic.boundary = from.get<std::uint64_t>();
  atomic.compare = from.get<std::uint64_t>();
  atomic.swap_mask = from.get<std::uint64_t>();
  atomic.compare_mask = from.get<std::uint64_t>();
  if (!from.good()) return from.finish("an atomic of a NIC");
  if (form > static_cast<std::uint32_t>(AtomicWork::Form::swap)) {
    return bad("an atomic's form", form, "0 or 1");
  }
  if (width != 4 && width != 8) return bad("an atomic's width", width, "4 or 8");
  atomic.form = static_cast<AtomicWork::Form>(form);
  atomic.bytes = static_cast<std::uint8_t>(width);
  return {};
}

Result<WireMessage> read_request(ByteReader& from, const Common& common) {
  WireRequest request;
  request.kind = static_cast<WorkKind>(common.kind);
  if (request.kind != WorkKind::write && request.kind != WorkKind::read &&
      request.kind != WorkKind::atomic) {
    return bad("a kind", common.kind, "a write, a read or an atomic");
  }
  request.to_queue = common.to_queue;
  request.epoch = common.epoch;
  request.number = common.number;
  request.has_immediate = (common.flags & kHasImmediate) != 0;
  request.direct = (common.flags & kDirect) != 0;
  if ((common.flags & kRead) != 0) request.source.emplace();
  request.from.value = from.get<std::uint64_t>();
  request.from_queue = from.get<std::uint32_t>();
  request.key = from.get<std::uint32_t>();
  request.address = from.get<std::uint64_t>();
  request.bytes = from.get<std::uint64_t>();
  request.offset = from.get<std::uint64_t>();
  request.piece_bytes = from.get<std::uint32_t>();
  request.immediate = from.get<std::uint32_t>();
  if (!from.good()) return from.finish("a request of a NIC").error();
  ORIEL_CHECK(check_request(common, request));
  if (request.kind == WorkKind::atomic) ORIEL_CHECK(read_atomic(from, request.atomic));
  if (request.kind == WorkKind::write && request.direct) ORIEL_CHECK(read_source(from, request));
  if (request.source.has_value()) {
    request.source->address = from.get<std::uint64_t>();
    request.source->key = from.get<std::uint64_t>();
  }
  return WireMessage{std::move(request)};
}

bool is_syndrome(std::uint8_t value) {
  switch (static_cast<Syndrome>(value)) {
    case Syndrome::none:
    case Syndrome::local_length:
    case Syndrome::local_operation:
    case Syndrome::local_protection:
    case Syndrome::flushed:
    case Syndrome::remote_invalid:
    case Syndrome::remote_access:
    case Syndrome::remote_operation:
    case Syndrome::transport_retry:
    case Syndrome::receiver_retry:
    case Syndrome::remote_gone:
      return true;
  }
  return false;
}

Result<WireMessage> read_response(ByteReader& from, const Common& common) {
  if (!is_syndrome(common.kind)) return bad("a syndrome", common.kind, "one that is known");
  WireResponse response;
  response.to_queue = common.to_queue;
  response.epoch = common.epoch;
  response.number = common.number;
  response.syndrome = static_cast<Syndrome>(common.kind);
  response.not_ready = common.flags == kNotReady;
  response.not_mapped = common.flags == kNotMapped;
  response.old_value = from.get<std::uint64_t>();
  return WireMessage{std::move(response)};
}

}  // namespace

namespace {

ByteWriter write_head(const WireMessage& message, std::size_t payload_bytes) {
  ByteWriter head(kWireHeadBytesMost + payload_bytes);
  if (const auto* request = std::get_if<WireRequest>(&message.body)) {
    put_request(head, *request);
  } else {
    put_response(head, std::get<WireResponse>(message.body));
  }
  return head;
}

}  // namespace

Bytes encode_head(const WireMessage& message) {
  return write_head(message, 0).take();
}

const Payload& payload_of(const WireMessage& message) {
  const auto* request = std::get_if<WireRequest>(&message.body);
  return request != nullptr ? request->payload : std::get<WireResponse>(message.body).payload;
}

Payload& payload_of(WireMessage& message) {
  auto* request = std::get_if<WireRequest>(&message.body);
  return request != nullptr ? request->payload : std::get<WireResponse>(message.body).payload;
}

Bytes encode_message(const WireMessage& message) {
  const Payload& payload = payload_of(message);
  ByteWriter all = write_head(message, payload.size());
  for (const ByteView part : payload.parts()) all.put_raw(part);
  return all.take();
}

Result<WireHead> decode_head(ByteView beginning, std::size_t message_bytes) {
  ByteReader from(beginning);
  const auto version = from.get<std::uint8_t>();
  Common common;
  common.type = from.get<std::uint8_t>();
  common.kind = from.get<std::uint8_t>();
  common.flags = from.get<std::uint8_t>();
  common.to_queue = from.get<std::uint32_t>();
  common.epoch = from.get<std::uint32_t>();
  common.payload_bytes = from.get<std::uint32_t>();
  common.number = from.get<std::uint64_t>();
  if (!from.good()) return from.finish("a message of a NIC").error();
  if (version != kVersion) return bad("version", version, std::to_string(kVersion));
  ORIEL_CHECK(check_common(common));
  if (common.type != kRequest && common.type != kResponse) {
    return bad("type", common.type, "a request or a response");
  }
  const bool is_request = common.type == kRequest;
  WireHead head;
  ORIEL_TRY(head.message, is_request ? read_request(from, common) : read_response(from, common));
  head.bytes = beginning.size() - from.left();
  head.payload_bytes = common.payload_bytes;
  if (!from.good() || head.bytes + head.payload_bytes != message_bytes) {
    const bool is_longer = from.good() && head.bytes + head.payload_bytes < message_bytes;
    return Error(ErrorCode::remote, fmt::format("a {} of a NIC: message is {} than expected",
                                                is_request ? "request" : "response",
                                                is_longer ? "longer" : "shorter"));
  }
  return head;
}

Result<WireMessage> decode_message(ByteView bytes) {
  ORIEL_TRY(WireHead head, decode_head(bytes, bytes.size()));
  const ByteView payload = bytes.subspan(head.bytes);
  payload_of(head.message) = Bytes(payload.begin(), payload.end());
  return std::move(head.message);
}

}  // namespace oriel::net
