// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstring>

#include <catch2/catch.hpp>

#include "net/fabric/congestion_window.hpp"
#include "net/failover/lone_pair.hpp"

// A slow link is not a dead link (3.14, 3.19). The links are slow and busy in both directions, and
// probes and answers queue behind the data. The test moves the clock.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr std::size_t kHalf = std::size_t{8} << 20;  // size of half of each side's memory
constexpr std::uint64_t kTenMegabit = 125;           // bytes per step of 100 us

void fill(FailoverRank& rank, std::uint64_t seed) {
  for (auto& word : rank.memory) word = seed += 0x9e3779b97f4a7c15;
}

/// Puts the first half of one side's memory into the second half of the other's.
dq::Posted put(const dq::QueueView& view, const FailoverRank& from, const FailoverRank& to,
               const device::WaitControl& control, std::uint64_t bytes = kHalf) {
  return dq::put<Thread, DrivingMemory>(Thread(), view, {from.region, 0, to.region, kHalf, bytes},
                                        control);
}

bool has_arrived(const FailoverRank& from, const FailoverRank& to) {
  return std::memcmp(from.memory.data(), to.memory.data() + kHalf / 8, kHalf) == 0;
}

struct SlowPair : LonePair {
  explicit SlowPair(Duration answer_timeout = QueueSetup().answer_timeout)
      : LonePair(with(answer_timeout), kHalf / 4) {
    fill(a, 1);
    fill(b, 2);
  }
  static SendQueue::Options with(Duration answer_timeout) {
    SendQueue::Options options;
    options.answer_timeout = answer_timeout;
    return options;
  }
  void slow_down(std::uint64_t bytes_per_step) {
    for (FailoverRank* const rank : {&a, &b}) rank->faults[0]->bytes_per_pass = bytes_per_step;
  }
};

}  // namespace

TEST_CASE("a long WQE each way on a slow link is no reason to leave it", "[req:3.14][F2]") {
  FailoverPairOptions options;
  options.words = kHalf / 4;
  FailoverPair pair(options);
  fill(pair.a, 1);
  fill(pair.b, 2);
  for (FailoverRank* const rank : {&pair.a, &pair.b}) {
    for (const auto& fault : rank->faults) fault->bytes_per_pass = kTenMegabit;
  }
  const dq::Posted there = put(pair.there->view(), pair.a, pair.b, pair.control);
  const dq::Posted back = put(pair.back->view(), pair.b, pair.a, pair.control);
  REQUIRE(pair.run_until([&] {
    return FailoverPair::completed(pair.there->view()) >= there.end &&
           FailoverPair::completed(pair.back->view()) >= back.end;
  }));
  INFO(pair.states());
  CHECK(pair.both_on(0));
  CHECK(pair.epoch() == 1);
  CHECK(has_arrived(pair.a, pair.b));
  CHECK(has_arrived(pair.b, pair.a));
  // The data was sent once, apart from probes.
  CHECK(pair.a.faults[0]->passed < kHalf + kHalf / 50);
}

TEST_CASE("a long WQE each way on a slow link ends no queue without backups", "[req:3.19]") {
  SlowPair pair(milliseconds(700));  // gives up after 5.6 s; the bytes take 6.7 s
  pair.slow_down(kTenMegabit);
  const dq::Posted there = put(pair.there.view(), pair.a, pair.b, pair.control);
  const dq::Posted back = put(pair.back.view(), pair.b, pair.a, pair.control);
  REQUIRE(pair.run_until(
      [&] { return pair.is_over(pair.there, there) && pair.is_over(pair.back, back); },
      seconds(60)));
  CHECK_FALSE(pair.has_failed(pair.there));
  CHECK_FALSE(pair.has_failed(pair.back));
  CHECK(has_arrived(pair.a, pair.b));
  CHECK(has_arrived(pair.b, pair.a));
  CHECK(pair.a.faults[0]->passed < kHalf + kHalf / 5);
}

TEST_CASE("a long put without a response is retransmitted one piece at a time", "[req:3.19]") {
  SlowPair pair;
  pair.slow_down(2);  // a piece takes 13 s, three timeouts
  const dq::Posted posted = put(pair.there.view(), pair.a, pair.b, pair.control, 512 * 1024);
  REQUIRE(pair.run_until([&] { return pair.is_over(pair.there, posted); }, seconds(120)));
  CHECK_FALSE(pair.has_failed(pair.there));
  CHECK(traffic(*pair.a.nics[0]).retransmitted <= 7);  // 14 if all in flight were retransmitted
}

