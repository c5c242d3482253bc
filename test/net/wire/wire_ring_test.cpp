// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "oriel/device/wait.hpp"

#include "net/soft/nic_pair.hpp"
#include "net/wire/ring_pair.hpp"
#include "net/wire/wire_format.hpp"

// Rings between NICs of different processes (3.9), and hostile writes of a peer to them (3.23).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;

namespace {

constexpr std::size_t kRing = 4096;

Bytes message_of(std::uint64_t seed, std::size_t bytes) {
  Bytes made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(seed * 31 + i * 7);
  return made;
}

struct Ends {
  explicit Ends(Twice memory)
      : writer(std::move(memory.a), kRing), reader(std::move(memory.b), kRing) {}
  RingWriter writer;
  RingReader reader;
};

/// Reads the next message. Returns false if there is none.
Result<bool> read_from(RingReader& reader, Bytes& message) {
  const auto length = reader.begin();
  if (!length.ok()) return length.error();
  message.clear();
  if (length.value() == 0) return false;
  reader.copy_out(0, length.value(), message);
  reader.end();
  return true;
}

WireMessage a_response(std::uint64_t number, std::size_t bytes) {
  WireResponse response;
  response.to_queue = 1;
  response.number = number;
  response.payload = message_of(number, bytes);
  return WireMessage{response};
}

WireMessage a_request(WireAddress from) {
  WireRequest request;
  request.from = from;
  request.from_queue = request.to_queue = 1;
  request.kind = WorkKind::read;
  return WireMessage{request};
}

}  // namespace

TEST_CASE("a ring delivers what was written, in order, round its end many times", "[req:3.9]") {
  Ends ends(map_twice(ring_memory_bytes(kRing)));
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::size_t most = ring_message_bytes_most(kRing);
  std::uint64_t written = 0, read = 0;
  std::vector<std::size_t> sizes;
  Bytes message;
  while (read < 5000) {
    if (random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? most : 64);
      const Bytes made = message_of(written, bytes);
      const std::size_t cut = random() % (bytes + 1);
      const auto done = ends.writer.write(ByteView(made).first(cut), ByteView(made).subspan(cut));
      REQUIRE(done.ok());
      if (!done.value()) continue;
      sizes.push_back(bytes);
      ++written;
    } else {
      const auto done = read_from(ends.reader, message);
      REQUIRE(done.ok());
      REQUIRE(done.value() == (read < written));
      if (!done.value()) continue;
      REQUIRE(message == message_of(read, sizes[read]));
      ++read;
    }
  }
}

TEST_CASE("a ring between two threads loses and tears nothing", "[req:3.9]") {
  Ends ends(map_twice(ring_memory_bytes(kRing)));
  constexpr std::uint64_t kMessages = 20'000;
  const auto size_of = [](std::uint64_t i) { return 1 + i * i % 700; };
  std::jthread other([&] {
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      const Bytes made = message_of(i, size_of(i));
      for (;;) {
        const auto done = ends.writer.write(made, {});
        if (!done.ok() || done.value()) break;
        std::this_thread::yield();
      }
    }
  });
  Bytes message;
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    for (;;) {
      const auto done = read_from(ends.reader, message);
      REQUIRE(done.ok());
      if (done.value()) break;
      std::this_thread::yield();
    }
    REQUIRE(message == message_of(i, size_of(i)));
  }
}

// For the thread sanitizer: nothing within the process orders the last two accesses to `bytes`.
TEST_CASE("bytes that were sent are free once another process has announced their arrival",
          "[req:3.9]") {
  Ends ends(map_twice(ring_memory_bytes(kRing)));
  const Twice shared = map_twice(sizeof(std::uint64_t));
  auto* const word = reinterpret_cast<std::uint64_t*>(shared.a.data());
  Bytes bytes = message_of(1, 64);
  const pid_t peer = ::fork();
  if (peer == 0) {
    const auto taken = [&] { return read_from(ends.reader, bytes).value(); };
    const bool has = device::wait_until(taken, {}, {}) == device::WaitOutcome::ready;
    device::Memory::store<device::Order::release>(word, std::uint64_t{1});
    ::_exit(has ? 0 : 1);
  }
  std::thread nic([&] { static_cast<void>(ends.writer.write(bytes, {})); });
  const auto has_arrived = [&] { return device::Memory::load<device::Order::acquire>(word) != 0; };
  CHECK(device::wait_until(has_arrived, {}, {}) == device::WaitOutcome::ready);
  bytes[0] = std::byte{7};
  nic.join();
  int status = 0;
  CHECK((::waitpid(peer, &status, 0) == peer && status == 0));
}

