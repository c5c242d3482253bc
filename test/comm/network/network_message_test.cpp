// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_message.hpp"

#include <cstring>
#include <set>
#include <string>

#include <catch2/catch.hpp>

// Messages in which ranks describe their NICs and windows (3.15), and messages that are refused
// (3.23).
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

/// Returns a place with three interfaces: IPv4, unknown, and IPv6.
NetworkPlace some_place() {
  NetworkPlace place{0x1234567812345678, std::vector<PathInterface>(3)};
  place.interfaces[0] = {4, {10, 78, 1, 2}, {{16, {10, 78}}, {31, {10, 78, 1, 2}}}};
  place.interfaces[2] = {6, {0xfd, 0, 1}, {{1, {0x80}}, {127, {0xfd, 0, 1}}}};
  return place;
}

/// Checks that decoding `message` fails with these words.
void check_refused(const NetworkPlace& message, const std::string& words) {
  const auto decoded = decode_place(encode(message));
  REQUIRE_FALSE(decoded.ok());
  CHECK(decoded.error().code() == ErrorCode::remote);
  CHECK_THAT(decoded.error().message(), Catch::Contains(words));
}
void check_refused(const KeysMessage& message, const std::string& words) {
  const auto decoded = decode_keys(encode(message));
  REQUIRE_FALSE(decoded.ok());
  CHECK(decoded.error().code() == ErrorCode::remote);
  CHECK_THAT(decoded.error().message(), Catch::Contains(words));
}

template <class Decode>
void check_cut_short(const Bytes& message, const Decode& decode) {
  CHECK(decode(message).ok());
  for (std::size_t size = 0; size < message.size(); ++size) {
    CHECK_FALSE(decode(ByteView(message).first(size)).ok());
  }
}

}  // namespace

TEST_CASE("only ranks of the own machine share its processors", "[req:3.15]") {
  const std::vector<NetworkPlace> places{{1, {}}, {2, {}}, {1, {}}, {3, {}}, {1, {}}};
  CHECK(ranks_beside(places, 0) == 3);
  CHECK(ranks_beside(places, 1) == 1);
  CHECK(ranks_beside(places, 4) == 3);
}

TEST_CASE("messages about a rank's network decode to the values that were encoded", "[req:3.15]") {
  CHECK(decode_keys(encode(some_keys())).value() == some_keys());
  CHECK(decode_keys(encode(KeysMessage{.failed = true})).value() == KeysMessage{.failed = true});
  CHECK(decode_hello(encode(some_hello())).value() == some_hello());
  CHECK(decode_place(encode(some_place())).value() == some_place());
  CHECK(decode_place(encode(NetworkPlace{})).value() == NetworkPlace{});
}

TEST_CASE("messages about networks that are cut short, too long or make no sense are refused",
          "[req:3.23]") {
  check_cut_short(encode(some_keys()), decode_keys);
  Bytes hello = encode(some_hello());
  check_cut_short(hello, decode_hello);
  hello.push_back(std::byte{0});
  CHECK_FALSE(decode_hello(hello).ok());

  const auto expect = [](const char* words, const auto& spoil) {
    KeysMessage message = some_keys();
    spoil(message.keys[0], message.keys[1]);
    check_refused(message, words);
  };
  expect("window 1 behind 1", [](auto&, auto& second) { second.number = 1; });
  expect("window 0", [](auto& first, auto&) { first.number = 0; });
  expect("key 0 for window 1", [](auto& first, auto&) { first.key = 0; });
  expect("0 bytes", [](auto&, auto& second) { second.bytes = 0; });
  expect("window 5",
         [](auto&, auto& second) { second.address = ~std::uint64_t{0} - 3, second.bytes = 5; });
  expect("window 1 of 4096 bytes at 4097 of an allocation of 8192",
         [](auto& first, auto&) { first.source.offset = 4097; });
  expect("window 1", [](auto& first, auto&) { first.source.memory_bytes = 0; });

  // A count that exceeds the message is refused, without an allocation.
  Bytes many = encode(some_keys());
  const std::uint32_t count = ~0u;
  std::memcpy(many.data() + 3, &count, sizeof count);
  const auto words_for = [&] { return decode_keys(many).error().message(); };
  CHECK_THAT(words_for(), Catch::Contains("4294967295"));
  many[2] = std::byte{4};
  CHECK_THAT(words_for(), Catch::Contains("5 NICs"));
  many[1] = std::byte{2};
  CHECK_THAT(words_for(), Catch::Contains("readiness"));
  many[0] = std::byte{2};
  CHECK_THAT(words_for(), Catch::Contains("result"));

  const auto expect_hello = [](const char* words, const auto& spoil) {
    NetworkHello message = some_hello();
    spoil(message);
    CHECK_THAT(decode_hello(encode(message)).error().message(), Catch::Contains(words));
  };
  expect_hello("1000", [](auto& far) { far.fabrics[1].resize(1000); });
  expect_hello("5 fabric wires", [](auto& far) { far.fabrics.assign(5, Bytes(1)); });
  expect_hello("0x1000000", [](auto& strange) { strange.first_queue = 1u << 24; });
}

