// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include <catch2/catch.hpp>

#include "net/soft/nic_pair.hpp"

// One queue of the software NIC, filled by the device headers and driven by the waiting thread
// (3.8). Covers results of operations, completion order, states and doorbells.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;

namespace {

constexpr std::uint64_t kPoison = 0xdddddddddddddddd;

}  // namespace

TEST_CASE("a put, a get and a value arrive, and their WQEBBs are poisoned", "[req:3.8][A4]") {
  SendQueue::Options options;
  options.piece_bytes = 1000;  // so that writes and reads cross the wire in several pieces
  NicPair pair(options);
  pair.a.fill(1);
  pair.b.fill(2);
  REQUIRE(pair.wait(pair.put(8, 16, 4001)) == QueueOutcome::done);
  const std::byte* const from = pair.a.bytes();
  const std::byte* const to = pair.b.bytes();
  CHECK(std::memcmp(from + 8, to + 16, 4001) == 0);
  CHECK(pair.tail().kind == dq::CompletionKind::request);
  CHECK(pair.tail().queue == pair.there.number());
  CHECK(pair.tail().index == 0);
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(reinterpret_cast<const std::uint64_t*>(pair.there.memory().ring)[i] == kPoison);
  }
  REQUIRE(dq::get_and_wait<Thread, DrivingMemory>(Thread(), pair.view(),
                                                  pair.transfer(20000, 30001, 5003),
                                                  pair.control) == QueueOutcome::done);
  CHECK(std::memcmp(from + 20000, to + 30001, 5003) == 0);
  const std::array<std::uint8_t, 28> value{1, 2, 3, 4, 5, 6, 7};
  const auto small = dq::put_value<Thread, std::array<std::uint8_t, 28>, DrivingMemory>(
      Thread(), pair.view(), value, pair.b.region, 40003, pair.control);
  REQUIRE(pair.wait(small) == QueueOutcome::done);
  CHECK(std::memcmp(to + 40003, value.data(), 28) == 0);
  CHECK(*pair.there.memory().first_error == 0);
}

TEST_CASE("a queue refuses a transition that skips or repeats a state, or leaves the error state",
          "[req:3.8][A5]") {
  LocalWires exchange;
  Side a(exchange);
  SendQueue queue = a.make_queue();
  const std::uint32_t number = queue.number();
  const QueuePeer peer{0, a.nic.address(0), number};
  CHECK(a.nic.to_ready_to_send(number).error().code() == ErrorCode::invalid_usage);
  CHECK_FALSE(a.nic.to_ready_to_receive(number, peer).ok());
  REQUIRE(a.nic.to_init(number).ok());
  CHECK_FALSE(a.nic.to_init(number).ok());
  CHECK_FALSE(a.nic.to_ready_to_receive(number, {7, a.nic.address(0), number}).ok());
  REQUIRE(a.nic.to_ready_to_receive(number, peer).ok());
  CHECK(a.nic.state(number).value() == QueueState::ready_to_receive);
  REQUIRE(a.nic.to_ready_to_send(number).ok());
  REQUIRE(a.nic.to_error(number).ok());
  CHECK_FALSE(a.nic.to_init(number).ok());
  CHECK_FALSE(a.nic.to_init(number + 1).ok());
  CHECK_FALSE(a.nic.state(number + 1).ok());
}

TEST_CASE("a doorbell before the queue can send is dropped, one of another queue ignored",
          "[req:3.8][A5]") {
  NicPair pair;
  NicSoft& nic = pair.a.nic;
  const std::uint32_t number = pair.there.number();
  REQUIRE(nic.to_reset(number).ok());
  RawPoster raw(pair.view());
  raw.nop();
  raw.ring();
  nic.progress();
  REQUIRE(nic.to_init(number).ok());
  nic.progress();
  REQUIRE(nic.to_ready_to_receive(number, {0, pair.b.nic.address(0), pair.back.number()}).ok());
  REQUIRE(nic.to_ready_to_send(number).ok());
  nic.progress();
  CHECK(pair.tail().kind == dq::CompletionKind::invalid);
  raw.nop();
  raw.set_record(raw.next());
  raw.set_doorbell(raw.next(), number ^ 1);
  nic.progress();
  CHECK(pair.tail().kind == dq::CompletionKind::invalid);
  raw.ring();
  nic.progress();
  CHECK(pair.tail().kind == dq::CompletionKind::request);
  CHECK(pair.tail().index == 1);
}

