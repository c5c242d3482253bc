// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "net/mlx5/fake_verbs.hpp"
#include "net/mlx5/nic_mlx5.hpp"
#include "net/mlx5/soft_adapters.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/support/local_wires.hpp"
#include "net/support/pair_calls.hpp"

// Device code on views of NicMlx5 (3.11). Behind the model of verbs, a software NIC stands in for
// each adapter. The software NIC finds ring, record, doorbell and completions where the commands
// say. So the views and the commands agree, and the same device code drives both. The test shows
// nothing about hardware.

using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;

namespace {

using dq::QueueOutcome;

/// Two adapters of this process.
struct TwoAdapters : SoftAdapters {
  explicit TwoAdapters(FakeVerbs& verbs)
      : SoftAdapters(verbs, [this](std::uint16_t lid) { return of(lid - 7).address(0); }) {
    LocalWires exchange;
    add("mlx5_0", 7, exchange.attach());
    add("mlx5_1", 8, exchange.attach());
  }
};

struct Setup {
  DoorbellChoice doorbell = DoorbellChoice::automatic;
  std::uint32_t receives = 0;  ///< receives of the second rank's queue
  bool uncached_registers = true;
  std::function<void()> begin{};  ///< first call of the NICs' threads
};

NicMlx5 open_nic(FakeVerbs& verbs, const char* name, const std::function<void()>& begin) {
  NicMlx5::Options options;
  options.device.name = name;
  options.device.verbs = &verbs.library;
  options.begin = begin;
  return NicMlx5::open(options).value();
}

struct Rank {
  Rank(FakeVerbs& verbs, Mlx5HostMemory& memory, const char* name,
       const std::function<void()>& begin)
      : nic(open_nic(verbs, name, begin)) {
    constexpr std::uint8_t kAll = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;
    region.address = reinterpret_cast<std::uint64_t>(words.data());
    region.bytes = words.size() * 8;
    key.emplace(nic.register_memory(memory, words.data(), region.bytes, kAll).value());
    CHECK(key->lkey() == key->rkey());
    region.keys[0] = key->lkey();
  }
  NicMlx5 nic;
  std::vector<std::uint64_t> words = std::vector<std::uint64_t>(4096);
  std::optional<Mlx5Region> key;
  dq::Region region;
};

/// Two ranks, each with its adapter and memory, and a queue between them.
struct TwoRanks : PairCalls<TwoRanks, AdapterMemory> {
  explicit TwoRanks(const Setup& setup = {})
      : a(verbs, memory, "mlx5_0", setup.begin),
        b(verbs, memory, "mlx5_1", setup.begin),
        there(make(a, {.doorbell = setup.doorbell}, setup.uncached_registers)),
        back(make(b, {.receives = setup.receives})) {
    connect(there, back);
    control.timeout_ns = 20'000'000'000;
    AdapterMemory::driven = &adapters;
  }
  Mlx5Queue make(Rank& rank, Mlx5Queue::Options options = {}, bool uncached_registers = true) {
    verbs.has_uncached_registers = uncached_registers;
    options.depth = 128;
    options.fetch_slots = 16;
    std::vector<Mlx5Queue> made = rank.nic.create_queues(memory, std::span(&options, 1)).value();
    return std::move(made[0]);
  }
  /// Connects through encoded handles, as between hosts.
  static void connect(Mlx5Queue& one, Mlx5Queue& other) {
    REQUIRE(one.connect(parse_handle(encode_handle(other.handle())).value()).ok());
    REQUIRE(other.connect(parse_handle(encode_handle(one.handle())).value()).ok());
  }
  const dq::QueueView& view() const { return there.view(); }
  dq::Posted put_immediate(std::uint64_t word, std::uint32_t value) {
    return PairCalls::put_immediate(transfer(word * 8, word * 8, 8), value);
  }
  QueueOutcome wait_immediate(dq::ReceivedImmediate& got,
                              std::uint64_t timeout_ns = 20'000'000'000) {
    device::WaitControl limited = control;
    limited.timeout_ns = timeout_ns;
    return dq::wait_immediate<Thread, AdapterMemory>(Thread(), back.view(), back.receives(), got,
                                                     limited);
  }

