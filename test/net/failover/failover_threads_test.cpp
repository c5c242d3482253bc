// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "net/copy/mover_share.hpp"
#include "net/failover/failover_channel.hpp"
#include "net/failover/failover_pair.hpp"
#include "net/soft/nic_thread.hpp"

// Producers with the calls that kernels use, threads that drive the NICs, and paths that fail under
// them (3.14): the producers notice nothing. Paths fail by errors here and never by silence, so
// that a machine that is busy changes nothing.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr std::uint64_t kWords = 4096;
constexpr int kProducers = 2;

/// Has failed, while what it has begun before is still moving.
class FailedMover final : public DataMover {
 public:
  StagedPart load(const std::byte*, std::size_t) override { return {}; }
  bool keep(StagedPart&) override { return false; }
  std::size_t store(std::byte*, ByteView, MoveTicket&) override { return 0; }
  bool copy(std::byte*, const std::byte*, std::size_t, MoveTicket&) override { return false; }
  bool step_atomic(AtomicMove&, std::byte*) override { return false; }
  bool is_done(MoveTicket) override { return false; }
  bool flush() override { return false; }
  Status drain() override {
    while (!settle()) std::this_thread::yield();
    return {};
  }
  void forget(const std::byte*, std::size_t) override {}
  bool has_failed() const override { return true; }
  bool settle() noexcept override {
    ++looks;
    return has_settled;
  }
  std::atomic<int> looks = 0;
  std::atomic<bool> has_settled = false;

 private:
  void give_back(StagedPart&) noexcept override {}
};

struct Ranks {
  Ranks() {
    for (int path = 0; path < 2; ++path) exchanges.push_back(std::make_unique<LocalExchange>());
    a = std::make_unique<FailoverRank>(exchanges, SteadyClock::instance(), kWords);
    b = std::make_unique<FailoverRank>(exchanges, SteadyClock::instance(), kWords);
    there = make(*a, said_there, 1);
    back = make(*b, said_back, 0);
    there->aliases(1).add_local(a->keys[0], a->keys[1]);
    there->aliases(1).add_remote(b->keys[0], b->keys[1]);
    REQUIRE(there->connect(back->ends()).ok());
    REQUIRE(back->connect(there->ends()).ok());
    // The NICs of rank a have a thread each, so that what one leaves the other finds.
    add_thread([this] { return a->nics[0]->progress(); });
    add_thread([this] { return a->nics[1]->progress() | there->progress(); });
    add_thread(
        [this] { return b->nics[0]->progress() | b->nics[1]->progress() | back->progress(); });
  }
  static std::unique_ptr<FailoverQueue> make(FailoverRank& rank, FailoverChannel& channel,
                                             int peer) {
    FailoverQueue::Options options;
    options.queue.depth = 256;
    options.queue.fetch_slots = 16;
    options.queue.peer = peer;
    options.health.suspect_after = seconds(100);
    options.health.fail_after = seconds(200);
    options.health.retry_first = options.health.retry_most = milliseconds(1);
    options.health.probe_every = milliseconds(1);
    options.health.answers_needed = 1;
    options.agreement.repeat_every = milliseconds(5);
    options.agreement.give_up_after = seconds(100);
    options.channel = &channel;
    for (std::size_t i = 0; i < 2; ++i) {
      options.paths.push_back({rank.nics[i].get(), 0, "nic" + std::to_string(i)});
    }
    return FailoverQueue::create(std::move(options)).value();
  }
  void add_thread(std::function<bool()> progress) {
    NicThread::Options options;
    options.progress = std::move(progress);
    threads.push_back(NicThread::start(std::move(options)).value());
  }
  /// Whether both ends send on the same path, and would take either.
  bool is_whole() const {
    return said_there.is_running() && said_back.is_running() &&
           said_there.epoch() == said_back.epoch() && said_there.are_usable(2) &&
           said_back.are_usable(2);
  }

  std::vector<std::unique_ptr<LocalExchange>> exchanges;
  LocalFailoverChannel::Pair channels = LocalFailoverChannel::make();
  WatchedChannel said_there{*channels.first}, said_back{*channels.second};
  std::unique_ptr<FailoverRank> a, b;
  std::unique_ptr<FailoverQueue> there, back;
  std::vector<NicThread> threads;  // end first
};

/// What one producer has fetched, and how it ended.
struct Outcome {
  std::vector<std::uint64_t> fetched;
  std::uint64_t signals = 0;
  QueueOutcome outcome = QueueOutcome::done;
};