TEST_CASE("pieces of windows come back, or are refused", "[req:3.2][req:3.23]") {
  KeysMessage sound{.backups = 1, .keys = {{3, 0x10'0000'0000 + 100, 1 << 20, 7, {}, {9}}}};
  sound.keys.push_back(sound.keys[0]);
  sound.keys[1].number = 4;
  sound.keys[0].later_pieces = {{8192 - 100, 11, {12}}, {65'536 - 100, 11, {0}}};
  CHECK(decode_keys(encode(sound)).value() == sound);
  check_cut_short(encode(sound), decode_keys);
  const auto expect = [&](const char* words, const auto& spoil) {
    KeysMessage message = sound;
    spoil(message.keys[0]);
    check_refused(message, words);
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
  // Chunks of 4096 bytes: the maximum number, and one more.
  const std::uint64_t most = (std::uint64_t{1} << 32) - 8192 - 100;
  KeysMessage many = sound;
  many.keys[0].bytes = most + 8192;
  many.keys[0].later_pieces = {{8192 - 100, 1, {1}}, {most, 1, {1}}, {most + 4096, 1, {1}}};
  CHECK(decode_keys(encode(many)).ok());
  expect("in 1048577 chunks", [&](WindowKey& key) {
    key = many.keys[0];
    key.bytes += 101;
  });
  // A count that exceeds the message is refused, without an allocation.
  Bytes strange = encode(KeysMessage{.keys = {{3, 4096, 4096, 7, {}, {}}}});
  const std::uint32_t count = ~0u;
  std::memcpy(strange.data() + strange.size() - 4, &count, sizeof count);
  CHECK(decode_keys(strange).error().message().find("4294967295 pieces of window 3") !=
        std::string::npos);
}

TEST_CASE("more keys than ranks can gather are refused before anybody is asked for them",
          "[req:3.2]") {
  CHECK(check_message_bytes(1000, 2).ok());
  CHECK(check_message_bytes(1000, 65'536).ok());
  CHECK(check_message_bytes((64 << 20) - 16, 2).ok());
  const Status refused = check_message_bytes(131'072, 1024);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().to_string().find("131072 bytes; among 1024 ranks the limit is 131056") !=
        std::string::npos);
  CHECK_FALSE(check_message_bytes(113, 1 << 20).ok());
}

TEST_CASE("places that are cut short, too long or make no sense are refused", "[req:3.23]") {
  Bytes place = encode(some_place());
  check_cut_short(place, decode_place);
  place.push_back(std::byte{0});
  CHECK_FALSE(decode_place(place).ok());
  const auto expect = [](const std::string& words, const auto& spoil) {
    NetworkPlace message = some_place();
    spoil(message.interfaces);
    check_refused(message, words);
  };
  expect("0 paths", [](auto& interfaces) { interfaces.resize(0); });
  expect("5 paths", [](auto& interfaces) { interfaces.resize(5); });
  expect("family 5", [](auto& interfaces) { interfaces[0].family = 5; });
  expect("33 networks", [](auto& interfaces) { interfaces[2].networks.assign(33, {1, {0x80}}); });
  // Invalid prefixes: length 0, a length beyond 32, and bits set after the prefix.
  for (const IpNetwork& network :
       {IpNetwork{}, IpNetwork{33, {10}}, IpNetwork{255, {10}}, IpNetwork{6, {10}}}) {
    expect("a prefix of " + std::to_string(network.length) + " bits",
           [&](auto& interfaces) { interfaces[0].networks[1] = network; });
  }
  expect("a prefix of 129 bits", [](auto& interfaces) { interfaces[0] = {6, {}, {{129, {}}}}; });
}

TEST_CASE("the size of a rank's hello message does not depend on the number of ranks",
          "[req:3.15]") {
  const std::size_t bytes = encode(some_hello()).size();
  CHECK(bytes == 16 + 1 + 4 + 50 + 4 + 20 + 4 + 4 + encode(some_keys()).size());
  std::set<std::uint32_t> numbers;
  for (int rank = 0; rank < 65'536; ++rank) numbers.insert(queue_number(0xabcdef, rank));
  CHECK(numbers.size() == 65'536);
  CHECK(*numbers.rbegin() <= 0xffffff);
}
