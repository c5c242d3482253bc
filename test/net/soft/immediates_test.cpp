// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>

#include <catch2/catch.hpp>

#include "net/soft/immediates_body.hpp"
#include "net/soft/running_pair.hpp"
#include "net/soft/split_pages.hpp"
#include "support/sanitized.hpp"

// Receiving end of queues in device code: taking immediates, waiting for them, posting receives (B4
// of the reference).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::Arrival;
using dq::QueueOutcome;
using dq::ReceivedImmediate;

namespace {

SendQueue::Options with_receives(std::uint32_t count) {
  return {.receives = count};
}

dq::Posted put_immediate(NicPair& pair, std::uint64_t word, std::uint32_t value) {
  return pair.put_immediate(pair.transfer(word * 8, word * 8, 8), value);
}

/// Waits on the other side.
template <class M = DrivingMemory>
QueueOutcome wait_back(const NicPair& pair, ReceivedImmediate& immediate) {
  return dq::wait_immediate<Thread, M>(Thread(), pair.back.view(), pair.back.receives(), immediate,
                                       pair.control);
}

/// Sets a word after a number of polls.
struct AbortingMemory : DrivingMemory {
  static inline std::uint32_t word = 0;
  static inline int polls_left = 0;
  static void relax() {
    DrivingMemory::relax();
    if (--polls_left == 0) device::Memory::store<device::Order::relaxed>(&word, 1u);
  }
};

}  // namespace

TEST_CASE("a wait ends at its deadline, by the abort word and where posts are refused", "[B4]") {
  NicPair pair(with_receives(2));
  REQUIRE(post_receives(pair.back, 2));
  const std::uint64_t timeout = pair.control.timeout_ns;
  pair.control.timeout_ns = 2'000'000;
  ReceivedImmediate immediate;
  const auto begin = std::chrono::steady_clock::now();
  CHECK(wait_back(pair, immediate) == QueueOutcome::timed_out);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(2));
  CHECK(immediate.value == 0);
  pair.control.timeout_ns = timeout;
  AbortingMemory::word = 0;
  AbortingMemory::polls_left = 3000;
  pair.control.abort = &AbortingMemory::word;
  CHECK(wait_back<AbortingMemory>(pair, immediate) == QueueOutcome::aborted);
  CHECK(AbortingMemory::polls_left <= 0);
  // An immediate that has arrived is taken in spite of the abort.
  REQUIRE(put_immediate(pair, 0, 9).outcome == QueueOutcome::done);
  pair.run();
  CHECK(wait_back(pair, immediate) == QueueOutcome::done);
  CHECK(immediate.value == 9);
  CHECK(pair.back.view().indexes->broken == 0);
  pair.control.abort = nullptr;
  REQUIRE(pair.back.refuse_posts().ok());
  CHECK(wait_back(pair, immediate) == QueueOutcome::aborted);
  CHECK(pair.back.view().indexes->error == 0);
}

TEST_CASE("a wait is refused where nothing can come: no receive is posted, or there are none",
          "[B4]") {
  NicPair pair(with_receives(2));
  ReceivedImmediate immediate;
  CHECK(wait_back(pair, immediate) == QueueOutcome::refused);
  REQUIRE(post_receives(pair.back, 1));
  REQUIRE(put_immediate(pair, 0, 1).outcome == QueueOutcome::done);
  CHECK(wait_back(pair, immediate) == QueueOutcome::done);
  CHECK(wait_back(pair, immediate) == QueueOutcome::refused);

  NicPair without;
  CHECK(without.back.receives().count == 0);
  CHECK(wait_back(without, immediate) == QueueOutcome::refused);
  CHECK(dq::take_immediate(without.back.receives(), immediate) == Arrival::none);
  CHECK(dq::post_receives(without.back.receives(), 0));
  CHECK_FALSE(dq::post_receives(without.back.receives(), 1));
}

TEST_CASE("a queue that fails ends its wait, with the reason as far as it is known", "[B4]") {
  NicPair pair(with_receives(4));
  REQUIRE(post_receives(pair.back, 3));
  REQUIRE(put_immediate(pair, 0, 5).outcome == QueueOutcome::done);
  pair.run();
  std::uint32_t syndrome = 0;
  SECTION("the peer asks for what it may not have") {
    const dq::Transfer wrong{pair.a.region, 0, pair.b.with_key(pair.b.key ^ 1), 0, 8};
    CHECK(pair.wait(pair.put_immediate(wrong, 6)) == QueueOutcome::failed);
    syndrome = dq::kFlushed;
  }
  SECTION("this side does") {
    const dq::Transfer wrong{pair.b.region, 0, pair.a.with_key(pair.a.key ^ 1), 0, 8};
    REQUIRE(dq::put(Thread(), pair.back.view(), wrong, pair.control).outcome == QueueOutcome::done);
    syndrome = 0x13;
  }
  ReceivedImmediate immediate;
  REQUIRE(wait_back(pair, immediate) == QueueOutcome::done);  // it arrived before the failure
  CHECK(immediate.value == 5);
  CHECK(wait_back(pair, immediate) == QueueOutcome::failed);
  CHECK(dq::decode_error(pair.back.view().indexes->error).syndrome == syndrome);
  CHECK(dq::take_immediate(pair.back.receives(), immediate) == Arrival::failed);
  CHECK(immediate.value == 5);
  // Receives that were posted are flushed, and so are those posted now.
  const auto kind = [&](std::uint32_t at) {
    return dq::decode_tail(pair.back.receives().completions[at].tail).kind;
  };
  CHECK(kind(2) == dq::CompletionKind::response_error);
  CHECK(kind(3) == dq::CompletionKind::invalid);
  REQUIRE(post_receives(pair.back, 1));
  pair.run();
  CHECK(kind(3) == dq::CompletionKind::response_error);
}