TEST_CASE("a full ring takes no more, and a message that never fits is an error", "[req:3.9]") {
  Ends ends(map_twice(ring_memory_bytes(kRing)));
  const std::size_t most = ring_message_bytes_most(kRing);
  const Bytes large = message_of(1, most);
  for (int i = 0; i < 2; ++i) REQUIRE(ends.writer.write(large, {}).value());
  CHECK_FALSE(ends.writer.write(message_of(1, 1), {}).value());
  Bytes message;
  REQUIRE(read_from(ends.reader, message).value());
  CHECK(message == large);
  CHECK(ends.writer.write(message_of(1, 1), {}).value());
  CHECK(ends.writer.write(message_of(1, most + 1), {}).error().code() ==
        ErrorCode::invalid_argument);
  CHECK_FALSE(ends.writer.write({}, {}).ok());
}

TEST_CASE("a writer's counter or length that cannot be is an error of its reader", "[req:3.23]") {
  const auto attempt = [](std::uint64_t written, std::uint32_t length) {
    auto memory = map_twice(ring_memory_bytes(kRing));
    set_counter(memory.a, kWrittenWord, written);
    std::memcpy(memory.a.data() + kRingBegins, &length, sizeof length);
    RingReader reader(std::move(memory.b), kRing);
    Bytes message;
    return read_from(reader, message);
  };
  CHECK(attempt(64, 8).value());
  CHECK(attempt(64, 60).value());
  for (const auto& [written, length] :
       std::vector<std::pair<std::uint64_t, std::uint32_t>>{{kRing + 8, 8},
                                                            {~std::uint64_t{0}, 8},
                                                            {~std::uint64_t{7}, 8},
                                                            {std::uint64_t{1} << 63, 8},
                                                            {63, 8},
                                                            {4, 1},
                                                            {64, 61},
                                                            {64, 0},
                                                            {64, ~0u},
                                                            {kRing, kRing / 2},
                                                            {kRing, 1u << 31}}) {
    INFO(written << " " << length);
    const auto read = attempt(written, length);
    REQUIRE_FALSE(read.ok());
    CHECK(read.error().code() == ErrorCode::remote);
    CHECK(read.error().message().find("cannot be") != std::string::npos);
  }
}

TEST_CASE("a reader's counter that cannot be is an error of its writer", "[req:3.23]") {
  for (const std::uint64_t taken :
       {std::uint64_t{4096 + 8}, ~std::uint64_t{7}, std::uint64_t{12}, std::uint64_t{1} << 63}) {
    INFO(taken);
    auto memory = map_twice(ring_memory_bytes(kRing));
    RingWriter writer(std::move(memory.a), kRing);
    const Bytes large = message_of(1, ring_message_bytes_most(kRing));
    for (int i = 0; i < 2; ++i) REQUIRE(writer.write(large, {}).value());
    set_counter(memory.b, kTakenWord, taken);
    CHECK_FALSE(writer.write(large, {}).ok());
  }
  // A counter that goes back is an error, like one that is ahead.
  auto memory = map_twice(ring_memory_bytes(kRing));
  RingWriter writer(std::move(memory.a), kRing);
  const Bytes large = message_of(1, ring_message_bytes_most(kRing));
  for (int i = 0; i < 2; ++i) REQUIRE(writer.write(large, {}).value());
  set_counter(memory.b, kTakenWord, kRing);
  for (int i = 0; i < 2; ++i) REQUIRE(writer.write(large, {}).value());
  set_counter(memory.b, kTakenWord, kRing - 8);
  CHECK_FALSE(writer.write(large, {}).ok());
}

