// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/wire/wire_format.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include <catch2/catch.hpp>

#include "net/wire/queue_setup.hpp"

// Encoding of messages between NICs (3.23): decoding restores each message, and refuses everything
// else.
using namespace oriel;
using namespace oriel::net;

namespace {

WireRequest a_request(WorkKind kind) {
  WireRequest made;
  made.from = {0x1122334455667788};
  made.from_queue = 0xa1b2c3;
  made.to_queue = 0xffffff;
  made.epoch = 7;
  made.number = 0x8000000000000001;
  made.kind = kind;
  made.key = 0xdeadbeef;
  made.address = 0x7fff'1234'5678;
  made.bytes = 11;
  made.offset = 3;
  made.piece_bytes = 8;
  if (kind == WorkKind::write) {
    made.payload = Bytes(8, std::byte{0x5a});
    made.has_immediate = true;
    made.immediate = 0xfeedf00d;
  }
  if (kind == WorkKind::atomic) {
    made.atomic = {.form = AtomicWork::Form::swap,
                   .bytes = 4,
                   .operand = 1,
                   .boundary = 2,
                   .compare = 3,
                   .swap_mask = 4,
                   .compare_mask = ~std::uint64_t{0}};
  }
  return made;
}

WireResponse a_response() {
  WireResponse made;
  made.to_queue = 1;
  made.epoch = 0xffffffff;
  made.number = 9;
  made.syndrome = Syndrome::remote_access;
  made.not_ready = true;
  made.old_value = 0x0102030405060708;
  made.payload = Bytes(5, std::byte{9});
  return made;
}

void check_equal(const WireRequest& a, const WireRequest& b) {
  CHECK(a.from == b.from);
  CHECK(a.from_queue == b.from_queue);
  CHECK(a.to_queue == b.to_queue);
  CHECK(a.epoch == b.epoch);
  CHECK(a.number == b.number);
  CHECK(a.kind == b.kind);
  CHECK(a.key == b.key);
  CHECK(a.address == b.address);
  CHECK(a.bytes == b.bytes);
  CHECK(a.offset == b.offset);
  CHECK(a.piece_bytes == b.piece_bytes);
  CHECK(a.has_immediate == b.has_immediate);
  CHECK(a.immediate == b.immediate);
  CHECK(a.payload == b.payload);
  CHECK(a.direct == b.direct);
  CHECK(a.source_key == b.source_key);
  CHECK(a.source_address == b.source_address);
  CHECK(a.source == b.source);
  if (a.kind != WorkKind::atomic) return;
  CHECK(a.atomic.form == b.atomic.form);
  CHECK(a.atomic.bytes == b.atomic.bytes);
  CHECK(a.atomic.operand == b.atomic.operand);
  CHECK(a.atomic.boundary == b.atomic.boundary);
  CHECK(a.atomic.compare == b.atomic.compare);
  CHECK(a.atomic.swap_mask == b.atomic.swap_mask);
  CHECK(a.atomic.compare_mask == b.atomic.compare_mask);
}

// Checks that any other length is refused.
void check_length(Bytes bytes) {
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CHECK_FALSE(decode_message(ByteView(bytes).first(size)).ok());
  }
  bytes.push_back(std::byte{0});
  CHECK_FALSE(decode_message(bytes).ok());
}

// Encodes a message and overwrites bytes at `at`. Returns the error text of decoding it.
template <class T>
std::string refusal(WireMessage message, std::size_t at, T value) {
  Bytes bytes = encode_message(message);
  REQUIRE(at + sizeof value <= bytes.size());
  std::memcpy(bytes.data() + at, &value, sizeof value);
  const auto decoded = decode_message(bytes);
  REQUIRE_FALSE(decoded.ok());
  CHECK(decoded.error().code() == ErrorCode::remote);
  return decoded.error().message();
}

}  // namespace