TEST_CASE("immediates are exact around the ring and the 16 bits of the record", "[B4]") {
  const std::uint32_t count = GENERATE(2u, 4u, 16u);
  // Passes the record's 65536 twice, only with 4 elements and without sanitizers.
  const bool wraps_record = count == 4 && !oriel::test::kSanitized;
  const std::uint64_t total = wraps_record ? 140'000 : 7'000;
  const unsigned seed = 11 + count;
  INFO(count << " elements, seed " << seed);
  std::mt19937 random(seed);
  NicPair pair(with_receives(count));
  const dq::ReceiveView& receives = pair.back.receives();
  std::uint64_t posted = 0, sent = 0, taken = 0;
  while (taken < total) {
    const auto more = static_cast<std::uint32_t>(random() % (count - (posted - taken) + 1));
    REQUIRE(dq::post_receives(receives, more));
    posted += more;
    REQUIRE(dq::big_endian(*receives.record) == (posted & 0xffff));
    REQUIRE_FALSE(
        dq::post_receives(receives, static_cast<std::uint32_t>(count - (posted - taken) + 1)));
    // Sends at most as many as there are receives, so that no NIC has to retransmit.
    for (std::uint64_t n = random() % (posted - sent + 1); n > 0; --n) {
      pair.a.memory[sent % 32] = sent;
      REQUIRE(put_immediate(pair, sent % 32, static_cast<std::uint32_t>(sent)).outcome ==
              QueueOutcome::done);
      ++sent;
    }
    ReceivedImmediate immediate;
    for (std::uint64_t n = random() % (sent - taken + 1); n > 0; --n) {
      REQUIRE(wait_back(pair, immediate) == QueueOutcome::done);
      REQUIRE(immediate.value == static_cast<std::uint32_t>(taken));
      REQUIRE(pair.b.memory[taken % 32] == taken);
      ++taken;
    }
    if (taken < sent) continue;
    pair.run();
    REQUIRE(dq::take_immediate(receives, immediate) == Arrival::none);
  }
  CHECK((!wraps_record || posted > 2 * 65536));
  CHECK(pair.wait({QueueOutcome::done, sent}) == QueueOutcome::done);
}

TEST_CASE("host and kernels may take turns: receives lie where both have them", "[B4]") {
  SplitSource pages;
  SendQueue::Options options = with_receives(4);
  options.pages = &pages;
  options.mode = DoorbellMode::alone;
  NicPair pair(options);
  const dq::ReceiveView& receives = pair.back.receives();
  const auto is_on_host = [&](const void* from, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(from);
    return first >= pages.on_host && first + bytes <= pages.on_host + pages.on_host_bytes;
  };
  CHECK(is_on_host(receives.completions, 4 * sizeof(dq::Completion)));
  CHECK(is_on_host(receives.record, 8));
  CHECK(is_on_host(receives.position, sizeof(dq::ReceivePosition)));
  // The NIC sees the same words at other addresses.
  CHECK(receives.record != pair.back.memory().record);
  ReceivedImmediate immediate;
  for (std::uint32_t i = 0; i < 12; ++i) {
    REQUIRE(dq::post_receives(receives, 1));
    REQUIRE(put_immediate(pair, i, i).outcome == QueueOutcome::done);
    REQUIRE(wait_back(pair, immediate) == QueueOutcome::done);
    CHECK(immediate.value == i);
  }
}

TEST_CASE("where visibility needs a dump, a wait posts one before it says done", "[B4]") {
  SendQueue::Options options = with_receives(2);
  options.gets_need_dump = true;
  NicPair pair(options);
  REQUIRE(post_receives(pair.back, 1));
  REQUIRE(put_immediate(pair, 0, 3).outcome == QueueOutcome::done);
  pair.run();
  ReceivedImmediate immediate;
  REQUIRE(wait_back(pair, immediate) == QueueOutcome::done);
  CHECK(immediate.value == 3);
  CHECK(pair.back.view().indexes->completed == 1);
}

// gpu_nic_model_test.cpp tests more of this, on a model of a GPU.
TEST_CASE("a thread that puts and one that waits, with NICs that run by themselves", "[B4]") {
  constexpr std::uint32_t kReceives = 64;
  const std::uint32_t rounds = oriel::test::repeats(6000u, 4u);
  RunningPair pair({}, with_receives(kReceives));
  SendQueue& back = pair.back;
  const ImmediatesPath from{pair.view(),   {},          pair.a.region, pair.b.region, 256,
                            2 * kReceives, pair.control};
  const ImmediatesPath to{back.view(), back.receives(), pair.b.region, pair.a.region,
                          256,         2 * kReceives,   pair.control};
  REQUIRE(post_receives(back, kReceives));
  ImmediatesBody<Thread> sender(from), receiver(to);
  QueueOutcome sent{}, received{};
  {
    const std::jthread putter([&] {
      for (std::uint32_t i = 0; i < rounds && sent == QueueOutcome::done; ++i)
        sent = sender.send(i);
    });
    for (std::uint32_t i = 0; i < rounds && received == QueueOutcome::done; ++i) {
      received = receiver.receive(i);
    }
  }
  CHECK(sent == QueueOutcome::done);
  CHECK(received == QueueOutcome::done);
  CHECK(receiver.wrong() == 0);
}
