// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include <catch2/catch.hpp>

#include "net/soft/nic_pair.hpp"

// Faults of a software NIC (slow, wrong or dead) on a clock that the test moves, and their effect
// on producers (3.10).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using dq::QueueOutcome;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

dq::Posted put_word(NicPair& pair, std::uint64_t word) {
  return pair.put(word * 8, word * 8, 8);
}

dq::LocalRange word_of(const Side& side, std::uint64_t word) {
  return side.range(word * 8, 8);
}

void add_write(NicPair& pair, RawPoster& raw, std::uint64_t from, std::uint64_t to,
               std::uint32_t flags) {
  raw.add(dq::transfer_wqe(dq::Opcode::write, raw.place(), flags, pair.b.region.remote(to * 8),
                           word_of(pair.a, from)));
}

}  // namespace

TEST_CASE("a doorbell that was overlooked is made good by the next one, or ends a wait in time",
          "[req:3.10][F1]") {
  NicPair pair;
  REQUIRE(pair.wait(put_word(pair, 0)) == QueueOutcome::done);
  pair.a.memory[1] = 77;
  const std::uint64_t before = *pair.view().doorbell;
  const auto lost = put_word(pair, 1);
  *pair.view().doorbell = before;
  pair.run();
  CHECK(pair.b.memory[1] == 0);
  SECTION("the next one") {
    REQUIRE(pair.wait(put_word(pair, 2)) == QueueOutcome::done);
    CHECK(pair.b.memory[1] == 77);
    CHECK(pair.wait(lost) == QueueOutcome::done);
  }
  SECTION("none comes") {
    pair.control.timeout_ns = 20'000'000;
    CHECK(pair.wait(lost) == QueueOutcome::timed_out);
    CHECK(put_word(pair, 2).outcome != QueueOutcome::done);
  }
}

TEST_CASE("a WQE fails with any syndrome, those before it are done, those after flushed",
          "[req:3.10][F3]") {
  for (const unsigned syndrome :
       {0x01u, 0x02u, 0x04u, 0x06u, 0x10u, 0x11u, 0x12u, 0x13u, 0x14u, 0x15u, 0x16u, 0x22u}) {
    for (std::uint64_t k = 0; k < 64; ++k) {
      NicPair pair;
      NicFaults faults;
      faults.fails = {{{pair.there.number(), k}, static_cast<Syndrome>(syndrome), false}};
      set_faults(pair.a.nic, faults);
      RawPoster raw(pair.view());
      for (std::uint64_t i = 0; i < 64; ++i) {
        pair.a.memory[i] = i + 1;
        add_write(pair, raw, i, i, 0);
      }
      raw.ring();
      pair.run();
      REQUIRE(pair.error().syndrome == syndrome);
      REQUIRE(pair.error().index == k);
      for (std::uint64_t i = 0; i < 64; ++i) REQUIRE(pair.b.memory[i] == (i < k ? i + 1 : 0));
    }
  }
}