  FakeVerbs verbs;
  TwoAdapters adapters{verbs};
  Mlx5HostMemory memory;
  Rank a, b;
  Mlx5Queue there, back;
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
  TwoRanks ranks({.doorbell = ringing.choice, .uncached_registers = ringing.uncached_registers});
  CHECK(ranks.there.is_rung_by_processor() == ringing.by_processor);
  std::vector<std::uint64_t>&near = ranks.a.words, &far = ranks.b.words;

  // Goes around the ring several times.
  for (std::uint64_t round = 1; round <= 500; ++round) {
    near[round] = round * 3;
    const auto posted = ranks.put(round * 8, round * 8, 8);
    REQUIRE(posted.outcome == QueueOutcome::done);
    if (round % 50 == 0) REQUIRE(ranks.wait(posted) == QueueOutcome::done);
  }
  for (std::uint64_t round = 1; round <= 500; ++round) CHECK(far[round] == round * 3);

  REQUIRE(dq::get_and_wait<Thread, AdapterMemory>(Thread(), ranks.view(),
                                                  ranks.transfer(16000, 8, 4000),
                                                  ranks.control) == QueueOutcome::done);
  CHECK(std::memcmp(&near[2000], &far[1], 4000) == 0);

  far[3000] = 40;
  std::uint64_t old = 0;
  REQUIRE(dq::fetch_atomic<dq::AtomicOp::add, std::uint64_t, AdapterMemory>(
              ranks.view(), ranks.b.region, 24000, 2, old, ranks.control) == QueueOutcome::done);
  CHECK(old == 40);
  CHECK(far[3000] == 42);
  const auto signalled = dq::put_signal<dq::SignalOp::add, Thread, AdapterMemory>(
      Thread(), ranks.view(), ranks.transfer(0, 30000, 800), ranks.b.region, 24000, 8,
      ranks.control);
  REQUIRE(ranks.wait(signalled) == QueueOutcome::done);
  CHECK(far[3000] == 50);
  CHECK(ranks.verbs.violations.empty());
}

TEST_CASE("an error of the adapter surfaces from the completion, for it has no word of its own",
          "[req:3.11][req:3.6]") {
  TwoRanks ranks;
  ranks.b.region.keys[0] += 1;
  CHECK(ranks.wait(ranks.put(0, 0, 8)) == QueueOutcome::failed);
  CHECK(dq::decode_error(ranks.view().indexes->error).syndrome == 0x13);
}

TEST_CASE("where nobody rings any more, a wait ends by its deadline or an abort",
          "[req:3.11][A14]") {
  std::promise<void> held;
  const std::shared_future<void> over = held.get_future();
  TwoRanks ranks({.uncached_registers = false, .begin = [over] { over.wait(); }});
  // Destroyed before the ranks, so that their threads can end.
  const std::promise<void> holds = std::move(held);
  REQUIRE(ranks.there.is_rung_by_processor());
  const auto posted = ranks.put(0, 0, 8);
  ranks.control.timeout_ns = 1'000'000;
  CHECK(ranks.wait(posted) == QueueOutcome::timed_out);
  const std::uint32_t abort = 1;
  ranks.control.timeout_ns = 0;
  ranks.control.abort = &abort;
  CHECK(ranks.wait(posted) == QueueOutcome::aborted);
}

TEST_CASE("the same device code waits for immediates on queues of this NIC", "[B4][req:3.11]") {
  TwoRanks ranks({.receives = GENERATE(4u, 16u)});
  const dq::ReceiveView& receives = ranks.back.receives();
  CHECK(ranks.there.receives().count == 0);
  dq::ReceivedImmediate got;
  // All receives are posted from the beginning; there is no room for more.
  CHECK_FALSE(dq::post_receives(receives, 1));
  CHECK(ranks.wait_immediate(got, 1'000'000) == QueueOutcome::timed_out);
  // Goes around the ring many times, in steps that do not divide it.
  std::uint32_t sent = 0, taken = 0;
  while (taken < 500) {
    for (; sent < taken + 3; ++sent) {
      ranks.a.words[sent % 100] = sent;
      REQUIRE(ranks.put_immediate(sent % 100, sent ^ 0xabcd0000).outcome == QueueOutcome::done);
    }
    for (; taken < sent; ++taken) {
      REQUIRE(ranks.wait_immediate(got) == QueueOutcome::done);
      REQUIRE(got.value == (taken ^ 0xabcd0000));
      REQUIRE(got.bytes == 8);
      REQUIRE(ranks.b.words[taken % 100] == taken);
    }
    REQUIRE(dq::post_receives(receives, 3));
  }
  CHECK(dq::take_immediate(receives, got) == dq::Arrival::none);
  REQUIRE(ranks.back.to_error().ok());
  CHECK(ranks.wait_immediate(got) == QueueOutcome::failed);
  CHECK(dq::decode_error(ranks.back.view().indexes->error).syndrome == dq::kFlushed);
  CHECK(ranks.verbs.violations.empty());
}

TEST_CASE("queues are added, or fail to be, while traffic flows on those that exist",
          "[req:3.11][B1]") {
  TwoRanks ranks;
  std::array<std::byte, sizeof(dq::QueueView)> before;
  std::memcpy(before.data(), &ranks.view(), sizeof before);
  std::atomic<bool> stop{false};
  bool good = true;
  std::thread traffic([&] {
    // Runs a minimum of rounds, so that the result does not depend on timing.
    for (std::uint64_t i = 1; good && (i <= 300 || !stop); ++i) {
      ranks.a.words[0] = i;
      good = ranks.wait(ranks.put(0, 8, 8)) == QueueOutcome::done && ranks.b.words[1] == i;
    }
  });

  std::vector<Mlx5Queue> more, peers;
  for (std::size_t i = 0; i < 4; ++i) {
    more.push_back(ranks.make(ranks.a));
    peers.push_back(ranks.make(ranks.b));
    TwoRanks::connect(more[i], peers[i]);
  }
  const std::size_t live = ranks.verbs.live();
  const std::array<Mlx5Queue::Options, 2> two{};
  const long calls_of_two = 10;
  for (long k = 1; k <= calls_of_two; ++k) {
    ranks.verbs.fail_at = ranks.verbs.counted + k;
    const auto failed = ranks.a.nic.create_queues(ranks.memory, two);
    INFO(k << ": " << ranks.verbs.failed);
    CHECK_FALSE(failed.ok());
  }
  ranks.verbs.fail_at = 0;
  CHECK(ranks.verbs.live() == live);
  stop = true;
  traffic.join();
  CHECK(good);
  CHECK(std::memcmp(before.data(), &ranks.view(), sizeof before) == 0);
  CHECK(ranks.verbs.violations.empty());

  for (std::size_t i = 0; i < more.size(); ++i) {
    ranks.a.words[9] = i + 100;
    std::swap(ranks.there, more[i]);
    REQUIRE(ranks.wait(ranks.put(72, 80, 8)) == QueueOutcome::done);
    CHECK(ranks.b.words[10] == i + 100);
  }
}

TEST_CASE("a processor passes on each doorbell, also one equal to the last", "[req:3.11][A14]") {
  const auto ringer = std::make_shared<Mlx5Ringer>();
  std::uint64_t slot = 0;
  std::uint64_t other = 0;
  std::array<std::uint64_t, 2> doorbells{};
  CHECK_FALSE(ringer->is_needed());
  {
    Mlx5Ringer::RungDoorbell first = Mlx5Ringer::serve(ringer, &slot, &doorbells[0]).value();
    Mlx5Ringer::RungDoorbell second = Mlx5Ringer::serve(ringer, &other, &doorbells[1]).value();
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
    first.reset();
    slot = 8;
    CHECK_FALSE(ringer->progress());
    CHECK(doorbells[0] == 7);
    Mlx5Ringer::RungDoorbell moved = std::move(second);
    other = 10;
    CHECK(ringer->progress());
    CHECK(doorbells[1] == 10);
  }
  CHECK_FALSE(ringer->is_needed());
}

TEST_CASE("a NIC's thread calls the given function first, and rings for users who cannot",
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
  // Rings repeatedly, with pauses in which the thread naps.
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
