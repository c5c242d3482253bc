// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include <catch2/catch.hpp>

#include "net/failover/lone_pair.hpp"

// Memory that is deregistered before the peer has acknowledged its use (3.10 F4, 3.14).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

NicFaults deaf() {
  NicFaults faults;
  faults.lost_responses = {{0, 1, ~std::uint64_t{0}}};
  return faults;
}

/// Pair with one path and no backup.
struct DeregisteredPair : LonePair {
  DeregisteredPair() : LonePair({.piece_bytes = 64}, 64) {
    for (std::uint64_t i = 0; i < 64; ++i) a.memory[i] = i + 1;
  }
  dq::Posted put(std::uint64_t bytes) {
    const auto posted =
        dq::put<Thread>(Thread(), there.view(), {a.region, 8, b.region, 8, bytes}, control);
    REQUIRE(posted.outcome == QueueOutcome::done);
    run_for(milliseconds(2));
    return posted;
  }
  void deregister() {
    REQUIRE(a.nics[0]->deregister_memory(a.keys[0]).ok());
    std::fill(a.memory.begin(), a.memory.end(), 999);
  }
  void wait_for_answer(std::uint32_t times = 1) {
    for (; times > 0; --times) {
      clock.advance(QueueSetup().answer_timeout);
      run_for(milliseconds(2));
    }
  }
  bool has_failed_with(Syndrome syndrome) const {
    return dq::decode_error(*there.memory().first_error).syndrome ==
           static_cast<std::uint8_t>(syndrome);
  }
};

}  // namespace

TEST_CASE("a completed put whose response was lost succeeds without its deregistered source",
          "[req:3.10][F4]") {
  const std::uint64_t bytes = GENERATE(8u, 200u);  // one piece, and several
  DeregisteredPair pair;
  set_faults(*pair.b.nics[0], deaf());
  const auto put = pair.put(bytes);
  REQUIRE(pair.b.memory[1] == 2);
  pair.deregister();
  pair.wait_for_answer();  // retransmitted, and the answer is lost again
  REQUIRE_FALSE(pair.is_complete(pair.there, put));
  set_faults(*pair.b.nics[0], {});
  pair.wait_for_answer();
  CHECK(pair.is_complete(pair.there, put));
  CHECK_FALSE(pair.has_failed(pair.there));
  CHECK(traffic(*pair.a.nics[0]).retransmitted > 0);
  for (std::uint64_t i = 1; i < 1 + bytes / 8; ++i) CHECK(pair.b.memory[i] == i + 1);
}

TEST_CASE("an unanswered put fails with a retry error, even if its source was deregistered",
          "[req:3.10]") {
  DeregisteredPair pair;
  set_faults(*pair.b.nics[0], deaf());
  const auto put = pair.put(8);
  pair.deregister();
  pair.wait_for_answer(QueueSetup().retransmissions_most + 2);
  CHECK_FALSE(pair.is_complete(pair.there, put));
  CHECK(pair.has_failed_with(Syndrome::transport_retry));
}

TEST_CASE("an undelivered put fails with a protection error once its source is deregistered",
          "[req:3.10][req:3.23]") {
  DeregisteredPair pair;
  pair.a.faults[0]->cut = true;
  const auto put = pair.put(200);
  pair.deregister();
  pair.a.faults[0]->cut = false;
  pair.wait_for_answer();
  CHECK_FALSE(pair.is_complete(pair.there, put));
  CHECK(pair.has_failed_with(Syndrome::local_protection));
  CHECK(std::all_of(pair.b.memory.begin(), pair.b.memory.end(),
                    [](std::uint64_t word) { return word == 0; }));
}

namespace {

/// Posts four puts of a window's words over path 0.
void post_words(const FailoverPair& pair, RawPoster& raw) {
  for (std::uint64_t word = 10; word < 14; ++word) {
    const dq::LocalRange from{pair.a.region.address + word * 8, pair.a.keys[0], 8};
    raw.add(dq::transfer_wqe(dq::Opcode::write, raw.place(), dq::kSignalled,
                             pair.b.region.remote(word * 8), from));
  }
  raw.ring();
}

/// Deregisters the window, as a rank does.
void deregister(FailoverPair& pair) {
  for (std::size_t path = 0; path < 2; ++path) {
    REQUIRE(pair.a.nics[path]->deregister_memory(pair.a.keys[path]).ok());
  }
  pair.there->aliases(1).remove_local(pair.a.keys[0]);
  std::fill(pair.a.memory.begin(), pair.a.memory.end(), 999);
}

}  // namespace

TEST_CASE("a failover replays completed operations without their deregistered source",
          "[req:3.14][F4]") {
  FailoverPair pair;
  const bool is_between_paths = GENERATE(false, true);
  for (std::uint64_t word = 10; word < 14; ++word) pair.a.memory[word] = word;
  set_faults(*pair.b.nics[0], deaf());
  RawPoster raw(pair.view());
  post_words(pair, raw);
  pair.run_for(milliseconds(2));
  REQUIRE(pair.b.memory[13] == 13);
  REQUIRE_FALSE(pair.is_complete(1));
  pair.b.faults[0]->cut = true;  // probes are not answered either
  if (is_between_paths) {
    pair.post.cut = true;
    REQUIRE(pair.run_until([&] { return pair.sent_there.last_sent().stage == PathStage::fenced; }));
    deregister(pair);
    pair.post.cut = false;
  } else {
    deregister(pair);
  }
  REQUIRE(pair.run_until([&] { return pair.is_complete(4); }, seconds(20)));
  CHECK(pair.path() == 1);
  for (std::uint64_t word = 10; word < 14; ++word) CHECK(pair.b.memory[word] == word);
  CHECK_FALSE(pair.has_failed(pair.view()));
  // The path still works.
  raw.add(dq::fetch_add_wqe(raw.place(), dq::kSignalled, pair.b.region.remote(0), 1,
                            pair.view().spare_word()));
  raw.ring();
  REQUIRE(pair.run_until([&] { return pair.is_complete(5); }));
  CHECK(pair.b.memory[0] == 1);
}

TEST_CASE("a failover fails uncompleted operations whose source was deregistered",
          "[req:3.14][req:3.23]") {
  FailoverPair pair;
  pair.a.faults[0]->cut = true;
  RawPoster raw(pair.view());
  post_words(pair, raw);
  pair.run_for(milliseconds(2));
  deregister(pair);
  REQUIRE(pair.run_until([&] { return pair.has_failed(pair.view()); }, seconds(20)));
  CHECK(dq::decode_error(*pair.there->queue().memory().first_error).syndrome ==
        static_cast<std::uint8_t>(Syndrome::local_protection));
  pair.run_for(seconds(1));
  for (std::uint64_t word = 10; word < 14; ++word) CHECK(pair.b.memory[word] == 0);
}
