// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <random>

#include <catch2/catch.hpp>

#include "net/soft/nic_pair.hpp"

// NIC that receives messages of a broken, hostile or late sender (3.23, 3.14). The test is the
// NIC's peer and sends arbitrary messages.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using std::chrono::seconds;

namespace {

/// NIC with one queue, connected to a wire that the test holds.
struct Alone {
  LocalWires exchange;
  ManualClock clock;
  Side side{exchange, clock, 64};
  SendQueue queue = side.make_queue();
  std::unique_ptr<Wire> peer = exchange.attach();
  static constexpr std::uint32_t kPeerQueue = 77;
  static constexpr std::uint32_t kEpoch = 3;

  Alone() {
    // The NIC's address of the memory differs from the address in WQEs.
    side.region.address = 0x7654'0000'0000;
    side.region.bytes = 64 * 8;
    side.key = side.nic
                   .register_memory({side.region.address, side.region.bytes,
                                     reinterpret_cast<std::byte*>(side.memory.data()), kAllAccess})
                   .value();
    side.region.keys[0] = side.key;
    REQUIRE(queue.connect({0, peer->address(), kPeerQueue, kEpoch}).ok());
  }
  WireRequest request(std::uint64_t number, WorkKind kind, std::uint64_t word,
                      std::uint32_t bytes) const {
    WireRequest made;
    made.from = peer->address();
    made.from_queue = kPeerQueue;
    made.to_queue = queue.number();
    made.epoch = kEpoch;
    made.number = number;
    made.kind = kind;
    made.key = side.key;
    made.address = side.region.address + word * 8;
    made.bytes = made.piece_bytes = bytes;
    made.atomic.operand = 1;
    if (kind == WorkKind::write) made.payload = Bytes(bytes, std::byte{0x11});
    return made;
  }
  // Sends a request and receives the answer. Returns false if there is no answer.
  bool ask(const WireRequest& request, WireResponse& response) {
    send(request);
    WireMessage message;
    if (!peer->receive(message)) return false;
    response = std::get<WireResponse>(std::move(message.body));
    return true;
  }
  template <class Body>
  void send(const Body& body) {
    WireMessage message{body};
    REQUIRE(peer->send(side.nic.address(0), message));
    for (int i = 0; i < 4; ++i) side.nic.progress();
  }
  bool is_broken() const { return side.nic.state(queue.number()).value() == QueueState::error; }
  bool is_untouched() const {
    return std::all_of(side.memory.begin(), side.memory.end(), [](auto w) { return w == 0; });
  }
};

}  // namespace

TEST_CASE("requests are executed once, in the order of their numbers", "[req:3.8]") {
  Alone alone;
  WireResponse response;
  CHECK_FALSE(alone.ask(alone.request(1, WorkKind::write, 0, 8), response));
  CHECK(alone.is_untouched());
  REQUIRE(alone.ask(alone.request(0, WorkKind::atomic, 1, 8), response));
  CHECK(response.old_value == 0);
  CHECK(response.epoch == Alone::kEpoch);
  CHECK(response.to_queue == Alone::kPeerQueue);
  REQUIRE(alone.ask(alone.request(1, WorkKind::atomic, 1, 8), response));
  CHECK(response.old_value == 1);
  for (const std::uint64_t again : {0u, 1u, 0u}) {
    REQUIRE(alone.ask(alone.request(again, WorkKind::atomic, 1, 8), response));
    CHECK(response.old_value == again);
  }
  CHECK(alone.side.memory[1] == 2);
  // A retransmitted write does not undo later changes.
  REQUIRE(alone.ask(alone.request(2, WorkKind::write, 2, 8), response));
  alone.side.memory[2] = 5;
  REQUIRE(alone.ask(alone.request(2, WorkKind::write, 2, 8), response));
  CHECK(alone.side.memory[2] == 5);
  // An atomic whose old value is no longer kept is refused, and not executed again.
  for (std::uint64_t n = 3; n < 30; ++n) {
    REQUIRE(alone.ask(alone.request(n, WorkKind::atomic, 3, 8), response));
  }
  REQUIRE(alone.ask(alone.request(3, WorkKind::atomic, 3, 8), response));
  CHECK(response.syndrome == Syndrome::remote_invalid);
  CHECK(alone.side.memory[3] == 27);
}

TEST_CASE("messages of another epoch, peer or queue are dropped", "[req:3.14][F10]") {
  Alone alone;
  WireResponse response;
  auto request = alone.request(0, WorkKind::write, 0, 8);
  request.epoch = Alone::kEpoch - 1;
  CHECK_FALSE(alone.ask(request, response));
  request = alone.request(0, WorkKind::write, 0, 8);
  request.from_queue = 78;
  CHECK_FALSE(alone.ask(request, response));
  request = alone.request(0, WorkKind::write, 0, 8);
  ++request.from.value;
  CHECK_FALSE(alone.ask(request, response));
  request = alone.request(0, WorkKind::write, 0, 8);
  ++request.to_queue;
  CHECK_FALSE(alone.ask(request, response));
  CHECK(alone.is_untouched());
  CHECK_FALSE(alone.is_broken());
}

