// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "net/queue/byte_order.hpp"
#include "net/queue/completion_writer.hpp"
#include "net/soft/running_pair.hpp"
#include "support/long_run.hpp"
#include "support/on_threads.hpp"
#include "support/sanitized.hpp"

// Queues filled by many threads and executed by NICs that have threads of their own.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::AtomicOp;
using dq::QueueOutcome;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

using oriel::test::kSanitized;
using oriel::test::on_threads;
using oriel::test::repeats;

std::uint64_t load(const std::uint64_t& word) {
  return device::Memory::load<device::Order::acquire>(&word);
}

struct Walk {
  std::uint32_t depth;
  int threads;
  std::uint64_t base;
};

// Writes, in every thread, a counter to the thread's own word and adds one to a shared word.
void walk(const Walk& at) {
  INFO("depth " << at.depth << ", " << at.threads << " threads, from " << at.base);
  RunningPair ranks({.depth = at.depth, .base = at.base});
  // Posts two WQEBBs a round: more than the ring holds, and beyond the wrap.
  const std::uint32_t rings = kSanitized || at.depth > 4096 ? 1 : 3;
  const std::uint32_t rounds = rings * at.depth / static_cast<std::uint32_t>(at.threads) + 20;
  const auto produce = [&](int thread) {
    bool good = true;
    for (std::uint64_t i = 1; i <= rounds && good; ++i) {
      good =
          ranks.put_value(i, static_cast<std::uint64_t>(thread) * 8).outcome == QueueOutcome::done;
      const dq::Posted add = ranks.add(1, 8 * 1000);
      good = good && add.outcome == QueueOutcome::done;
      if (i % 64 == 0) good = good && ranks.wait(add) == QueueOutcome::done;
    }
    return good && dq::wait_all(ranks.view(), ranks.control) == QueueOutcome::done;
  };
  CHECK(on_threads(at.threads, produce) == at.threads);
  CHECK(*ranks.there.memory().first_error == 0);
  for (int t = 0; t < at.threads; ++t) {
    CHECK(load(ranks.b.memory[static_cast<std::size_t>(t)]) == rounds);
  }
  CHECK(load(ranks.b.memory[1000]) == std::uint64_t{rounds} * static_cast<unsigned>(at.threads));
  CHECK(ranks.there.view().indexes->completed ==
        at.base + 2ull * rounds * static_cast<unsigned>(at.threads));
}

/// Writes `records` completions while a thread reads them. Returns how often the thread saw a tail
/// before the rest of its completion. `records` must be below 0x10000. An index that wraps around
/// would hide early tails, because the time does not wrap.
std::uint64_t count_early_tails(std::uint64_t records) {
  alignas(64) std::array<std::byte, CompletionWriter::kElementBytes> element{};
  CompletionWriter writer(element.data(), 1);
  const auto write = [&](std::uint64_t number) {
    CompletionRecord record;
    record.index = static_cast<std::uint16_t>(number);
    record.time = number;
    writer.write(record);
  };
  write(0);
  std::atomic<bool> is_reading = false, has_ended = false;
  std::uint64_t early = 0;
  std::thread reader([&] {
    const auto word_at = [&](std::size_t at, std::memory_order order) {
      return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(&element[at])).load(order);
    };
    while (!has_ended) {
      std::uint64_t tail = word_at(56, std::memory_order_acquire);
      std::uint64_t time = word_at(48, std::memory_order_relaxed);
      const std::uint32_t index = load_big32(reinterpret_cast<const std::byte*>(&tail) + 4) >> 16;
      // The data read with a tail must be of the same completion, or of a later one.
      if (load_big64(reinterpret_cast<const std::byte*>(&time)) < index) ++early;
      is_reading = true;
    }
  });
  while (!is_reading) std::this_thread::yield();
  for (std::uint64_t number = 1; number <= records; ++number) write(number);
  has_ended = true;
  reader.join();
  return early;
}

}  // namespace

constexpr std::uint32_t kDepths[] = {128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};