TEST_CASE("a message to a wire arrives once, a message to an unknown address is lost",
          "[req:3.9]") {
  RingPair pair;
  WireMessage message = a_response(5, 300);
  REQUIRE(pair.a->send({2}, message));
  WireMessage got;
  REQUIRE(pair.b->receive(got));
  CHECK(std::get<WireResponse>(got.body).payload == message_of(5, 300));
  CHECK_FALSE(pair.b->receive(got));
  CHECK_FALSE(pair.a->receive(got));
  message = a_response(6, 1);
  CHECK(pair.a->send({77}, message));
  CHECK_FALSE(pair.b->receive(got));
  REQUIRE(pair.b->send({1}, message));
  REQUIRE(pair.a->receive(got));
  CHECK(std::get<WireResponse>(got.body).number == 6);
  CHECK_FALSE(pair.a->failure());
  CHECK_FALSE(pair.b->failure());
}

TEST_CASE("send to a full ring refuses and keeps the message, until the peer has received one",
          "[req:3.9]") {
  RingPair pair(4096);
  int sent = 0;
  WireMessage message = a_response(0, 500);
  while (pair.a->send({2}, message)) message = a_response(static_cast<std::uint64_t>(++sent), 500);
  CHECK(sent >= 6);
  CHECK(std::get<WireResponse>(message.body).payload ==
        message_of(static_cast<std::uint64_t>(sent), 500));
  WireMessage got;
  REQUIRE(pair.b->receive(got));
  pair.b->end_receive();
  CHECK(pair.a->send({2}, message));
}

TEST_CASE("a payload is borrowed from the ring, its room is released and announced afterwards",
          "[req:3.21]") {
  RingPair pair(65536);
  const auto word = [&](std::size_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, pair.spy.data() + at, sizeof value);
    return value;
  };
  RingDoorbell doorbell(std::move(pair.doorbell));
  doorbell.doorbell().sleeping = 1;
  WireMessage message = a_response(1, 5000), got;
  REQUIRE(pair.b->send({1}, message));
  REQUIRE(pair.a->receive(got));
  REQUIRE(payload_of(got).is_borrowed());
  CHECK(payload_of(got) == message_of(1, 5000));
  CHECK(word(kTakenWord) == 0);
  const WireMessage copy = got;  // owns its bytes
  // A change by the writer meanwhile is visible in the borrowed payload, and is no error.
  pair.spy.data()[kRingBegins + 1000] ^= std::byte{1};
  CHECK_FALSE(payload_of(got) == message_of(1, 5000));
  CHECK(payload_of(copy) == message_of(1, 5000));
  CHECK(doorbell.doorbell().ticket == 0);
  SECTION("by end_receive") {
    pair.a->end_receive();
    pair.a->end_receive();
  }
  SECTION("by the next receive") {
    CHECK_FALSE(pair.a->receive(got));
  }
  CHECK(word(kTakenWord) == word(kWrittenWord));
  CHECK(doorbell.doorbell().ticket == 1);
  // A message without payload releases its room at once.
  message = a_response(2, 0);
  REQUIRE(pair.b->send({1}, message));
  REQUIRE(pair.a->receive(got));
  CHECK(word(kTakenWord) == word(kWrittenWord));
}