void produce(Ranks& ranks, std::uint64_t self, const std::atomic<bool>& stop,
             std::atomic<std::uint64_t>& rounds, Outcome& result) {
  const dq::QueueView& view = ranks.there->view();
  device::WaitControl control;
  control.timeout_ns = 100'000'000'000;
  const dq::Region &mine = ranks.a->region, &theirs = ranks.b->region;
  // A stretch of each rank's memory that is this producer's.
  const std::uint64_t at = (256 + 256 * self) * 8;
  while (!stop.load(std::memory_order_relaxed) && result.outcome == QueueOutcome::done) {
    std::uint64_t old = 0;
    result.outcome =
        dq::fetch_atomic<dq::AtomicOp::add>(view, theirs, 0, std::uint64_t{1}, old, control);
    if (result.outcome != QueueOutcome::done) return;
    result.fetched.push_back(old);
    const std::uint64_t round = ++result.signals;
    for (std::uint64_t i = 0; i < 64; ++i) ranks.a->memory[at / 8 + i] = round * 1000 + i;
    const auto posted = dq::put_signal<dq::SignalOp::add>(
        Thread(), view, {mine, at, theirs, at, 512}, theirs, 8 * (1 + self), 1, control);
    result.outcome = posted.outcome;
    if (result.outcome != QueueOutcome::done) return;
    result.outcome = dq::wait_complete(view, posted.end, control);
    rounds.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace

TEST_CASE("producers go on while paths fail under them, and notice nothing", "[req:3.14]") {
  Ranks ranks;
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> rounds = 0;
  std::vector<Outcome> outcomes(kProducers);
  std::vector<std::thread> producers;
  for (int i = 0; i < kProducers; ++i) {
    producers.emplace_back([&, i] {
      produce(ranks, static_cast<std::uint64_t>(i), stop, rounds,
              outcomes[static_cast<std::size_t>(i)]);
    });
  }
  const auto wait_for = [](const auto& done) {
    for (const auto end = std::chrono::steady_clock::now() + seconds(100);
         std::chrono::steady_clock::now() < end;) {
      if (done()) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return false;
  };
  bool fine = true;
  for (int flap = 0; flap < 12 && fine; ++flap) {
    const std::uint64_t before = rounds.load();
    fine = wait_for([&] { return ranks.is_whole() && rounds.load() >= before + 20; });
    const auto epoch = ranks.said_there.epoch();
    const int path = ranks.there->pace().path;
    NicFaults faults;
    faults.fails = {{{}, Syndrome::transport_retry, flap % 2 == 0}};
    NicSoft& nic = *ranks.a->nics[static_cast<std::size_t>(path < 0 ? 0 : path)];
    set_faults(nic, std::move(faults));
    fine = fine && wait_for([&] { return ranks.said_there.epoch() > epoch; });
    set_faults(nic, {});
  }
  stop = true;
  for (std::thread& producer : producers) producer.join();
  CHECK(fine);
  const auto failure = ranks.there->failure();
  INFO((failure.has_value() ? failure->to_string() : "no failure"));
  std::vector<std::uint64_t> fetched;
  for (int i = 0; i < kProducers; ++i) {
    const Outcome& result = outcomes[static_cast<std::size_t>(i)];
    REQUIRE(result.outcome == QueueOutcome::done);
    fetched.insert(fetched.end(), result.fetched.begin(), result.fetched.end());
    const auto self = static_cast<std::uint64_t>(i);
    REQUIRE(ranks.b->memory[1 + self] == result.signals);
    for (std::uint64_t k = 0; k < 64 && result.signals > 0; ++k) {
      REQUIRE(ranks.b->memory[256 + 256 * self + k] == result.signals * 1000 + k);
    }
  }
  // Each value came once.
  std::sort(fetched.begin(), fetched.end());
  for (std::uint64_t i = 0; i < fetched.size(); ++i) REQUIRE(fetched[i] == i);
  CHECK(ranks.b->memory[0] == fetched.size());
  CHECK(ranks.said_there.epoch() > 12);
}

TEST_CASE("a GPU whose copies have failed and go on holds up none of a rank's other NICs",
          "[req:3.14]") {
  FailedMover mover;
  std::mutex mutex;
  MoverShare waits(mover, mutex), other(mover, mutex);
  auto drained = std::async(std::launch::async, [&] { return waits.drain().ok(); });
  while (mover.looks == 0) std::this_thread::yield();
  auto looked = std::async(std::launch::async, [&] { return other.has_failed(); });
  const bool was_free = looked.wait_for(seconds(10)) == std::future_status::ready;
  const bool was_waiting = drained.wait_for(milliseconds(0)) != std::future_status::ready;
  mover.has_settled = true;
  CHECK(was_free);
  CHECK(was_waiting);
  CHECK(drained.get());
}

TEST_CASE("a GPU whose copies do not end is waited for once", "[req:3.14]") {
  FailedMover mover;
  std::mutex mutex;
  MoverShare share(mover, mutex, milliseconds(50));
  const auto begin = std::chrono::steady_clock::now();
  CHECK_FALSE(share.drain().ok());
  CHECK(std::chrono::steady_clock::now() - begin >= milliseconds(50));
  const int looks = mover.looks;
  CHECK_FALSE(share.drain().ok());
  CHECK(mover.looks == looks + 1);
  mover.has_settled = true;
  CHECK(share.drain().ok());
}
