// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_message.hpp"

#include <cstring>
#include <set>
#include <string>

#include <catch2/catch.hpp>

// What ranks tell each other of their NICs and windows (3.15), and what is refused of it (3.23).
using namespace oriel;
using namespace oriel::comm;

namespace {

KeysMessage some_keys() {
  return {.failed = false,
          .direct = true,
          .backups = 2,
          .keys = {{1, 0x1000, 4096, 7, {8192, 4096, 77, 78}, {9, 10}},
                   {5, 0x9000, 1, ~0u, {}, {11, 12}}}};
}

NetworkHello some_hello() {
  NetworkHello hello;
  hello.fabrics = {Bytes(50, std::byte{7}), Bytes(20, std::byte{8})};
  hello.socket.fill(std::byte{9});
  hello.first_queue = 0xffffff;
  hello.windows = some_keys();
  return hello;
}

/// One with IPv4, one of which nothing is known, and one with IPv6.
NetworkPlace some_place() {
  NetworkPlace place{0x1234567812345678, std::vector<PathInterface>(3)};
  place.interfaces[0] = {4, {10, 78, 1, 2}, {{16, {10, 78}}, {31, {10, 78, 1, 2}}}};
  place.interfaces[2] = {6, {0xfd, 0, 1}, {{1, {0x80}}, {127, {0xfd, 0, 1}}}};
  return place;
}

std::string refusal_of(const NetworkPlace& place) {
  const auto decoded = decode_place(encode(place));
  REQUIRE_FALSE(decoded.ok());
  CHECK(decoded.error().code() == ErrorCode::remote);
  return decoded.error().message();
}

std::string refusal(const KeysMessage& message) {
  const auto decoded = decode_keys(encode(message));
  REQUIRE_FALSE(decoded.ok());
  CHECK(decoded.error().code() == ErrorCode::remote);
  return decoded.error().message();
}

}  // namespace

TEST_CASE("only ranks of the own machine share its processors", "[req:3.15]") {
  const std::vector<NetworkPlace> places{{1, {}}, {2, {}}, {1, {}}, {3, {}}, {1, {}}};
  CHECK(ranks_beside(places, 0) == 3);
  CHECK(ranks_beside(places, 1) == 1);
  CHECK(ranks_beside(places, 4) == 3);
}

TEST_CASE("what ranks tell of their networks comes back", "[req:3.15]") {
  CHECK(decode_keys(encode(some_keys())).value() == some_keys());
  CHECK(decode_keys(encode(KeysMessage{.failed = true})).value() == KeysMessage{.failed = true});
  CHECK(decode_hello(encode(some_hello())).value() == some_hello());
  CHECK(decode_place(encode(some_place())).value() == some_place());
  CHECK(decode_place(encode(NetworkPlace{})).value() == NetworkPlace{});
}

TEST_CASE("messages about networks that are cut short, too long or make no sense are refused",
          "[req:3.23]") {
  const Bytes keys = encode(some_keys());
  for (std::size_t size = 0; size < keys.size(); ++size) {
    CHECK_FALSE(decode_keys(ByteView(keys).first(size)).ok());
  }
  Bytes hello = encode(some_hello());
  for (std::size_t size = 0; size < hello.size(); ++size) {
    CHECK_FALSE(decode_hello(ByteView(hello).first(size)).ok());
  }
  hello.push_back(std::byte{0});
  CHECK_FALSE(decode_hello(hello).ok());

  KeysMessage message = some_keys();
  message.keys[1].number = 1;
  CHECK(refusal(message).find("window 1 behind 1") != std::string::npos);
  message = some_keys();
  message.keys[0].number = 0;
  CHECK(refusal(message).find("window 0") != std::string::npos);
  message = some_keys();
  message.keys[0].key = 0;
  CHECK(refusal(message).find("key 0 for window 1") != std::string::npos);
  message = some_keys();
  message.keys[1].bytes = 0;
  CHECK(refusal(message).find("0 bytes") != std::string::npos);
  message = some_keys();
  message.keys[1].address = ~std::uint64_t{0} - 3;
  message.keys[1].bytes = 5;
  CHECK(refusal(message).find("window 5") != std::string::npos);

  message = some_keys();
  message.keys[0].source.offset = 4097;
  CHECK(refusal(message).find("window 1 of 4096 bytes at 4097 of an allocation of 8192") !=
        std::string::npos);
  message = some_keys();
  message.keys[0].source.memory_bytes = 0;
  CHECK(refusal(message).find("window 1") != std::string::npos);

  // A count for which no message has room is not believed, and nothing is allocated for it.
  Bytes many = keys;
  const std::uint32_t count = ~0u;
  std::memcpy(many.data() + 3, &count, sizeof count);
  CHECK(decode_keys(many).error().message().find("4294967295") != std::string::npos);
  many[2] = std::byte{4};
  CHECK(decode_keys(many).error().message().find("5 NICs") != std::string::npos);
  many[1] = std::byte{2};
  CHECK(decode_keys(many).error().message().find("readiness") != std::string::npos);
  many[0] = std::byte{2};
  CHECK(decode_keys(many).error().message().find("verdict") != std::string::npos);

  NetworkHello far = some_hello();
  far.fabrics[1].resize(1000);
  CHECK(decode_hello(encode(far)).error().message().find("1000") != std::string::npos);
  far.fabrics.assign(5, Bytes(1, std::byte{0}));
  CHECK(decode_hello(encode(far)).error().message().find("5 fabric wires") != std::string::npos);
  NetworkHello strange = some_hello();
  strange.first_queue = 1u << 24;
  CHECK(decode_hello(encode(strange)).error().message().find("0x1000000") != std::string::npos);
}

