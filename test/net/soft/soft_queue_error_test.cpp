// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <functional>

#include <catch2/catch.hpp>

#include "net/soft/nic_pair.hpp"

// Invalid WQEs, which the software NIC must not execute (3.8, 3.23). Expects an adapter's syndrome,
// one completion with it, flushed WQEs behind it, and untouched memory.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;

namespace {

using Make = std::function<void(NicPair&, RawPoster&)>;

// Posts two good WQEs, the bad one and two good ones; later, one more on the failed queue.
void expect_failure(std::uint8_t syndrome, const Make& bad) {
  NicPair pair;
  RawPoster raw(pair.view());
  for (auto& word : pair.b.memory) word = 7;
  const auto mark = [&](std::uint64_t word, std::uint64_t value) {
    raw.add(dq::inline_write_wqe(raw.place(), dq::kSignalled, pair.b.region.remote(word * 8),
                                 {reinterpret_cast<const unsigned char*>(&value), 8}));
  };
  mark(0, 100);
  mark(1, 101);
  const std::uint64_t index = raw.next();
  bad(pair, raw);
  mark(2, 102);
  mark(3, 103);
  raw.ring();
  pair.run();
  CHECK(pair.error().syndrome == syndrome);
  CHECK(pair.error().index == index);
  CHECK(pair.tail().kind == dq::CompletionKind::request_error);
  CHECK(pair.syndromes().syndrome == dq::kFlushed);
  CHECK(pair.tail().index == raw.next() - 1);
  CHECK(pair.a.nic.state(pair.there.number()).value() == QueueState::error);
  CHECK(pair.b.memory[0] == 100);
  CHECK(pair.b.memory[1] == 101);
  for (std::size_t i = 2; i < pair.b.memory.size(); ++i) REQUIRE(pair.b.memory[i] == 7);
  mark(4, 104);
  raw.ring();
  pair.run();
  CHECK(pair.tail().index == raw.next() - 1);
  CHECK(pair.syndromes().syndrome == dq::kFlushed);
  CHECK(pair.error().syndrome == syndrome);
  CHECK(pair.b.memory[4] == 7);
  // Leaves WQEBBs that were not executed unchanged, so that they can be posted to another queue.
  CHECK(pair.there.memory().ring[(raw.next() - 1) * 64 + 3] == std::byte{0x08});
}

/// WQE that names memory at offset `at` of a side by a wrong key or range.
struct Wrong {
  enum Kind { write, read, add, dump, bytes };
  Kind kind;
  std::uint64_t at;
  std::uint32_t (*key)(Side& side);
};
std::uint32_t good(Side& side) {
  return side.key;
}
std::uint32_t next(Side& side) {
  return side.key + 1;
}
std::uint32_t zero(Side& /*side*/) {
  return 0;
}
template <unsigned kRights>
std::uint32_t with(Side& side) {
  return side.add_key(kRights);
}
std::uint32_t deregistered(Side& side) {
  const std::uint32_t key = side.add_key(kAllAccess);
  REQUIRE(side.nic.deregister_memory(key).ok());
  return key;
}

void expect_refusal(bool is_remote, const Wrong& one) {
  INFO("WQE of kind " << one.kind << " at " << one.at);
  expect_failure(is_remote ? 0x13 : 0x04, [&](NicPair& pair, RawPoster& raw) {
    const std::uint32_t bytes = one.kind == Wrong::add || one.kind == Wrong::dump ? 8 : 64;
    dq::LocalRange near = pair.a.range(is_remote ? 0 : one.at, bytes);
    if (!is_remote) near.lkey = one.key(pair.a);
    dq::RemoteAddress far = pair.b.region.remote(64);
    if (is_remote) far = {pair.b.region.address + one.at, one.key(pair.b)};
    const std::uint64_t value = 9;
    switch (one.kind) {
      case Wrong::write:
        raw.add(dq::transfer_wqe(dq::Opcode::write, raw.place(), 0, far, near));
        break;
      case Wrong::read:
        raw.add(dq::transfer_wqe(dq::Opcode::read, raw.place(), 0, far, near));
        break;
      case Wrong::add:
        raw.add(dq::fetch_add_wqe(raw.place(), 0, far, 1, near));
        break;
      case Wrong::dump:
        raw.add(dq::dump_wqe(raw.place(), 0, near));
        break;
      case Wrong::bytes:
        raw.add(dq::inline_write_wqe(raw.place(), 0, far,
                                     {reinterpret_cast<const unsigned char*>(&value), 8}));
    }
  });
}

constexpr std::uint64_t kLast = 8192 * 8 - 63;  // 64 bytes from here end one byte too far

}  // namespace

