// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "net/copy/copy_engine_cuda.hpp"
#include "net/copy/idle_engine.hpp"
#include "net/copy/late_stream.hpp"
#include "net/failover/failover_random_faults.hpp"
#include "net/soft/split_pages.hpp"
#include "support/sanitized.hpp"

// Failover of queues of GPUs (3.14). The NICs of a rank share an engine, whose copies take time.
// The NICs see the queue at other addresses than its producers.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

/// Engines of two ranks.
struct Engines {
  explicit Engines(std::uint64_t from) : seed(from) {}
  std::unique_ptr<CopyEngine> make() {
    constexpr std::uint32_t kSlots = 12;
    auto stream = std::make_unique<LateStream>(kSlots, 512, ++seed);
    streams.push_back(stream.get());
    return std::make_unique<CudaCopyEngine>(std::move(stream), kSlots);
  }
  void run_some() {
    for (LateStream* const stream : streams) stream->run_some();
  }
  void adapt(FailoverPair::Options& options) {
    options.make_engine = [this] { return make(); };
    options.turn = [this] { run_some(); };
    options.queue.pages = &pages;
    options.queue.mode = DoorbellMode::alone;
  }
  std::uint64_t seed;
  SplitSource pages;
  std::vector<LateStream*> streams;
};

struct Pair {
  explicit Pair(FailoverPair::Options options = {}) : engines(1), pair(adapted(engines, options)) {}
  static FailoverPair::Options& adapted(Engines& engines, FailoverPair::Options& options) {
    engines.adapt(options);
    return options;
  }
  Engines engines;
  FailoverPair pair;
};

dq::LocalRange range_of(const FailoverRank& rank, std::uint64_t word, std::uint32_t words = 1) {
  return {rank.region.address + word * 8, rank.keys[0], words * 8};
}

}  // namespace

TEST_CASE("random work of GPUs over random faults: each WQE is done once, in order",
          "[req:3.14][F3][F4]") {
  std::unique_ptr<Engines> engines;  // engines of one run
  run_seeds(oriel::test::repeats(60u, 5u), [&](FailoverPair::Options& options) {
    engines = std::make_unique<Engines>(options.seed);
    engines->adapt(options);
    options.queue.answer_timeout *= 8;  // an answer waits for the stream
  });
}

TEST_CASE("a write started by a NIC that fails is not repeated once its signal is visible",
          "[req:3.14][F4][F6]") {
  // The bytes are queued in the stream, and the signal behind them too. A kernel sees the signal
  // before the other NIC continues; from then on it may overwrite the memory.
  constexpr std::uint64_t kSignal = 50, kTarget = 100, kOwn = 777;
  for (const bool here : {false, true}) {
    for (const std::uint32_t words : {1u, 32u, 300u}) {
      FailoverPair::Options options;
      Engines engines(words);
      engines.adapt(options);
      bool was_seen = false;
      FailoverRank* target = nullptr;
      options.turn = [&] {
        engines.streams[0]->run_some();
        if (engines.streams[1]->is_still) engines.streams[1]->run_some();
        for (int steps = engines.streams[1]->is_still ? 0 : 2; steps >= 0; --steps) {
          if (target->memory[kSignal] == 2 && !was_seen) {
            was_seen = true;
            target->memory[kTarget] = kOwn;
          }
          if (steps > 0) engines.streams[1]->run(1);
        }
      };
      FailoverPair pair(options);
      target = &pair.b;
      for (std::uint64_t i = 0; i < words; ++i) pair.a.memory[1000 + i] = 40 + i;
      RawPoster raw(pair.view());
      const auto signal = [&](std::uint64_t to) {
        raw.add(dq::fetch_add_wqe(raw.place(), dq::kSignalled, pair.b.region.remote(kSignal * 8), 1,
                                  range_of(pair.a, to)));
        raw.ring();
      };
      signal(200);  // from here on the NIC knows the word's value, and need not read it
      REQUIRE(pair.run_until([&] { return pair.is_complete(1); }, seconds(1)));
      engines.streams[1]->is_still = true;
      raw.add(dq::transfer_wqe(dq::Opcode::write, raw.place(), 0, pair.b.region.remote(kTarget * 8),
                               range_of(pair.a, 1000, words)));
      signal(201);
      pair.run_for(milliseconds(20));
      REQUIRE(engines.streams[1]->left() >= 2);
      REQUIRE(pair.b.memory[kSignal] == 1);
      stop_nic(*(here ? pair.a : pair.b).nics[0]);
      if (!here) REQUIRE(pair.run_until([&] { return pair.both_on(1); }, seconds(10)));
      engines.streams[1]->is_still = false;
      INFO(words << " words, " << (here ? "here" : "there") << pair.states());
      REQUIRE(pair.run_until([&] { return pair.is_complete(raw.next()); }, seconds(20)));
      CHECK(pair.path() == 1);
      pair.run_for(seconds(1));
      CHECK(was_seen);
      CHECK(pair.b.memory[kSignal] == 2);
      CHECK(pair.a.memory[201] == 1);
      CHECK(pair.b.memory[kTarget] == kOwn);
      for (std::uint64_t i = 1; i < words; ++i) REQUIRE(pair.b.memory[kTarget + i] == 40 + i);
    }
  }
}