TEST_CASE("nothing is delivered that does not come from the queue's peer", "[req:3.8][A5]") {
  LocalWires exchange;
  ManualClock clock;
  Side a(exchange, clock), b(exchange, clock), c(exchange, clock);
  SendQueue wrong = a.make_queue({.retransmissions_most = 0}), there = a.make_queue(),
            back = b.make_queue();
  connect(a, there, b, back);
  // This queue names b's queue, which is connected to another one.
  REQUIRE(wrong.connect({0, b.nic.address(0), back.number()}).ok());
  RawPoster raw(wrong.view());
  raw.add(dq::inline_write_wqe(raw.place(), dq::kSignalled, b.region.remote(0),
                               {reinterpret_cast<const unsigned char*>("mischief"), 8}));
  raw.ring();
  for (int i = 0; i < 10; ++i) a.nic.progress(), b.nic.progress();
  CHECK(b.memory[0] == 0);
  clock.advance(std::chrono::seconds(5));
  a.nic.progress();
  CHECK(dq::decode_error(*wrong.memory().first_error).syndrome == 0x15);
}

TEST_CASE("a strict doorbell is never ahead of its record", "[req:3.8]") {
  NicPair pair;
  RawPoster raw(pair.view());
  raw.nop();
  raw.ring();
  pair.run();
  raw.nop();
  SECTION("up to the doorbell only, where the record is ahead") {
    raw.nop();
    raw.ring(3, 2);
    pair.run();
    CHECK(pair.tail().index == 1);
    raw.ring(3, 3);
    pair.run();
    CHECK(pair.tail().index == 2);
  }
  SECTION("an error where it is behind") {
    raw.ring(1, 2);
    pair.run();
    CHECK(pair.error().syndrome == 0x02);
    CHECK(pair.error().vendor_syndrome == static_cast<std::uint8_t>(Complaint::record_behind));
    CHECK(pair.tail().kind == dq::CompletionKind::request_error);
    CHECK(pair.a.nic.state(pair.there.number()).value() == QueueState::error);
  }
  SECTION("an error where both exceed the ring") {
    raw.ring(1 + 1024 + 1, 1 + 1024 + 1);
    pair.run();
    CHECK(pair.error().vendor_syndrome == static_cast<std::uint8_t>(Complaint::wrong_doorbell));
  }
}

TEST_CASE("a doorbell without a record starts its WQEs, its queue is idle once they are done",
          "[req:3.8][req:3.21]") {
  NicPair pair({.mode = DoorbellMode::alone});
  CHECK(pair.view().doorbell_record == nullptr);
  RawPoster raw(pair.view());
  for (int i = 0; i < 5; ++i) raw.nop();
  raw.set_doorbell(3, pair.view().number);
  CHECK_FALSE(pair.a.nic.is_idle());
  pair.run();
  CHECK(pair.tail().index == 2);
  CHECK(pair.a.nic.is_idle());
  raw.set_doorbell(5, pair.view().number);
  pair.run();
  CHECK(pair.tail().index == 4);
  raw.set_doorbell(5 + 1024 + 1, pair.view().number);
  pair.run();
  CHECK(pair.error().vendor_syndrome == static_cast<std::uint8_t>(Complaint::wrong_doorbell));
}

TEST_CASE("completions are in order, and only for WQEs that ask for one", "[req:3.8][A13]") {
  NicPair pair;
  RawPoster raw(pair.view());
  raw.nop();
  for (int i = 0; i < 5; ++i) raw.nop(0);
  raw.ring();
  pair.run();
  CHECK(pair.tail().index == 0);
  raw.nop();
  raw.ring();
  pair.run();
  CHECK(pair.tail().index == 6);
}