TEST_CASE("a wrong lkey, range or right is a local protection error", "[req:3.8][req:3.23]") {
  for (const Wrong& one : {Wrong{Wrong::write, 0, next},
                           {Wrong::write, 0, zero},
                           {Wrong::write, kLast, good},
                           {Wrong::write, 0, deregistered},
                           {Wrong::read, 0, with<0>},
                           {Wrong::add, 0, with<0>},
                           {Wrong::dump, 0, next}}) {
    expect_refusal(false, one);
  }
}

TEST_CASE("a wrong rkey, range or right is a remote access error", "[req:3.8][req:3.23]") {
  for (const Wrong& one : {Wrong{Wrong::write, 64, next},
                           {Wrong::write, 64, zero},
                           {Wrong::write, kLast, good},
                           {Wrong::write, ~std::uint64_t{0}, good},
                           {Wrong::write, 64, deregistered},
                           {Wrong::write, 64, with<kLocalWrite>},
                           {Wrong::read, 64, with<kLocalWrite | kRemoteWrite>},
                           {Wrong::add, 64, with<kLocalWrite | kRemoteWrite | kRemoteRead>},
                           // Inline data has the same checks at the peer.
                           {Wrong::bytes, 64, next}}) {
    expect_refusal(true, one);
  }
}

// work_reader_test.cpp shows that the reader refuses each violation of the format.
TEST_CASE("a WQE of nonsense, of a wrong length or not aligned has the syndrome for that",
          "[req:3.8][req:3.23]") {
  expect_failure(0x02, [](NicPair&, RawPoster& raw) {
    raw.add(dq::nop_wqe({raw.place().queue, raw.place().index + 1}, dq::kSignalled));
  });
  expect_failure(0x01, [](NicPair& pair, RawPoster& raw) {
    raw.add(dq::fetch_add_wqe(raw.place(), 0, pair.b.region.remote(64), 1, pair.a.range(0, 16)));
  });
  expect_failure(0x12, [](NicPair& pair, RawPoster& raw) {
    raw.add(dq::fetch_add_wqe(raw.place(), 0, pair.b.region.remote(68), 1, pair.a.range(0, 8)));
  });
}

TEST_CASE("the peer's queue ends as well, and its own WQEs are flushed", "[req:3.8][B6]") {
  NicPair pair;
  RawPoster answer(pair.back.view());
  pair.put({pair.a.region, 0, pair.b.with_key(5), 0, 64});
  pair.run();
  CHECK(pair.b.nic.state(pair.back.number()).value() == QueueState::error);
  answer.nop(0);
  answer.ring();
  pair.run();
  const auto tail = dq::decode_tail(pair.back.view().completion->tail);
  CHECK(tail.kind == dq::CompletionKind::request_error);
  CHECK(dq::decode_error(*pair.back.memory().first_error).syndrome == dq::kFlushed);
}

