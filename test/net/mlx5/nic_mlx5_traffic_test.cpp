// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "net/mlx5/fake_verbs.hpp"
#include "net/mlx5/nic_mlx5.hpp"
#include "net/mlx5/soft_adapters.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/wire/wire_local.hpp"

// Device code on views of NicMlx5 (3.11). Behind the model of verbs a software NIC takes the place
// of each adapter: it finds ring, record, doorbell and completions where the commands say, which
// shows that the view and the commands agree and that the very same code drives both. It shows
// nothing of hardware.

using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;

namespace {

namespace dq = device::queue;
using dq::QueueOutcome;

/// Two adapters of this process.
struct TwoAdapters : SoftAdapters {
  explicit TwoAdapters(FakeVerbs& verbs)
      : SoftAdapters(verbs, [this](std::uint16_t lid) { return of(lid - 7).address(0); }) {
    LocalExchange exchange;
    add("mlx5_0", 7, exchange.attach());
    add("mlx5_1", 8, exchange.attach());
  }
};

NicMlx5 open_nic(FakeVerbs& verbs, const char* name, bool own_thread) {
  NicMlx5::Options options;
  options.device.name = name;
  options.device.verbs = &verbs.library;
  options.own_thread = own_thread;
  return NicMlx5::open(options).value();
}

/// Two ranks, each with its adapter and memory.
struct TwoRanks {
  explicit TwoRanks(bool uncached_registers = true, bool own_thread = true) {
    verbs.has_uncached_registers = uncached_registers;
    for (std::size_t i = 0; i < 2; ++i) {
      nics.push_back(open_nic(verbs, i == 0 ? "mlx5_0" : "mlx5_1", own_thread));
      constexpr std::uint8_t kAll = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;
      words[i].resize(4096);
      keys.push_back(nics[i].register_memory(memory, words[i].data(), 4096 * 8, kAll).value());
      regions[i].address = reinterpret_cast<std::uint64_t>(words[i].data());
      regions[i].bytes = 4096 * 8;
      regions[i].keys[0] = keys[i].local_key();
      CHECK(keys[i].local_key() == keys[i].remote_key());
    }
    control.timeout_ns = 20'000'000'000;
    AdapterMemory::driven = &adapters;
  }
  Mlx5Queue make(std::size_t rank, Mlx5Queue::Options options = {}) {
    options.depth = 128;
    options.fetch_slots = 16;
    const std::array all{options};
    std::vector<Mlx5Queue> made = nics[rank].create_queues(memory, all).value();
    return std::move(made[0]);
  }
  /// As between hosts: through bytes.
  static void connect(Mlx5Queue& a, Mlx5Queue& b) {
    REQUIRE(a.connect(parse_handle(encode_handle(b.handle())).value()).ok());
    REQUIRE(b.connect(parse_handle(encode_handle(a.handle())).value()).ok());
  }
  dq::Transfer transfer(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) const {
    return {regions[0], from, regions[1], to, bytes};
  }
  QueueOutcome wait(const dq::QueueView& view, dq::Posted posted) {
    if (posted.outcome != QueueOutcome::done) return posted.outcome;
    return dq::wait_complete<AdapterMemory>(view, posted.end, control);
  }

  FakeVerbs verbs;
  TwoAdapters adapters{verbs};
  Mlx5HostMemory memory;
  std::vector<NicMlx5> nics;
  std::array<std::vector<std::uint64_t>, 2> words;
  std::vector<Mlx5Region> keys;
  std::array<dq::Region, 2> regions;
  device::WaitControl control;
};

}  // namespace

