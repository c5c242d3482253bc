// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>

#include <catch2/catch.hpp>

#include "net/soft/nic_pair.hpp"
#include "net/soft/split_pages.hpp"
#include "net/support/run_nic.hpp"
#include "support/sanitized.hpp"

// The receiving end of queues as device code has it: looking for immediates, waiting for them,
// making room (B4 of the reference).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::Arrival;
using dq::QueueOutcome;
using dq::ReceivedImmediate;

namespace {

SendQueue::Options with_receives(std::uint32_t count) {
  SendQueue::Options options;
  options.receives = count;
  return options;
}

dq::Posted put_immediate(NicPair& pair, std::uint64_t word, std::uint32_t value) {
  return dq::put_immediate<Thread, DrivingMemory>(
      Thread(), pair.view(), pair.transfer(word * 8, word * 8, 8), value, pair.control);
}

/// A wait of the other side.
QueueOutcome wait_back(NicPair& pair, ReceivedImmediate& immediate,
                       const device::WaitControl& control) {
  return dq::wait_immediate<Thread, DrivingMemory>(Thread(), pair.back.view(), pair.back.receives(),
                                                   immediate, control);
}
QueueOutcome wait_back(NicPair& pair, ReceivedImmediate& immediate) {
  return wait_back(pair, immediate, pair.control);
}

/// Sets a word after so many polls.
struct AbortingMemory : DrivingMemory {
  static inline std::uint32_t word = 0;
  static inline int polls_left = 0;
  static void relax() {
    DrivingMemory::relax();
    if (--polls_left == 0) device::Memory::store<device::Order::relaxed>(&word, 1u);
  }
};

std::uint32_t record_of(const dq::ReceiveView& receives) {
  return dq::big_endian(*receives.record);
}

}  // namespace

TEST_CASE("a wait ends at its deadline, and the next one with the immediate", "[B4]") {
  NicPair pair(with_receives(2));
  REQUIRE(pair.back.post_receives(1).ok());
  device::WaitControl hasty;
  hasty.timeout_ns = 2'000'000;
  ReceivedImmediate immediate;
  const auto begin = std::chrono::steady_clock::now();
  CHECK(wait_back(pair, immediate, hasty) == QueueOutcome::timed_out);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(2));
  CHECK(immediate.value == 0);
  CHECK(pair.back.view().indexes->broken == 0);
  REQUIRE(put_immediate(pair, 0, 7).outcome == QueueOutcome::done);
  REQUIRE(wait_back(pair, immediate) == QueueOutcome::done);
  CHECK(immediate.value == 7);
}

TEST_CASE("a wait ends by the abort word, and where posts are refused", "[B4]") {
  NicPair pair(with_receives(2));
  REQUIRE(pair.back.post_receives(2).ok());
  ReceivedImmediate immediate;
  SECTION("the word") {
    AbortingMemory::word = 0;
    AbortingMemory::polls_left = 3000;
    device::WaitControl control = pair.control;
    control.abort = &AbortingMemory::word;
    CHECK(dq::wait_immediate<Thread, AbortingMemory>(Thread(), pair.back.view(),
                                                     pair.back.receives(), immediate,
                                                     control) == QueueOutcome::aborted);
    CHECK(AbortingMemory::polls_left <= 0);
    // What has come is taken all the same.
    REQUIRE(put_immediate(pair, 0, 9).outcome == QueueOutcome::done);
    pair.run();
    CHECK(wait_back(pair, immediate, control) == QueueOutcome::done);
    CHECK(immediate.value == 9);
  }
  SECTION("posts are refused") {
    REQUIRE(pair.back.refuse_posts().ok());
    CHECK(wait_back(pair, immediate) == QueueOutcome::aborted);
  }
  CHECK(pair.back.view().indexes->error == 0);
}

TEST_CASE("a wait is refused where nothing can come: no receive is posted, or there are none",
          "[B4]") {
  NicPair pair(with_receives(2));
  ReceivedImmediate immediate;
  CHECK(wait_back(pair, immediate) == QueueOutcome::refused);
  REQUIRE(pair.back.post_receives(1).ok());
  REQUIRE(put_immediate(pair, 0, 1).outcome == QueueOutcome::done);
  CHECK(wait_back(pair, immediate) == QueueOutcome::done);
  CHECK(wait_back(pair, immediate) == QueueOutcome::refused);

  NicPair without;
  CHECK(without.back.receives().count == 0);
  CHECK(wait_back(without, immediate) == QueueOutcome::refused);
  CHECK(dq::take_immediate(without.back.receives(), immediate) == Arrival::none);
  CHECK(dq::post_receives(without.back.receives(), 0));
  CHECK_FALSE(dq::post_receives(without.back.receives(), 1));
  CHECK_FALSE(without.back.post_receives(1).ok());
  CHECK_FALSE(without.back.take_immediate(immediate));
}