TEST_CASE("a lost response is asked for again, and nothing is executed twice", "[req:3.10][F4]") {
  for (std::uint64_t nth = 1; nth <= 40; ++nth) {
    ManualClock clock;
    NicPair pair({.receives = 64}, clock);
    REQUIRE(post_receives(pair.back, 64));
    NicFaults faults;
    faults.lost_responses = {{pair.back.number(), nth, 2}};
    set_faults(pair.b.nic, faults);
    RawPoster raw(pair.view());
    for (std::uint32_t i = 0; i < 10; ++i) {
      pair.a.memory[i] = i + 1;
      raw.add(dq::transfer_wqe(dq::Opcode::write_immediate, raw.place(), 0,
                               pair.b.region.remote(i * 8), word_of(pair.a, i), i));
      raw.add(dq::fetch_add_wqe(raw.place(), 0, pair.b.region.remote(800), 1,
                                word_of(pair.a, 200 + i)));
      raw.add(dq::masked_compare_swap_wqe(
          raw.place(), 0, pair.b.region.remote(808),
          dq::MaskedSwap<std::uint32_t>{i + 1, i, 0xffffffff, 0xffffffff},
          pair.a.range(8 * (300 + i), 4)));
      raw.add(dq::transfer_wqe(dq::Opcode::read, raw.place(), dq::kSignalled,
                               pair.b.region.remote(i * 8), word_of(pair.a, 400 + i)));
    }
    raw.ring();
    for (int i = 0; i < 12; ++i) {
      pair.run();
      clock.advance(seconds(5));
    }
    REQUIRE(*pair.there.memory().first_error == 0);
    REQUIRE(pair.tail().index == 39);
    REQUIRE(pair.b.memory[100] == 10);
    REQUIRE(static_cast<std::uint32_t>(pair.b.memory[101]) == 10);
    for (std::uint32_t i = 0; i < 10; ++i) {
      Immediate immediate;
      REQUIRE(take_immediate(pair.back, immediate));
      REQUIRE(immediate.value == i);
      REQUIRE(pair.a.memory[200 + i] == i);
      REQUIRE(dq::big_endian(static_cast<std::uint32_t>(pair.a.memory[300 + i])) == i);
      REQUIRE(pair.a.memory[400 + i] == i + 1);
    }
    Immediate none;
    REQUIRE_FALSE(take_immediate(pair.back, none));
  }
}

TEST_CASE("a peer that stops is waited for, one that stays silent is given up", "[req:3.10]") {
  ManualClock clock;
  NicPair pair({.retransmissions_most = 2}, clock);
  pair.a.memory[0] = 1;
  stop_nic(pair.b.nic);
  REQUIRE(put_word(pair, 0).outcome == QueueOutcome::done);
  pair.run();
  for (int i = 0; i < 2; ++i) {
    clock.advance(seconds(5));
    pair.run();
    CHECK(pair.tail().kind == dq::CompletionKind::invalid);
  }
  SECTION("back in time") {
    resume_nic(pair.b.nic);
    pair.run();
    CHECK(pair.tail().kind == dq::CompletionKind::request);
    CHECK(pair.b.memory[0] == 1);
  }
  SECTION("too late") {
    clock.advance(seconds(5));
    pair.run();
    CHECK(pair.error().syndrome == 0x15);
    resume_nic(pair.b.nic);
    pair.run();
    CHECK(pair.syndromes().syndrome == 0x15);
  }
}

TEST_CASE("a read is followed by a dump where it is needed, which begins once it was answered",
          "[req:3.10][A10][req:3.4]") {
  ManualClock clock;
  for (const bool dump : {false, true}) {
    NicPair pair({.gets_need_dump = dump}, clock);
    delay_responses(pair.b.nic, clock, milliseconds(3));
    pair.b.memory[0] = 41;
    REQUIRE(pair.get(8, 0, 8).outcome == QueueOutcome::done);
    pair.run();
    CHECK(pair.view().indexes->reserved == 1);
    clock.advance(milliseconds(3));
    REQUIRE(dq::wait_visible<DrivingMemory>(pair.view(), pair.control) == QueueOutcome::done);
    CHECK(pair.a.memory[1] == 41);
    CHECK(pair.view().indexes->reserved == (dump ? 2 : 1));
  }
}

TEST_CASE("a fence waits for the answers of earlier reads and atomics", "[req:3.8]") {
  ManualClock clock;
  NicPair pair({}, clock);
  delay_responses(pair.b.nic, clock, milliseconds(3));
  pair.a.memory[5] = 2;
  const bool fenced = GENERATE(false, true);
  RawPoster raw(pair.view());
  raw.add(dq::fetch_add_wqe(raw.place(), 0, pair.b.region.remote(0), 1, word_of(pair.a, 9)));
  add_write(pair, raw, 5, 1, dq::kSignalled | (fenced ? dq::kFenced : 0));
  raw.ring();
  pair.run();
  CHECK(pair.b.memory[0] == 1);
  CHECK(pair.b.memory[1] == (fenced ? 0 : 2));
  CHECK(pair.tail().kind == dq::CompletionKind::invalid);
  clock.advance(milliseconds(3));
  pair.run();
  CHECK(pair.b.memory[1] == 2);
  CHECK(pair.tail().index == 1);
}