TEST_CASE("a queue that was reset drops messages of its earlier epoch", "[req:3.14][F10]") {
  Alone alone;
  WireResponse response;
  REQUIRE(alone.ask(alone.request(0, WorkKind::write, 0, 8), response));
  REQUIRE(alone.side.nic.to_reset(alone.queue.number()).ok());
  CHECK(alone.side.nic.state(alone.queue.number()).value() == QueueState::reset);
  CHECK_FALSE(alone.ask(alone.request(0, WorkKind::write, 1, 8), response));
  REQUIRE(alone.queue.connect({0, alone.peer->address(), Alone::kPeerQueue, 4}).ok());
  CHECK_FALSE(alone.ask(alone.request(0, WorkKind::write, 1, 8), response));
  CHECK(alone.side.memory[1] == 0);
  auto next = alone.request(0, WorkKind::write, 1, 8);
  next.epoch = 4;
  REQUIRE(alone.ask(next, response));
  CHECK(alone.side.memory[1] != 0);
}

TEST_CASE("requests whose fields do not agree are refused and touch nothing", "[req:3.23]") {
  const std::vector<void (*)(WireRequest&)> spoil = {
      [](WireRequest& r) { r.payload = Bytes(7); },
      [](WireRequest& r) { r.payload = Bytes(9); },
      [](WireRequest& r) { r.offset = 1; },
      [](WireRequest& r) { r.offset = ~std::uint64_t{0}; },
      [](WireRequest& r) { r.bytes = 7; },
      [](WireRequest& r) { r.bytes = ~std::uint64_t{0}; },
      [](WireRequest& r) { r.address = ~std::uint64_t{0} - 4; },
      [](WireRequest& r) { r.address -= 1; },
      [](WireRequest& r) { r.key = 0; },
      [](WireRequest& r) { r.key += 1; },
      [](WireRequest& r) { r.kind = WorkKind::nop; },
      [](WireRequest& r) { r.kind = WorkKind::dump; },
      [](WireRequest& r) { r.kind = static_cast<WorkKind>(99); },
      [](WireRequest& r) { r.kind = WorkKind::read; },
      [](WireRequest& r) { r.kind = WorkKind::read, r.payload = {}, r.piece_bytes = 1u << 31; },
      [](WireRequest& r) { r.kind = WorkKind::atomic, r.atomic.bytes = 3; },
      [](WireRequest& r) { r.kind = WorkKind::atomic, r.atomic.bytes = 0; },
      [](WireRequest& r) { r.kind = WorkKind::atomic, r.atomic.bytes = 4; },
      [](WireRequest& r) { r.kind = WorkKind::atomic, r.address += 4; },
  };
  for (std::size_t i = 0; i < spoil.size(); ++i) {
    INFO("way " << i);
    Alone alone;
    auto request = alone.request(0, WorkKind::write, 0, 8);
    spoil[i](request);
    WireResponse response;
    REQUIRE(alone.ask(request, response));
    CHECK(response.syndrome != Syndrome::none);
    CHECK(alone.is_broken());
    CHECK(alone.is_untouched());
    CHECK_FALSE(alone.ask(alone.request(0, WorkKind::write, 0, 8), response));
  }
}

TEST_CASE("answers that nobody asked for, or of another size, do no harm", "[req:3.23]") {
  Alone alone;
  RawPoster raw(alone.queue.view());
  raw.add(dq::transfer_wqe(dq::Opcode::read, raw.place(), dq::kSignalled, {0x1000, 9},
                           {alone.side.region.address, alone.side.key, 16}));
  raw.ring();
  WireResponse response;
  response.to_queue = alone.queue.number();
  response.epoch = Alone::kEpoch;
  response.payload = Bytes(16, std::byte{7});
  for (const std::uint64_t number : {std::uint64_t{1}, ~std::uint64_t{0}, std::uint64_t{1} << 40}) {
    response.number = number;
    alone.send(response);
  }
  response.number = 0;
  response.epoch = 1;
  alone.send(response);
  CHECK(alone.is_untouched());
  CHECK_FALSE(alone.is_broken());
  response.epoch = Alone::kEpoch;
  SECTION("of the right size") {
    alone.send(response);
    CHECK(alone.side.memory[1] == 0x0707070707070707);
    alone.side.memory[1] = 0;
    alone.send(response);  // a duplicate
    CHECK(alone.side.memory[1] == 0);
    CHECK_FALSE(alone.is_broken());
  }
  SECTION("of another") {
    response.payload = Bytes(GENERATE(0u, 15u, 17u, 100'000u));
    alone.send(response);
    CHECK(alone.is_untouched());
    CHECK(alone.is_broken());
    CHECK(dq::decode_error(*alone.queue.memory().first_error).syndrome == 0x14);
  }
}

TEST_CASE("requests of a peer that takes no answers are dropped from a limit on", "[req:3.23]") {
  Alone alone;
  WireMessage ignored;
  std::uint64_t number = 0;
  for (int i = 0; i < 20'000; ++i) {
    WireMessage message{alone.request(number, WorkKind::atomic, 1, 8)};
    REQUIRE(alone.peer->send(alone.side.nic.address(0), message));
    alone.side.nic.progress();
    if (alone.side.memory[1] == number + 1) ++number;
  }
  // Limit: the answers that the wire and the queue can hold.
  CHECK(number <= 2100);
  while (alone.peer->receive(ignored)) alone.side.nic.progress();
  WireResponse response;
  REQUIRE(alone.ask(alone.request(number, WorkKind::atomic, 1, 8), response));
  CHECK(response.old_value == number);
}
