// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "net/failover/failover_pair.hpp"
#include "net/soft/nic_pair.hpp"

// Memory that is given back while the peer has yet to say what it has done with it (3.10 F4, 3.14).
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

/// A pair of one path and no backup, whose wires can be cut.
struct CutPair {
  CutPair() : there(make(nics[0])), back(make(nics[1])) {
    for (std::size_t i = 0; i < 2; ++i) {
      nics[i].add_wire(std::make_unique<FaultyWire>(exchange.attach(), faults[i]));
      MemoryRange range;
      range.address = reinterpret_cast<std::uint64_t>(memory[i].data());
      range.bytes = memory[i].size() * 8;
      range.memory = reinterpret_cast<std::byte*>(memory[i].data());
      range.access = kAllAccess;
      keys[i] = nics[i].register_memory(range).value();
      regions[i].address = range.address;
      regions[i].bytes = range.bytes;
      regions[i].keys[0] = keys[i];
    }
    REQUIRE(there.connect({0, nics[1].address(0), back.number()}).ok());
    REQUIRE(back.connect({0, nics[0].address(0), there.number()}).ok());
  }
  static SendQueue make(NicSoft& nic) {
    SendQueue::Options options;
    options.piece_bytes = 64;
    return SendQueue::create(nic, options).value();
  }
  void run() {
    for (int turn = 0; turn < 100; ++turn) nics[0].progress(), nics[1].progress();
  }
  dq::Posted put(std::uint64_t word, std::uint64_t bytes) {
    return dq::put<Thread>(Thread(), there.view(),
                           {regions[0], word * 8, regions[1], word * 8, bytes}, control);
  }
  bool is_complete(const dq::Posted& posted) {
    return FailoverPair::completed(there.view()) >= posted.end;
  }
  dq::QueueError error() const { return dq::decode_error(*there.memory().first_error); }

  ManualClock clock;
  LocalExchange exchange;
  WireFault faults[2];
  std::vector<std::uint64_t> memory[2] = {std::vector<std::uint64_t>(64),
                                          std::vector<std::uint64_t>(64)};
  NicSoft nics[2] = {NicSoft({.clock = &clock}), NicSoft({.clock = &clock})};
  std::uint32_t keys[2] = {};
  dq::Region regions[2];
  SendQueue there, back;
  device::WaitControl control;
};

}  // namespace

TEST_CASE("what was done needs no memory any more, though the answer was lost", "[req:3.10][F4]") {
  const std::uint64_t bytes = GENERATE(8u, 200u);  // one piece, and several
  CutPair pair;
  for (std::uint64_t i = 0; i < 64; ++i) pair.memory[0][i] = i + 1;
  set_faults(pair.nics[1], deaf());
  const auto put = pair.put(1, bytes);
  REQUIRE(put.outcome == QueueOutcome::done);
  pair.run();
  REQUIRE(pair.memory[1][1] == 2);
  REQUIRE_FALSE(pair.is_complete(put));
  REQUIRE(pair.nics[0].deregister_memory(pair.keys[0]).ok());
  std::fill(pair.memory[0].begin(), pair.memory[0].end(), 999);
  pair.clock.advance(QueueSetup().answer_timeout);
  pair.run();  // repeated, and the answer is lost once more
  REQUIRE_FALSE(pair.is_complete(put));
  set_faults(pair.nics[1], {});
  pair.clock.advance(QueueSetup().answer_timeout);
  pair.run();
  CHECK(pair.is_complete(put));
  CHECK(*pair.there.memory().first_error == 0);
  CHECK(pair.nics[0].counters().repeated > 0);
  for (std::uint64_t i = 1; i < 1 + bytes / 8; ++i) CHECK(pair.memory[1][i] == i + 1);
}

TEST_CASE("who does not answer is at fault, also where memory was given back meanwhile",
          "[req:3.10]") {
  CutPair pair;
  set_faults(pair.nics[1], deaf());
  const auto put = pair.put(1, 8);
  pair.run();
  REQUIRE(pair.nics[0].deregister_memory(pair.keys[0]).ok());
  for (std::uint32_t i = 0; i <= QueueSetup().repeats_most + 1; ++i) {
    pair.clock.advance(QueueSetup().answer_timeout);
    pair.run();
  }
  CHECK_FALSE(pair.is_complete(put));
  CHECK(pair.error().syndrome == static_cast<std::uint8_t>(Syndrome::transport_retry));
}