TEST_CASE("a queue that is put in error flushes what is not complete", "[req:3.6][req:3.8]") {
  NicPair pair;
  stop_nic(pair.b.nic);
  for (int i = 0; i < 10; ++i) pair.put(0, 0, 64);
  for (int i = 0; i < 10; ++i) pair.a.nic.progress();
  REQUIRE(pair.a.nic.to_error(pair.there.number()).ok());
  for (int i = 0; i < 10; ++i) pair.a.nic.progress();
  CHECK(pair.error().syndrome == dq::kFlushed);
  CHECK(pair.error().index == 0);
  resume_nic(pair.b.nic);
  pair.run();  // answers to a queue that has ended
  CHECK(pair.tail().index == 9);
}

TEST_CASE("a NIC that takes nothing more answers what has come, and refuses nothing",
          "[req:3.19]") {
  NicPair pair;
  const dq::Posted before = pair.put_value(100, 0);
  for (int turn = 0; turn < 1000 && pair.b.memory[0] == 0; ++turn) {
    pair.a.nic.progress();
    pair.b.nic.progress();
  }
  REQUIRE(pair.b.memory[0] == 100);
  pair.b.nic.end_receiving();
  REQUIRE(pair.b.nic.deregister_memory(pair.b.key).ok());
  const dq::Posted after = pair.put_value(101, 8);
  pair.run();
  CHECK(pair.wait(before) == QueueOutcome::done);
  CHECK(pair.error().syndrome == 0);
  CHECK_FALSE(pair.a.nic.is_idle());
  CHECK(pair.b.memory[1] == 0);
  // The NIC still waits for the response.
  pair.control.timeout_ns = 1'000'000;
  CHECK(pair.wait(after) == QueueOutcome::timed_out);
}

TEST_CASE("operations posted after a NIC stops sending reach no peer and are aborted",
          "[req:3.6]") {
  NicPair pair;
  CHECK(pair.wait(pair.put_value(100, 0)) == QueueOutcome::done);
  const dq::Posted before = pair.put_value(101, 8);  // the NIC has not polled since
  pair.a.nic.end_sending();
  const dq::Posted after = pair.put_value(102, 16);
  CHECK(before.outcome == QueueOutcome::done);
  CHECK(after.outcome == QueueOutcome::done);
  pair.run();
  CHECK(pair.a.nic.is_idle());

  // A request of the peer is answered as long as the peer does not know of the end.
  const dq::Posted other =
      dq::put_value(Thread(), pair.back.view(), std::uint64_t{7}, pair.a.region, 0, pair.control);
  CHECK(dq::wait_complete<DrivingMemory>(pair.back.view(), other.end, pair.control) ==
        QueueOutcome::done);
  CHECK(pair.a.memory[0] == 7);

  REQUIRE(pair.there.refuse_posts().ok());
  for (const dq::Posted& refused : {pair.put_value(103, 24), pair.put(0, 32, 8), pair.add(1, 40)}) {
    CHECK(refused.outcome == QueueOutcome::aborted);
  }
  CHECK(pair.wait(before) == QueueOutcome::aborted);
  CHECK(pair.wait(after) == QueueOutcome::aborted);
  pair.run();
  CHECK(pair.b.memory[0] == 100);
  for (std::size_t i = 1; i < pair.b.memory.size(); ++i) REQUIRE(pair.b.memory[i] == 0);
}

TEST_CASE("producers learn the first error, with its WQE, whoever waits and however late",
          "[req:3.6]") {
  NicPair pair;
  const dq::Posted good = pair.put(0, 0, 64);
  const dq::Posted bad = pair.put({pair.a.region, 0, pair.b.with_key(pair.b.key + 2), 0, 64});
  const dq::Posted late = pair.put(0, 0, 64);
  pair.run();
  CHECK(pair.wait(bad) == QueueOutcome::failed);
  CHECK(pair.wait(late) == QueueOutcome::failed);
  CHECK(pair.wait(good) == QueueOutcome::done);
  const auto error = dq::decode_error(pair.view().indexes->error);
  CHECK(error.syndrome == 0x13);
  CHECK(error.opcode == 0x08);
  CHECK(error.index == 1);
}