TEST_CASE("lost pieces are retransmitted soon after the first of them was answered", "[req:3.19]") {
  SlowPair pair;
  pair.a.faults[0]->cut = true;
  const dq::Posted posted = put(pair.there.view(), pair.a, pair.b, pair.control);
  pair.run_for(seconds(1));
  pair.a.faults[0]->cut = false;
  REQUIRE(pair.run_until([&] { return pair.is_over(pair.there, posted); },
                         QueueSetup().answer_timeout));
  CHECK_FALSE(pair.has_failed(pair.there));
  CHECK(has_arrived(pair.a, pair.b));
  CHECK(traffic(*pair.a.nics[0]).retransmitted <= 4);  // the pieces in flight
}

TEST_CASE("a peer that sends anything outlasts the peer timeout, but is given up in the end",
          "[req:3.19]") {
  const QueueSetup usual;
  const Duration until_silent = usual.answer_timeout * (usual.retransmissions_most + 1);
  SlowPair pair;
  WireFault& answers = *pair.b.faults[0];
  answers.hold = true;
  const dq::Posted posted = put(pair.there.view(), pair.a, pair.b, pair.control, 8);
  const auto talk_for = [&](Duration time, bool talks) {
    for (const TimePoint end = pair.clock.now() + time; pair.clock.now() < end;) {
      if (talks) pair.a.faults[0]->sign.last_received = pair.clock.now();
      pair.step();
      pair.clock.advance(milliseconds(50));
    }
  };
  SECTION("its answers come late") {
    talk_for(until_silent * 3 / 2, true);
    CHECK_FALSE(pair.has_failed(pair.there));
    answers.hold = false;
    pair.b.wires[0]->release();
    REQUIRE(pair.run_until([&] { return pair.is_over(pair.there, posted); }, seconds(1)));
    CHECK_FALSE(pair.has_failed(pair.there));
  }
  SECTION("it falls silent") {
    talk_for(usual.answer_timeout, true);
    talk_for(until_silent, false);
    CHECK(pair.has_failed(pair.there));
  }
  SECTION("nothing ever arrived from it") {
    talk_for(until_silent - usual.answer_timeout / 2, false);
    CHECK_FALSE(pair.has_failed(pair.there));
    talk_for(usual.answer_timeout, false);
    CHECK(pair.has_failed(pair.there));
  }
  SECTION("it never answers, and nobody knows whether it was ever asked") {
    talk_for(until_silent * 3 / 2, true);
    CHECK_FALSE(pair.has_failed(pair.there));
    talk_for(until_silent * 7, true);
    CHECK(pair.has_failed(pair.there));
  }
  SECTION("it has what it is asked for, and never answers") {
    pair.a.faults[0]->sign.arrived = ~std::uint64_t{0};
    talk_for(until_silent - usual.answer_timeout / 2, true);
    CHECK_FALSE(pair.has_failed(pair.there));
    talk_for(usual.answer_timeout, true);
    CHECK(pair.has_failed(pair.there));
  }
}

TEST_CASE("a window narrows where answers are slow, and widens where they are fast") {
  const Duration slow = milliseconds(100);
  const std::uint64_t piece = std::uint64_t{256} << 10;
  TimePoint now{seconds(1)};
  CongestionWindow window(slow);
  CHECK(window.allows(0, CongestionWindow::kMost * 2));  // a lone request is always allowed
  CHECK(window.allows(piece, piece));
  CHECK_FALSE(window.allows(2 * piece, 1));
  CHECK(window.allows(2 * piece, 0));
  SECTION("fast") {
    window.ended(2 * piece, piece, now, now + slow / 4);
    CHECK(window.most() == CongestionWindow::kFirst + piece);
    window.ended(piece, piece, now, now + slow / 4);  // smaller requests did not fill the window
    CHECK(window.most() == CongestionWindow::kFirst + piece);
    for (int i = 0; i < 1000; ++i) window.ended(window.most(), piece, now, now);
    CHECK(window.most() == CongestionWindow::kMost);
  }
  SECTION("neither") {
    window.ended(2 * piece, piece, now, now + slow * 3 / 4);
    CHECK(window.most() == CongestionWindow::kFirst);
  }
  SECTION("slow, once for what was under way together") {
    window.ended(2 * piece, piece, now, now + slow * 2);
    window.ended(piece, piece, now + slow, now + slow * 3);
    CHECK(window.most() == CongestionWindow::kFirst / 2);
    for (int i = 3; i < 20; ++i) window.ended(piece, piece, now + slow * i, now + slow * (i + 2));
    CHECK(window.most() == CongestionWindow::kLeast);
  }
}