TEST_CASE("what was not done is refused once its memory was given back", "[req:3.10][req:3.23]") {
  CutPair pair;
  pair.faults[0].cut = true;
  const auto put = pair.put(1, 200);
  pair.run();
  REQUIRE(pair.nics[0].deregister_memory(pair.keys[0]).ok());
  std::fill(pair.memory[0].begin(), pair.memory[0].end(), 999);
  pair.faults[0].cut = false;
  pair.clock.advance(QueueSetup().answer_timeout);
  pair.run();
  CHECK_FALSE(pair.is_complete(put));
  CHECK(pair.error().syndrome == static_cast<std::uint8_t>(Syndrome::local_protection));
  CHECK(std::all_of(pair.memory[1].begin(), pair.memory[1].end(),
                    [](std::uint64_t word) { return word == 0; }));
}

namespace {

/// Four puts of a window's words over path 0.
void post_words(const FailoverPair& pair, RawPoster& raw) {
  for (std::uint64_t word = 10; word < 14; ++word) {
    const dq::LocalRange from{pair.a.region.address + word * 8, pair.a.keys[0], 8};
    raw.add(dq::transfer_entry(dq::Opcode::write, raw.place(), dq::kSignalled,
                               pair.b.region.remote(word * 8), from));
  }
  raw.ring();
}

/// As a rank does it with a window.
void give_back(FailoverPair& pair) {
  for (std::size_t path = 0; path < 2; ++path) {
    REQUIRE(pair.a.nics[path]->deregister_memory(pair.a.keys[path]).ok());
  }
  pair.there->aliases(1).remove_local(pair.a.keys[0]);
  std::fill(pair.a.memory.begin(), pair.a.memory.end(), 999);
}

}  // namespace

TEST_CASE("what one NIC had done is replayed by the other without its memory", "[req:3.14][F4]") {
  FailoverPair pair;
  const bool is_between_paths = GENERATE(false, true);
  for (std::uint64_t word = 10; word < 14; ++word) pair.a.memory[word] = word;
  set_faults(*pair.b.nics[0], deaf());
  RawPoster raw(pair.view());
  post_words(pair, raw);
  pair.run_for(milliseconds(2));
  REQUIRE(pair.b.memory[13] == 13);
  REQUIRE_FALSE(pair.is_complete(1));
  pair.b.faults[0]->cut = true;  // probes, too, are not answered
  if (is_between_paths) {
    pair.post.cut = true;
    REQUIRE(pair.run_until([&] { return pair.said_there.said().stage == PathStage::fenced; }));
    give_back(pair);
    pair.post.cut = false;
  } else {
    give_back(pair);
  }
  REQUIRE(pair.run_until([&] { return pair.is_complete(4); }, seconds(20)));
  CHECK(pair.path() == 1);
  for (std::uint64_t word = 10; word < 14; ++word) CHECK(pair.b.memory[word] == word);
  CHECK_FALSE(pair.has_failed(pair.view()));
  // The path is good for more.
  raw.add(dq::fetch_add_entry(raw.place(), dq::kSignalled, pair.b.region.remote(0), 1,
                              pair.view().spare_word()));
  raw.ring();
  REQUIRE(pair.run_until([&] { return pair.is_complete(5); }));
  CHECK(pair.b.memory[0] == 1);
}

TEST_CASE("what no NIC had done is refused once its memory was given back",
          "[req:3.14][req:3.23]") {
  FailoverPair pair;
  pair.a.faults[0]->cut = true;
  RawPoster raw(pair.view());
  post_words(pair, raw);
  pair.run_for(milliseconds(2));
  give_back(pair);
  REQUIRE(pair.run_until([&] { return pair.has_failed(pair.view()); }, seconds(20)));
  CHECK(dq::decode_error(*pair.there->queue().memory().first_error).syndrome ==
        static_cast<std::uint8_t>(Syndrome::local_protection));
  pair.run_for(seconds(1));
  for (std::uint64_t word = 10; word < 14; ++word) CHECK(pair.b.memory[word] == 0);
}