TEST_CASE("the same device code fills queues of this NIC, whoever rings their doorbells",
          "[req:3.11][A3]") {
  struct Ringing {
    bool uncached_registers;
    DoorbellChoice choice;
    bool by_processor;
  };
  const Ringing ringing =
      GENERATE(Ringing{true, DoorbellChoice::automatic, false},
               Ringing{false, DoorbellChoice::automatic, true},
               Ringing{true, DoorbellChoice::gpu, false}, Ringing{true, DoorbellChoice::cpu, true});
  TwoRanks ranks(ringing.uncached_registers);
  Mlx5Queue::Options options;
  options.doorbell = ringing.choice;
  Mlx5Queue there = ranks.make(0, options);
  Mlx5Queue back = ranks.make(1);
  TwoRanks::connect(there, back);
  CHECK(there.is_rung_by_processor() == ringing.by_processor);
  const dq::QueueView& view = there.view();

  // Around the ring several times.
  for (std::uint64_t round = 1; round <= 500; ++round) {
    ranks.words[0][round] = round * 3;
    const auto posted = dq::put<Thread, AdapterMemory>(
        Thread(), view, ranks.transfer(round * 8, round * 8, 8), ranks.control);
    REQUIRE(posted.outcome == QueueOutcome::done);
    if (round % 50 == 0) REQUIRE(ranks.wait(view, posted) == QueueOutcome::done);
  }
  for (std::uint64_t round = 1; round <= 500; ++round) CHECK(ranks.words[1][round] == round * 3);

  REQUIRE(dq::get_and_wait<Thread, AdapterMemory>(Thread(), view, ranks.transfer(16000, 8, 4000),
                                                  ranks.control) == QueueOutcome::done);
  CHECK(std::memcmp(&ranks.words[0][2000], &ranks.words[1][1], 4000) == 0);

  ranks.words[1][3000] = 40;
  std::uint64_t old = 0;
  REQUIRE(dq::fetch_atomic<dq::AtomicOp::add, std::uint64_t, AdapterMemory>(
              view, ranks.regions[1], 24000, 2, old, ranks.control) == QueueOutcome::done);
  CHECK(old == 40);
  CHECK(ranks.words[1][3000] == 42);
  const auto signalled = dq::put_signal<dq::SignalOp::add, Thread, AdapterMemory>(
      Thread(), view, ranks.transfer(0, 30000, 800), ranks.regions[1], 24000, 8, ranks.control);
  REQUIRE(ranks.wait(view, signalled) == QueueOutcome::done);
  CHECK(ranks.words[1][3000] == 50);
  CHECK(ranks.verbs.violations.empty());
}

TEST_CASE("an error of the adapter surfaces from the completion, for it has no word of its own",
          "[req:3.11][req:3.6]") {
  TwoRanks ranks;
  Mlx5Queue there = ranks.make(0);
  Mlx5Queue back = ranks.make(1);
  TwoRanks::connect(there, back);
  ranks.regions[1].keys[0] += 1;
  const auto posted = dq::put<Thread, AdapterMemory>(Thread(), there.view(),
                                                     ranks.transfer(0, 0, 8), ranks.control);
  CHECK(ranks.wait(there.view(), posted) == QueueOutcome::failed);
  const dq::QueueError error = dq::decode_error(there.view().indexes->error);
  CHECK(error.syndrome == 0x13);
}

TEST_CASE("where nobody rings any more, a wait ends by its deadline or an abort",
          "[req:3.11][A14]") {
  TwoRanks ranks(false, false);
  Mlx5Queue there = ranks.make(0);
  Mlx5Queue back = ranks.make(1);
  TwoRanks::connect(there, back);
  REQUIRE(there.is_rung_by_processor());
  const auto posted = dq::put<Thread, AdapterMemory>(Thread(), there.view(),
                                                     ranks.transfer(0, 0, 8), ranks.control);
  ranks.control.timeout_ns = 1'000'000;
  CHECK(ranks.wait(there.view(), posted) == QueueOutcome::timed_out);
  const std::uint32_t abort = 1;
  ranks.control.timeout_ns = 0;
  ranks.control.abort = &abort;
  CHECK(ranks.wait(there.view(), posted) == QueueOutcome::aborted);
}

namespace {

dq::Posted put_immediate(TwoRanks& ranks, const Mlx5Queue& queue, std::uint64_t word,
                         std::uint32_t value) {
  return dq::put_immediate<Thread, AdapterMemory>(
      Thread(), queue.view(), ranks.transfer(word * 8, word * 8, 8), value, ranks.control);
}

QueueOutcome wait_immediate(TwoRanks& ranks, const Mlx5Queue& queue, dq::ReceivedImmediate& got,
                            std::uint64_t timeout_ns = 20'000'000'000) {
  device::WaitControl control = ranks.control;
  control.timeout_ns = timeout_ns;
  return dq::wait_immediate<Thread, AdapterMemory>(Thread(), queue.view(), queue.receives(), got,
                                                   control);
}

}  // namespace