TEST_CASE("only long payloads that go round a ring's end are borrowed in two parts", "[req:3.21]") {
  RingPair pair(65536);
  const std::size_t bytes = GENERATE(8u, 1000u, 16'383u, 20'000u);
  WireMessage got;
  int in_two = 0, borrowed = 0;
  for (std::uint64_t number = 0; number < 2500; ++number) {
    WireMessage message = a_response(number, bytes);
    REQUIRE(pair.b->send({1}, message));
    REQUIRE(pair.a->receive(got));
    const Payload& payload = payload_of(got);
    REQUIRE(payload == message_of(number, bytes));
    if (payload.is_borrowed()) ++borrowed;
    if (!payload.parts()[1].empty()) ++in_two;
    if (in_two > 3) break;
  }
  CHECK(borrowed > 2);
  CHECK((in_two > 0) == (bytes == 20'000));
}

TEST_CASE("a connection that brings what cannot be is dead and names the peer", "[req:3.23]") {
  RingPair pair(65536, 1);
  WireMessage message = a_response(1, 1);
  WireMessage got;
  std::string expected;
  SECTION("a counter") {
    set_counter(pair.spy, kWrittenWord, 4);
    expected = "cannot be";
  }
  SECTION("a message") {
    REQUIRE(pair.b->send({1}, message));
    pair.spy.data()[kRingBegins + 4] = std::byte{9};
    expected = "version 9";
  }
  SECTION("a request in the name of another") {
    message = a_request({3});
    REQUIRE(pair.b->send({1}, message));
    expected = "in the name of NIC 0x3";
  }
  SECTION("an answer for the queue of another") {
    std::get<WireResponse>(message.body).to_queue = 2;
    REQUIRE(pair.b->send({1}, message));
    expected = "speaks to queue 0x2";
  }
  CHECK_FALSE(pair.a->receive(got));
  const auto failure = pair.a->failure();
  REQUIRE(failure);
  CHECK(failure->origin_rank() == 1);
  CHECK(failure->code() == ErrorCode::remote);
  INFO(failure->to_string());
  CHECK(failure->to_string().find(expected) != std::string::npos);
  CHECK(failure->to_string().find("rank 1") != std::string::npos);
  // Messages to the dead connection are lost, and messages from it are ignored.
  for (int i = 0; i < 1000; ++i) {
    message = a_response(1, 1000);
    REQUIRE(pair.a->send({2}, message));
  }
  message = a_response(2, 1);
  REQUIRE(pair.b->send({1}, message));
  CHECK_FALSE(pair.a->receive(got));
}

TEST_CASE("memory that a peer could shrink is refused", "[req:3.23]") {
  const OwnedFd fd(sys().memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(fd.valid());
  REQUIRE(sys().ftruncate(fd.get(), 8192) == 0);
  CHECK(check_sealed_memfd(fd, 8192).error().message().find("seals") != std::string::npos);
  const auto sealed = make_sealed_memfd(8192);
  REQUIRE(sealed.ok());
  CHECK(check_sealed_memfd(sealed.value(), 8192).ok());
  CHECK(check_sealed_memfd(sealed.value(), 4096).error().message().find("8192") !=
        std::string::npos);
}

TEST_CASE("a peer that takes nothing from a full ring is given up like one that does not answer",
          "[req:3.6]") {
  ManualClock clock;
  RingPair rings(65536);
  LocalWires unused;
  constexpr std::size_t kBytes = 200'000;
  Side a(unused, clock, kBytes / 8), b(unused, clock, kBytes / 8);
  const std::uint32_t wire_a = a.nic.add_wire(std::move(rings.a));
  const std::uint32_t wire_b = b.nic.add_wire(std::move(rings.b));
  SendQueue::Options options;
  options.piece_bytes = 16384;
  options.retransmissions_most = 2;
  SendQueue there = a.make_queue(options), back = b.make_queue(options);
  REQUIRE(there.connect({wire_a, {2}, back.number()}).ok());
  REQUIRE(back.connect({wire_b, {1}, there.number()}).ok());
  const dq::Transfer whole{a.region, 0, b.region, 0, kBytes};
  REQUIRE(dq::put(device::Thread(), there.view(), whole, {}).outcome == dq::QueueOutcome::done);
  const TimePoint begin = clock.now();
  const auto turn = [&] {
    a.nic.progress();
    clock.advance(std::chrono::milliseconds(10));
  };
  // Messages that the peer has taken by then count as a sign of life.
  while (clock.now() < begin + options.answer_timeout) turn();
  for (int i = 0; i < 4; ++i) b.nic.progress();
  const TimePoint shared = clock.now();
  while (*there.memory().first_error == 0 && clock.now() < shared + std::chrono::minutes(2)) turn();
  CHECK(dq::decode_error(*there.memory().first_error).syndrome == 0x15);
  CHECK(clock.now() - shared > 2 * options.answer_timeout);
  CHECK(clock.now() - shared < 4 * options.answer_timeout);
}