TEST_CASE("an immediate needs a receive at the peer, and comes with its bytes", "[req:3.8]") {
  ManualClock clock;
  NicPair pair({.receives = 4}, clock);
  pair.a.fill(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    const dq::Transfer part = pair.transfer(i * 800, i * 800, 800);
    REQUIRE(pair.put_immediate(part, 0x1000 + i).outcome == QueueOutcome::done);
  }
  pair.run();
  Immediate immediate;
  CHECK_FALSE(take_immediate(pair.back, immediate));
  CHECK(pair.tail().kind == dq::CompletionKind::invalid);
  REQUIRE(post_receives(pair.back, 2));
  pair.run();  // the retransmission is not due yet
  CHECK_FALSE(take_immediate(pair.back, immediate));
  clock.advance(std::chrono::milliseconds(1));
  pair.run();
  for (std::uint32_t i = 0; i < 2; ++i) {
    REQUIRE(take_immediate(pair.back, immediate));
    CHECK(immediate.value == 0x1000 + i);
    CHECK(immediate.bytes == 800);
    CHECK(pair.b.memory[i * 100 + 99] == pair.a.memory[i * 100 + 99]);
  }
  CHECK_FALSE(take_immediate(pair.back, immediate));
  CHECK(pair.b.memory[200] == 0);
  CHECK_FALSE(post_receives(pair.back, 5));
  REQUIRE(post_receives(pair.back, 4));
  clock.advance(std::chrono::milliseconds(1));
  pair.run();
  REQUIRE(take_immediate(pair.back, immediate));
  CHECK(immediate.value == 0x1002);
  CHECK(pair.tail().index == 2);
}

TEST_CASE("a queue of a bad depth, piece size or number of slots is refused", "[req:3.8]") {
  LocalWires exchange;
  Side a(exchange);
  const auto refused = [&](auto change) {
    SendQueue::Options options;
    change(options);
    const auto made = SendQueue::create(a.nic, options);
    return !made.ok() && made.error().code() == ErrorCode::invalid_argument;
  };
  using Options = SendQueue::Options;
  CHECK(refused([](Options& o) { o.depth = 64; }));
  CHECK(refused([](Options& o) { o.depth = 65536; }));
  CHECK(refused([](Options& o) { o.depth = 1000; }));
  CHECK(refused([](Options& o) { o.fetch_slots = 3; }));
  CHECK(refused([](Options& o) { o.receives = 1; }));
  CHECK(refused([](Options& o) { o.piece_bytes = 0; }));
  SendQueue first = a.make_queue(), second = a.make_queue();
  CHECK(first.number() != second.number());
  CHECK(first.number() < 1u << 24);
}

TEST_CASE("a queue gets the number that its setup names, if that is free", "[req:3.8]") {
  NicPair pair;
  SendQueue::Options options;
  options.number = pair.there.number() ^ 1;
  SendQueue named = SendQueue::create(pair.a.nic, options).value();
  CHECK(named.number() == options.number);
  CHECK_FALSE(SendQueue::create(pair.a.nic, options).ok());
  options.number = 1u << 24;
  CHECK_FALSE(SendQueue::create(pair.a.nic, options).ok());
  // WQEs and the peer's answers use the chosen number.
  SendQueue back = pair.b.make_queue();
  connect(pair.a, named, pair.b, back);
  pair.a.memory[0] = 77;
  const auto posted =
      dq::put<Thread, DrivingMemory>(Thread(), named.view(), pair.transfer(0, 8, 8), pair.control);
  REQUIRE(posted.outcome == QueueOutcome::done);
  CHECK(dq::wait_all<DrivingMemory>(named.view(), pair.control) == QueueOutcome::done);
  CHECK(pair.b.memory[1] == 77);
}