TEST_CASE("the same device code waits for immediates on queues of this NIC", "[B4][req:3.11]") {
  TwoRanks ranks;
  Mlx5Queue::Options options;
  options.receives = GENERATE(4u, 16u);
  Mlx5Queue there = ranks.make(0);
  Mlx5Queue back = ranks.make(1, options);
  const dq::ReceiveView& receives = back.receives();
  CHECK(there.receives().count == 0);
  dq::ReceivedImmediate got;
  TwoRanks::connect(there, back);
  // All are posted from the beginning; there is no room for more.
  CHECK_FALSE(dq::post_receives(receives, 1));
  CHECK(wait_immediate(ranks, back, got, 1'000'000) == QueueOutcome::timed_out);
  // Around the ring many times, in steps that do not divide it.
  std::uint32_t sent = 0, taken = 0;
  while (taken < 500) {
    for (; sent < taken + 3; ++sent) {
      ranks.words[0][sent % 100] = sent;
      REQUIRE(put_immediate(ranks, there, sent % 100, sent ^ 0xabcd0000).outcome ==
              QueueOutcome::done);
    }
    for (; taken < sent; ++taken) {
      REQUIRE(wait_immediate(ranks, back, got) == QueueOutcome::done);
      REQUIRE(got.value == (taken ^ 0xabcd0000));
      REQUIRE(got.bytes == 8);
      REQUIRE(ranks.words[1][taken % 100] == taken);
    }
    REQUIRE(dq::post_receives(receives, 3));
  }
  CHECK(dq::take_immediate(receives, got) == dq::Arrival::none);
  CHECK(ranks.verbs.violations.empty());
}

TEST_CASE("without a receive the peer waits, and the end of a queue ends who waits",
          "[B4][req:3.11]") {
  TwoRanks ranks;
  Mlx5Queue::Options options;
  options.receives = 4;
  Mlx5Queue there = ranks.make(0);
  Mlx5Queue back = ranks.make(1, options);
  TwoRanks::connect(there, back);
  dq::ReceivedImmediate got;
  dq::Posted last;
  for (std::uint32_t i = 0; i < 5; ++i) last = put_immediate(ranks, there, i, i);
  for (std::uint32_t i = 0; i < 4; ++i) {
    REQUIRE(wait_immediate(ranks, back, got) == QueueOutcome::done);
    CHECK(got.value == i);
  }
  CHECK(wait_immediate(ranks, back, got) == QueueOutcome::refused);
  CHECK(dq::take_immediate(back.receives(), got) == dq::Arrival::none);
  CHECK(there.view().indexes->completed < last.end);
  REQUIRE(dq::post_receives(back.receives(), 4));
  REQUIRE(wait_immediate(ranks, back, got) == QueueOutcome::done);
  CHECK(got.value == 4);
  CHECK(ranks.wait(there.view(), last) == QueueOutcome::done);
  REQUIRE(back.to_error().ok());
  CHECK(wait_immediate(ranks, back, got) == QueueOutcome::failed);
  CHECK(dq::decode_error(back.view().indexes->error).syndrome == dq::kFlushed);
  CHECK(ranks.verbs.violations.empty());
}