TEST_CASE("requests and responses come back as they were sent", "[req:3.9]") {
  for (const WorkKind kind : {WorkKind::write, WorkKind::read, WorkKind::atomic}) {
    const WireMessage message{a_request(kind)};
    const Bytes bytes = encode_message(message);
    CHECK(encode_head(message).size() <= kWireHeadBytesMost);
    const auto decoded = decode_message(bytes);
    REQUIRE(decoded.ok());
    check_equal(std::get<WireRequest>(decoded.value().body), a_request(kind));
  }
  const auto decoded = decode_message(encode_message(WireMessage{a_response()}));
  REQUIRE(decoded.ok());
  const auto& response = std::get<WireResponse>(decoded.value().body);
  CHECK(response.to_queue == 1);
  CHECK(response.epoch == 0xffffffff);
  CHECK(response.number == 9);
  CHECK(response.syndrome == Syndrome::remote_access);
  CHECK(response.not_ready);
  CHECK(response.old_value == 0x0102030405060708);
  CHECK(response.payload == a_response().payload);
}

TEST_CASE("a response says what its sender has not mapped", "[req:3.9]") {
  WireResponse sent = a_response();
  sent.not_ready = false;
  sent.not_mapped = true;
  const auto decoded = decode_message(encode_message(WireMessage{sent}));
  REQUIRE(decoded.ok());
  const auto& response = std::get<WireResponse>(decoded.value().body);
  CHECK(response.not_mapped);
  CHECK_FALSE(response.not_ready);
  CHECK(refusal(WireMessage{sent}, 3, std::uint8_t{3}).find("flags") != std::string::npos);
}

TEST_CASE("a message may leave out the bytes that its receiver copies itself", "[req:3.9]") {
  for (const bool writes : {true, false}) {
    WireRequest request = a_request(writes ? WorkKind::write : WorkKind::read);
    request.direct = true;
    request.payload = {};
    if (writes) {
      request.source_key = 0x01020304;
      request.source_address = 0x7fff'0000'1111;
    }
    const WireMessage message{request};
    Bytes bytes = encode_message(message);
    CHECK(bytes.size() <= kWireHeadBytesMost);
    const auto decoded = decode_message(bytes);
    REQUIRE(decoded.ok());
    check_equal(std::get<WireRequest>(decoded.value().body), request);
    check_length(bytes);
    if (writes) {
      CHECK(refusal(message, bytes.size() - 4, std::uint32_t{1}).find("source's key") !=
            std::string::npos);
    }
    // Neither a payload in addition nor an atomic is allowed.
    request.payload = Bytes(request.piece_bytes, std::byte{1});
    CHECK_FALSE(decode_message(encode_message(WireMessage{request})).ok());
  }
  WireRequest atomic = a_request(WorkKind::atomic);
  atomic.direct = true;
  CHECK_FALSE(decode_message(encode_message(WireMessage{atomic})).ok());
}