TEST_CASE("a queue that fails ends its wait, with the reason as far as it is known", "[B4]") {
  NicPair pair(with_receives(4));
  REQUIRE(pair.back.post_receives(3).ok());
  REQUIRE(put_immediate(pair, 0, 5).outcome == QueueOutcome::done);
  pair.run();
  std::uint32_t syndrome = 0;
  SECTION("the peer asks for what it may not have") {
    const dq::Transfer wrong{pair.a.region, 0, pair.b.with_key(pair.b.key ^ 1), 0, 8};
    const auto put =
        dq::put_immediate<Thread, DrivingMemory>(Thread(), pair.view(), wrong, 6, pair.control);
    CHECK(pair.wait(put) == QueueOutcome::failed);
    syndrome = dq::kFlushed;
  }
  SECTION("this side does") {
    const dq::Transfer wrong{pair.b.region, 0, pair.a.with_key(pair.a.key ^ 1), 0, 8};
    const auto put =
        dq::put<Thread, DrivingMemory>(Thread(), pair.back.view(), wrong, pair.control);
    REQUIRE(put.outcome == QueueOutcome::done);
    syndrome = 0x13;
  }
  ReceivedImmediate immediate;
  REQUIRE(wait_back(pair, immediate) == QueueOutcome::done);  // it came before
  CHECK(immediate.value == 5);
  CHECK(wait_back(pair, immediate) == QueueOutcome::failed);
  CHECK(dq::decode_error(pair.back.view().indexes->error).syndrome == syndrome);
  CHECK(dq::take_immediate(pair.back.receives(), immediate) == Arrival::failed);
  CHECK_FALSE(pair.back.take_immediate(immediate));
  CHECK(immediate.value == 5);
  // Every receive that was posted is flushed, and those posted now are.
  const auto kind = [&](std::uint32_t at) {
    return dq::decode_tail(pair.back.receives().completions[at].tail).kind;
  };
  CHECK(kind(2) == dq::CompletionKind::response_error);
  CHECK(kind(3) == dq::CompletionKind::invalid);
  REQUIRE(pair.back.post_receives(1).ok());
  pair.run();
  CHECK(kind(3) == dq::CompletionKind::response_error);
}

TEST_CASE("immediates are exact around the ring and the 16 bits of the record", "[B4]") {
  const std::uint32_t count = GENERATE(2u, 4u, 16u);
  // Past the record's 65536 at least without sanitizers.
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
    REQUIRE(record_of(receives) == (posted & 0xffff));
    REQUIRE_FALSE(
        dq::post_receives(receives, static_cast<std::uint32_t>(count - (posted - taken) + 1)));
    // As many as there are receives, so that no NIC has to wait and ask again.
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
  CHECK(static_cast<const void*>(receives.record) !=
        static_cast<const void*>(pair.back.memory().record));
  for (std::uint32_t i = 0; i < 40; ++i) {
    const bool by_host = i % 3 == 0;
    const bool posted = by_host ? pair.back.post_receives(1).ok() : dq::post_receives(receives, 1);
    REQUIRE(posted);
    REQUIRE(put_immediate(pair, i, i).outcome == QueueOutcome::done);
    pair.run();
    ReceivedImmediate immediate;
    if (i % 4 < 2) {
      REQUIRE(pair.back.take_immediate(immediate));
    } else {
      REQUIRE(wait_back(pair, immediate) == QueueOutcome::done);
    }
    CHECK(immediate.value == i);
  }
}

TEST_CASE("where visibility needs a dump, a wait posts one before it says done", "[B4]") {
  SendQueue::Options options = with_receives(2);
  options.gets_need_dump = true;
  NicPair pair(options);
  REQUIRE(pair.back.post_receives(1).ok());
  REQUIRE(put_immediate(pair, 0, 3).outcome == QueueOutcome::done);
  pair.run();
  ReceivedImmediate immediate;
  REQUIRE(wait_back(pair, immediate) == QueueOutcome::done);
  CHECK(immediate.value == 3);
  CHECK(pair.back.view().indexes->completed == 1);
}

TEST_CASE("threads that put and a thread that waits, with NICs that run by themselves", "[B4]") {
  constexpr std::uint32_t kReceives = 64;
  constexpr std::uint32_t kPutters = 2;
  const std::uint32_t rounds = oriel::test::repeats(3000u, 4u);
  LocalExchange exchange;
  Side a(exchange, SteadyClock::instance()), b(exchange, SteadyClock::instance());
  SendQueue there = a.make_queue(), back = b.make_queue(with_receives(kReceives));
  connect(a, there, b, back);
  std::array threads{run_nic(a.nic), run_nic(b.nic)};
  device::WaitControl control;
  control.timeout_ns = 60'000'000'000;
  std::array<bool, kPutters> fine{};
  std::uint64_t wrong = 0;
  std::array<std::uint32_t, kPutters> next{};
  {
    std::array<std::jthread, kPutters> putters;
    for (std::uint32_t t = 0; t < kPutters; ++t) {
      putters[t] = std::jthread([&, t] {
        bool good = true;
        for (std::uint32_t i = 0; i < rounds && good; ++i) {
          const std::uint64_t word = t * 1000 + i % 1000;
          a.memory[word] = i;
          const auto put =
              dq::put_immediate(Thread(), there.view(), {a.region, word * 8, b.region, word * 8, 8},
                                t << 24 | i, control);
          good = put.outcome == QueueOutcome::done &&
                 (i % 256 != 0 ||
                  dq::wait_complete(there.view(), put.end, control) == QueueOutcome::done);
        }
        fine[t] = good;
      });
    }
    REQUIRE(dq::post_receives(back.receives(), kReceives));
    for (std::uint32_t i = 0; i < rounds * kPutters; ++i) {
      ReceivedImmediate got;
      if (dq::wait_immediate(Thread(), back.view(), back.receives(), got, control) !=
          QueueOutcome::done) {
        ++wrong;
        break;
      }
      const std::uint32_t from = got.value >> 24, number = got.value & 0xffffff;
      if (from >= kPutters || number != next[from]++) ++wrong;
      if (b.memory[from * 1000 + number % 1000] != number) ++wrong;
      if (!dq::post_receives(back.receives(), 1)) ++wrong;
    }
  }
  for (NicThread& thread : threads) {
    CHECK(thread.stop(Deadline::after(std::chrono::seconds(20))).ok());
  }
  CHECK(wrong == 0);
  for (std::uint32_t t = 0; t < kPutters; ++t) {
    CHECK(fine[t]);
    CHECK(next[t] == rounds);
  }
}