TEST_CASE("a GPU's queue without work asks its peer, and leaves a path that is silent",
          "[req:3.14][F7]") {
  Pair made;
  FailoverPair& pair = made.pair;
  pair.run_for(milliseconds(10));
  const TimePoint asked = pair.clock.now();
  pair.there->ask();
  CHECK(pair.there->answered() < asked);
  REQUIRE(pair.run_until([&] { return pair.there->answered() >= asked; }, milliseconds(5)));
  CHECK(pair.epoch() == 1);
  pair.run_for(seconds(10));
  CHECK(pair.epoch() == 1);  // the probe was answered
  stop_nic(*pair.b.nics[0]);
  pair.run_for(seconds(10));
  CHECK(pair.epoch() == 1);  // no probe is requested
  const TimePoint again = pair.clock.now();
  pair.there->ask();
  REQUIRE(pair.run_until([&] { return pair.both_on(1); }, seconds(4)));
  REQUIRE(pair.run_until([&] { return pair.there->answered() >= again; }, seconds(1)));
  CHECK_FALSE(pair.there->pace().has_work);
  SECTION("and ends where no path is left") {
    stop_nic(*pair.b.nics[1]);
    pair.there->ask();
    REQUIRE(pair.run_until([&] { return pair.there->failure().has_value(); }, seconds(30)));
    CHECK(*pair.there->queue().memory().first_error != 0);
    CHECK_FALSE(pair.there->pace().has_work);
  }
}

TEST_CASE("a GPU whose stream stands still ends its queue, and no other NIC does it again",
          "[req:3.14]") {
  /// Fails to drain, as a stream that has been stuck for too long. `failed` selects whether the
  /// failure is known.
  class StuckEngine final : public net::test::IdleEngine {
   public:
    explicit StuckEngine(bool failed) : has_failed_(failed) {}
    Status drain() override { return Error(ErrorCode::timeout, "stuck"); }
    bool has_failed() const override { return has_failed_; }

   private:
    const bool has_failed_;
  };
  StuckEngine stuck(GENERATE(false, true));
  FailoverPair pair;
  RawPoster raw(pair.view());
  pair.b.nics[0]->serve_gpu(stuck);
  fail_wqe(*pair.a.nics[0], {0, 0}, false);
  raw.add(dq::fetch_add_wqe(raw.place(), dq::kSignalled, pair.b.region.remote(0), 1,
                            range_of(pair.a, 100)));
  raw.ring();
  REQUIRE(pair.run_until([&] { return pair.has_failed(pair.view()); }, seconds(30)));
  CHECK(dq::decode_error(*pair.back->queue().memory().first_error).syndrome ==
        static_cast<std::uint32_t>(Syndrome::local_operation));
  CHECK(pair.b.memory[0] == 0);
}