TEST_CASE("a write may name the source of a rendezvous read instead of a payload", "[req:3.13]") {
  WireRequest request = a_request(WorkKind::write);
  request.source = WireSource{0x0102030405060708, 0xfffe'1234'5678'9abc};
  request.payload = {};
  const WireMessage message{request};
  Bytes bytes = encode_message(message);
  CHECK(bytes.size() <= kWireHeadBytesMost);
  const auto decoded = decode_message(bytes);
  REQUIRE(decoded.ok());
  check_equal(std::get<WireRequest>(decoded.value().body), request);
  check_length(bytes);
  CHECK(refusal(message, 3, std::uint8_t{6}).find("flags 6") != std::string::npos);
  CHECK(refusal(message, 3, std::uint8_t{7}).find("flags 7") != std::string::npos);
  // Neither a payload in addition nor another operation than a write is allowed.
  request.payload = Bytes(request.piece_bytes, std::byte{1});
  CHECK_FALSE(decode_message(encode_message(WireMessage{request})).ok());
  for (const WorkKind kind : {WorkKind::read, WorkKind::atomic}) {
    request = a_request(kind);
    request.source = WireSource{1, 2};
    CHECK_FALSE(decode_message(encode_message(WireMessage{request})).ok());
  }
}

TEST_CASE("a request with a piece of the largest size fits in one message", "[req:3.9]") {
  WireRequest request = a_request(WorkKind::write);
  request.bytes = request.piece_bytes = kPieceBytesMost;
  request.offset = 0;
  request.payload = Bytes(kPieceBytesMost, std::byte{1});
  const Bytes bytes = encode_message(WireMessage{request});
  CHECK(bytes.size() <= kWireMessageBytesMost);
  REQUIRE(decode_message(bytes).ok());
}

TEST_CASE("messages that are cut short or too long are refused", "[req:3.23]") {
  for (const WireMessage& message :
       {WireMessage{a_request(WorkKind::write)}, WireMessage{a_request(WorkKind::read)},
        WireMessage{a_request(WorkKind::atomic)}, WireMessage{a_response()}}) {
    check_length(encode_message(message));
  }
}

TEST_CASE("errors of messages name the field and its value", "[req:3.23]") {
  const WireMessage write{a_request(WorkKind::write)};
  const WireMessage read{a_request(WorkKind::read)};
  const WireMessage atomic{a_request(WorkKind::atomic)};
  const WireMessage response{a_response()};
  using U8 = std::uint8_t;
  using U32 = std::uint32_t;
  CHECK(refusal(write, 0, U8{2}).find("version 2") != std::string::npos);
  CHECK(refusal(write, 1, U8{0}).find("type 0") != std::string::npos);
  CHECK(refusal(write, 1, U8{3}).find("type 3") != std::string::npos);
  for (const U8 kind : {U8{0}, U8{4}, U8{5}, U8{255}}) {
    CHECK(refusal(write, 2, kind).find("kind") != std::string::npos);
  }
  CHECK(refusal(write, 3, U8{8}).find("flags 8") != std::string::npos);
  CHECK(refusal(write, 3, U8{4}).find("payload of bytes 8") != std::string::npos);
  CHECK(refusal(write, 3, U8{2}).find("payload of bytes 8") != std::string::npos);
  CHECK(refusal(write, 3, U8{0}).find("immediate's value") != std::string::npos);
  CHECK(refusal(read, 3, U8{1}).find("immediate") != std::string::npos);
  CHECK(refusal(write, 4, U32{0}).find("queue 0") != std::string::npos);
  CHECK(refusal(write, 4, U32{1u << 24}).find("16777216") != std::string::npos);
  CHECK(refusal(write, 12, U32{7}).find("payload of bytes 7") != std::string::npos);
  CHECK(refusal(write, 12, ~U32{0}).find("4294967295") != std::string::npos);
  CHECK(refusal(read, 12, U32{1}).find("payload of bytes 1") != std::string::npos);
  CHECK(refusal(write, 32, U32{0}).find("sender's queue 0") != std::string::npos);
  CHECK(refusal(read, 64, ~U32{0}).find("piece of bytes 4294967295") != std::string::npos);
  CHECK(refusal(atomic, 72, U32{2}).find("form 2") != std::string::npos);
  CHECK(refusal(atomic, 76, U32{3}).find("width 3") != std::string::npos);
  CHECK(refusal(response, 2, U8{3}).find("syndrome 3") != std::string::npos);
}

TEST_CASE("noise is refused, and what is taken has one encoding", "[req:3.23]") {
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    Bytes bytes = encode_message(i % 2 == 0 ? WireMessage{a_request(WorkKind::atomic)}
                                            : WireMessage{a_response()});
    for (unsigned spoilt = random() % 4; spoilt > 0; --spoilt) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    const auto decoded = decode_message(bytes);
    if (!decoded.ok()) continue;
    ++taken;
    REQUIRE(encode_message(decoded.value()) == bytes);
  }
  CHECK(taken > 1000);
}