TEST_CASE("queues are added, or fail to be, while traffic flows on those that exist",
          "[req:3.11][B1]") {
  TwoRanks ranks;
  Mlx5Queue there = ranks.make(0);
  Mlx5Queue back = ranks.make(1);
  TwoRanks::connect(there, back);
  const dq::QueueView before = there.view();

  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> puts{0};
  std::atomic<bool> good{true};
  std::thread traffic([&] {
    // At least some, so that nothing depends on who is faster.
    for (std::uint64_t i = 1; i <= 300 || !stop; ++i) {
      ranks.words[0][0] = i;
      const auto posted =
          dq::put<Thread, AdapterMemory>(Thread(), before, ranks.transfer(0, 8, 8), ranks.control);
      if (ranks.wait(before, posted) != QueueOutcome::done || ranks.words[1][1] != i) good = false;
      puts = i;
      if (!good) break;
    }
  });

  std::vector<Mlx5Queue> more;
  for (int i = 0; i < 4; ++i) {
    more.push_back(ranks.make(0));
    more.push_back(ranks.make(1));
    TwoRanks::connect(more[more.size() - 2], more.back());
  }
  const std::size_t live = ranks.verbs.live();
  const std::array<Mlx5Queue::Options, 2> two{};
  const long calls_of_two = 10;
  for (long k = 1; k <= calls_of_two; ++k) {
    ranks.verbs.fail_at = ranks.verbs.counted + k;
    const auto failed = ranks.nics[0].create_queues(ranks.memory, two);
    INFO(k << ": " << ranks.verbs.failed);
    CHECK_FALSE(failed.ok());
  }
  ranks.verbs.fail_at = 0;
  CHECK(ranks.verbs.live() == live);
  stop = true;
  traffic.join();
  CHECK(good);
  CHECK(puts >= 300);
  const dq::QueueView after = there.view();
  CHECK(before.ring == after.ring);
  CHECK(before.number == after.number);
  CHECK(before.doorbell == after.doorbell);
  CHECK(before.doorbell_record == after.doorbell_record);
  CHECK(before.completion == after.completion);
  CHECK(before.indexes == after.indexes);
  CHECK(before.marks == after.marks);
  CHECK(before.fetch_values == after.fetch_values);
  CHECK(before.fetch_key == after.fetch_key);
  CHECK(ranks.verbs.violations.empty());

  for (std::size_t i = 0; i < more.size(); i += 2) {
    const dq::QueueView& view = more[i].view();
    ranks.words[0][9] = i + 100;
    const auto posted =
        dq::put<Thread, AdapterMemory>(Thread(), view, ranks.transfer(72, 80, 8), ranks.control);
    REQUIRE(ranks.wait(view, posted) == QueueOutcome::done);
    CHECK(ranks.words[1][10] == i + 100);
  }
}

TEST_CASE("a processor passes on each ring, also one that looks like the last", "[req:3.11][A14]") {
  const auto ringer = std::make_shared<Mlx5Ringer>();
  std::uint64_t slot = 0;
  std::uint64_t other = 0;
  std::array<std::uint64_t, 2> doorbells{};
  CHECK_FALSE(ringer->is_needed());
  {
    Mlx5Ringer::Bell bell = Mlx5Ringer::serve(ringer, &slot, &doorbells[0]).value();
    Mlx5Ringer::Bell second = Mlx5Ringer::serve(ringer, &other, &doorbells[1]).value();
    CHECK_FALSE(ringer->progress());
    slot = 7;
    CHECK(ringer->progress());
    CHECK(doorbells[0] == 7);
    doorbells[0] = 0;
    CHECK_FALSE(ringer->progress());
    slot = 7;
    other = 9;
    CHECK(ringer->progress());
    CHECK(doorbells[0] == 7);
    CHECK(doorbells[1] == 9);
    bell.reset();
    slot = 8;
    CHECK_FALSE(ringer->progress());
    CHECK(doorbells[0] == 7);
    Mlx5Ringer::Bell moved = std::move(second);
    other = 10;
    CHECK(ringer->progress());
    CHECK(doorbells[1] == 10);
  }
  CHECK_FALSE(ringer->is_needed());
}

TEST_CASE("a NIC's thread is started where it is told, and rings for users who cannot",
          "[req:2.5][A3]") {
  const bool placing_fails = GENERATE(false, true);
  FakeVerbs verbs;
  verbs.has_uncached_registers = false;
  std::atomic<bool> elsewhere{false};
  NicMlx5::Options options;
  options.device.name = "mlx5_0";
  options.device.verbs = &verbs.library;
  options.begin = [&, caller = std::this_thread::get_id()] {
    elsewhere = std::this_thread::get_id() != caller;
    if (placing_fails) throw std::bad_alloc();
  };
  NicMlx5 nic = NicMlx5::open(options).value();
  Mlx5HostMemory memory;
  std::array<Mlx5Queue::Options, 2> both{};
  for (Mlx5Queue::Options& each : both) each.doorbell = DoorbellChoice::cpu;
  const std::vector<Mlx5Queue> queues = nic.create_queues(memory, both).value();
  // Rings that follow each other, with naps of the thread in between.
  for (std::uint64_t value = 1; value <= 20; ++value) {
    for (const Mlx5Queue& queue : queues) {
      const auto& pair = verbs.queue_pairs.at(queue.number());
      const std::uint64_t rung = value << 32 | queue.number();
      std::atomic_ref(*queue.view().doorbell).store(rung, std::memory_order_release);
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      const auto is_rung = [&] { return std::atomic_ref(*pair.doorbell).load() == rung; };
      while (!is_rung() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
      REQUIRE(is_rung());
    }
    if (value % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(elsewhere);
}