TEST_CASE("queues of every depth work across the 16-bit and 32-bit wrap, with 1 to 16 threads",
          "[A4][Q1][req:3.3]") {
  const std::uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const std::uint32_t depth : kDepths) {
    const bool is_long = depth > 4096;  // these take longer than all others together
    if (kSanitized && is_long) continue;
    const std::uint64_t wraps[] = {std::uint64_t{1} << 16, std::uint64_t{1} << 32};
    const std::uint64_t drawn = wraps[random() % 2];
    for (const std::uint64_t wrap : wraps) {
      if (is_long && wrap != drawn) continue;
      walk({depth, depth == 1024 ? 4 : 2, wrap - depth - 3});
    }
  }
  for (const int threads : {1, 8, 16}) walk({256, threads, (1u << 16) - 100});
  if (!oriel::test::is_long_run()) return;
  for (const int threads : {2, 4, 32, 64}) {
    for (const std::uint32_t depth : {128u, 1024u}) {
      walk({depth, threads, (std::uint64_t{1} << 32) - depth - 3});
    }
  }
}

TEST_CASE("a completion's last bytes are written last", "[req:3.8]") {
  for (int round = 0; round < 8; ++round) CHECK(count_early_tails(50'000) == 0);
}

TEST_CASE("atomics from four NICs are as if done one after another", "[A12]") {
  constexpr int kSides = 4;
  const auto rounds = static_cast<std::uint32_t>(repeats(50'000, 5));
  LocalWires exchange;
  Side target(exchange);
  std::deque<Side> sides;
  std::vector<SendQueue> queues, ends;
  for (int i = 0; i < kSides; ++i) {
    sides.emplace_back(exchange);
    queues.push_back(sides.back().make_queue());
    ends.push_back(target.make_queue());
    connect(sides.back(), queues.back(), target, ends.back());
  }
  std::optional<NicThread> thread = run_nic(target.nic);
  // One of every 16 operations draws a ticket. The others do not wait for their old values.
  const std::uint32_t draws = rounds / 16;
  std::vector<std::uint64_t> tickets(std::size_t{kSides} * draws);
  const auto mix = [&](int i) {
    const auto at = static_cast<std::size_t>(i);
    NicSoft* const nics[] = {&sides[at].nic};
    const DrivingScope driving(nics);
    OperationsPath path{queues[at].view(), sides[at].region, target.region, {}};
    path.control.timeout_ns = 60'000'000'000;
    bool good = true;
    for (std::uint32_t draw = 0; draw < draws && good; ++draw) {
      for (std::uint64_t value = 1; value < 16 && good; ++value) {
        good = dq::atomic<AtomicOp::add, Thread, std::uint64_t, DrivingMemory>(
                   Thread(), path.queue, path.remote, 0, value, path.control)
                   .outcome == QueueOutcome::done;
      }
      good = good && draw_tickets<DrivingMemory>(path, 8, 1, &tickets[at * draws + draw]) ==
                         QueueOutcome::done;
    }
    return good && dq::wait_all<DrivingMemory>(path.queue, path.control) == QueueOutcome::done;
  };
  CHECK(on_threads(kSides, mix) == kSides);
  thread.reset();
  CHECK(target.memory[0] == tickets.size() * (15 * 16 / 2));
  CHECK(target.memory[1] == tickets.size());
  CHECK(is_permutation(tickets));
}

TEST_CASE("a reader that sees the signal sees the data, with queues of different speeds", "[A13]") {
  SendQueue::Options options;
  options.piece_bytes = 512;
  RunningPair ranks(options, options);
  SendQueue second = ranks.a.make_queue(options), peer = ranks.b.make_queue(options);
  connect(ranks.a, second, ranks.b, peer);
  NicFaults faults;
  faults.delays = {{{ranks.there.number()}, Duration(0), std::chrono::microseconds(100)}};
  set_faults(ranks.a.nic, faults);
  const std::uint64_t rounds = repeats(400u);
  constexpr std::uint64_t kWords = 512;
  std::atomic<int> bad = 0;
  std::uint64_t acknowledged[2] = {0, 0};
  const auto read = [&](std::uint64_t q) {
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      while (load(ranks.b.memory[8000 + q]) < round) std::this_thread::yield();
      for (std::uint64_t i = 0; i < kWords; ++i) {
        if (ranks.b.memory[kWords * (q + 1) + i] != round * 1000 + i) ++bad;
      }
      device::Memory::store<device::Order::release>(&acknowledged[q], round);
    }
  };
  const auto write = [&](std::uint64_t q) {
    const auto& view = q == 0 ? ranks.there.view() : second.view();
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      for (std::uint64_t i = 0; i < kWords; ++i) {
        ranks.a.memory[kWords * (q + 1) + i] = round * 1000 + i;
      }
      const std::uint64_t at = kWords * (q + 1) * 8;
      const auto posted = dq::put_signal<dq::SignalOp::set>(
          Thread(), view, {ranks.a.region, at, ranks.b.region, at, kWords * 8}, ranks.b.region,
          8 * (8000 + q), round, ranks.control);
      if (posted.outcome != QueueOutcome::done) ++bad;
      if (dq::wait_complete(view, posted.end, ranks.control) != QueueOutcome::done) ++bad;
      while (load(acknowledged[q]) < round) std::this_thread::yield();
    }
  };
  on_threads(4, [&](int i) {
    const auto q = static_cast<std::uint64_t>(i % 2);
    i < 2 ? read(q) : write(q);
    return true;
  });
  CHECK(bad == 0);
}

TEST_CASE("when a WQE fails all producers learn it, and none hangs", "[req:3.6][req:3.10]") {
  for (const std::uint64_t k : {0u, 1u, 31u, 32u, 127u, 128u, 500u, 1000u}) {
    RunningPair ranks({.depth = 128});
    NicFaults faults;
    faults.fails = {{{ranks.there.number(), k}, Syndrome::remote_operation, false}};
    set_faults(ranks.a.nic, faults);
    std::atomic<std::uint64_t> done = 0;
    const auto learns_it = [&](int /*thread*/) {
      QueueOutcome outcome = QueueOutcome::done;
      for (std::uint64_t i = 0; i <= k; ++i) {  // one thread may get all successes
        outcome = ranks.wait(ranks.add(1, 0));
        if (outcome != QueueOutcome::done) break;
        ++done;
      }
      return outcome == QueueOutcome::failed;
    };
    CHECK(on_threads(4, learns_it) == 4);
    CHECK(done <= k);
    CHECK(load(ranks.b.memory[0]) == k);
    const auto error = dq::decode_error(ranks.there.view().indexes->error);
    CHECK(error.syndrome == 0x14);
    CHECK(error.index == k);
  }
}

TEST_CASE("puts are visible to a reader once their wait has ended, whoever drives the NICs",
          "[A9]") {
  // Waiting threads drive both NICs, and a thread drives one of them too: progress() is called
  // concurrently.
  NicPair pair;
  const NicThread thread = run_nic(pair.b.nic);
  const auto put_and_check = [&](int t) {
    const DrivingScope driving(pair.all);
    const auto word = static_cast<std::size_t>(t);
    bool good = true;
    for (std::uint64_t i = 1; i <= repeats(3000u) && good; ++i) {
      good = pair.wait(pair.put_value(i, word * 8)) == QueueOutcome::done &&
             load(pair.b.memory[word]) == i;
    }
    return good;
  };
  CHECK(on_threads(3, put_and_check) == 3);
}

TEST_CASE("a NIC's thread ends with its owner, and may be moved", "[req:3.8]") {
  NicSoft nic;
  NicThread first = run_nic(nic);
  NicThread second = std::move(first);
  second = run_nic(nic);
}

TEST_CASE("a NIC's thread that has a doorbell works when it is rung, and ends at once",
          "[req:3.9]") {
  device::Doorbell doorbell{};
  std::atomic<int> work = 0, done = 0, started = 0;
  NicThread::Options options;
  options.doorbell = &doorbell;
  options.begin = [&] { ++started; };
  options.progress = [&] {
    if (work == 0) return false;
    --work;
    ++done;
    return true;
  };
  std::optional<NicThread> thread = NicThread::start(std::move(options)).value();
  for (int round = 1; round <= 20; ++round) {
    // Some wake-ups find the thread asleep, the others do not.
    if (round % 4 == 0) std::this_thread::sleep_for(milliseconds(1));
    work += 10;
    device::ring(doorbell);
    while (done < 10 * round) std::this_thread::yield();
  }
  CHECK(started == 1);
  std::this_thread::sleep_for(milliseconds(2));
  thread.reset();
  CHECK(done == 200);
}