TEST_CASE("pieces of windows come back, or are refused", "[req:3.2][req:3.23]") {
  KeysMessage sound{.backups = 1, .keys = {{3, 0x10'0000'0000 + 100, 1 << 20, 7, {}, {9}}}};
  sound.keys.push_back(sound.keys[0]);
  sound.keys[1].number = 4;
  sound.keys[0].later_pieces = {{8192 - 100, 11, {12}}, {65'536 - 100, 11, {0}}};
  const Bytes encoded = encode(sound);
  CHECK(decode_keys(encoded).value() == sound);
  for (std::size_t size = 0; size < encoded.size(); ++size) {
    CHECK_FALSE(decode_keys(ByteView(encoded).first(size)).ok());
  }
  const auto expect = [&](const char* words, const auto& spoil) {
    KeysMessage message = sound;
    spoil(message.keys[0]);
    INFO(words);
    CHECK(refusal(message).find(words) != std::string::npos);
  };
  expect("with a piece at 0 behind one at 0", [](WindowKey& key) {
    key.address -= 100;
    key.later_pieces[0].begin = 0;
  });
  expect("with a piece at 8092 behind one at 8092",
         [](WindowKey& key) { key.later_pieces[1].begin = 8192 - 100; });
  expect("with a piece at 1048576 behind", [](WindowKey& key) {
    key.address -= 100;
    key.later_pieces = {{1 << 20, 1, {1}}};
  });
  expect("with a piece at 8091 behind", [](WindowKey& key) { --key.later_pieces[0].begin; });
  expect("with the key 0 at 65436", [](WindowKey& key) { key.later_pieces[1].key = 0; });
  expect("in pieces", [](WindowKey& key) { key.bytes = (std::uint64_t{1} << 46) + 1; });
  expect("in pieces and in one allocation", [](WindowKey& key) {
    key.source = {1 << 21, 0, 77, 78};
  });
  // Chunks of 4096 bytes: as many as there may be, and one more.
  const std::uint64_t most = (std::uint64_t{1} << 32) - 8192 - 100;
  KeysMessage many = sound;
  many.keys[0].bytes = most + 8192;
  many.keys[0].later_pieces = {{8192 - 100, 1, {1}}, {most, 1, {1}}, {most + 4096, 1, {1}}};
  CHECK(decode_keys(encode(many)).ok());
  expect("in 1048577 chunks", [&](WindowKey& key) {
    key = many.keys[0];
    key.bytes += 101;
  });
  // A count for which no message has room is not believed, and nothing is allocated for it.
  Bytes strange = encode(KeysMessage{.keys = {{3, 4096, 4096, 7, {}, {}}}});
  const std::uint32_t count = ~0u;
  std::memcpy(strange.data() + strange.size() - 4, &count, sizeof count);
  CHECK(decode_keys(strange).error().message().find("4294967295 pieces of window 3") !=
        std::string::npos);
}

TEST_CASE("more keys than ranks can gather are refused before anybody is asked for them",
          "[req:3.2]") {
  CHECK(check_room(1000, 2).ok());
  CHECK(check_room(1000, 65'536).ok());
  CHECK(check_room((64 << 20) - 16, 2).ok());
  const Status refused = check_room(131'072, 1024);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().to_string().find(
            "131072 bytes; among 1024 ranks there is room for 131056") != std::string::npos);
  CHECK_FALSE(check_room(113, 1 << 20).ok());
}

TEST_CASE("places that are cut short, too long or make no sense are refused", "[req:3.23]") {
  Bytes place = encode(some_place());
  for (std::size_t size = 0; size < place.size(); ++size) {
    CHECK_FALSE(decode_place(ByteView(place).first(size)).ok());
  }
  CHECK(decode_place(place).ok());
  place.push_back(std::byte{0});
  CHECK_FALSE(decode_place(place).ok());
  for (const std::size_t paths : {std::size_t{0}, std::size_t{5}}) {
    NetworkPlace other = some_place();
    other.interfaces.resize(paths);
    CHECK(refusal_of(other).find(std::to_string(paths) + " paths") != std::string::npos);
  }

  NetworkPlace strange = some_place();
  strange.interfaces[0].family = 5;
  CHECK(refusal_of(strange).find("family 5") != std::string::npos);
  strange = some_place();
  strange.interfaces[2].networks.assign(33, {1, {0x80}});
  CHECK(refusal_of(strange).find("33 networks") != std::string::npos);
  // Everything, more bits than there are, and bits behind the prefix.
  for (const IpNetwork& network :
       {IpNetwork{}, IpNetwork{33, {10}}, IpNetwork{255, {10}}, IpNetwork{6, {10}}}) {
    strange = some_place();
    strange.interfaces[0].networks[1] = network;
    const std::string expected = "a prefix of " + std::to_string(network.length) + " bits";
    CHECK(refusal_of(strange).find(expected) != std::string::npos);
  }
  strange.interfaces[0] = {6, {}, {{129, {}}}};
  CHECK(refusal_of(strange).find("a prefix of 129 bits") != std::string::npos);
}

TEST_CASE("what a rank tells of its queues does not grow with the ranks", "[req:3.15]") {
  const std::size_t bytes = encode(some_hello()).size();
  CHECK(bytes == 16 + 1 + 4 + 50 + 4 + 20 + 4 + 4 + encode(some_keys()).size());
  std::set<std::uint32_t> numbers;
  for (int rank = 0; rank < 65'536; ++rank) numbers.insert(queue_number(0xabcdef, rank));
  CHECK(numbers.size() == 65'536);
  CHECK(*numbers.rbegin() <= 0xffffff);
}
