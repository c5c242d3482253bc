// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <random>

#include <catch2/catch.hpp>

#include "net/queue/queue_records.hpp"
#include "net/queue/reserve_if_empty.hpp"
#include "net/soft/nic_pair.hpp"

// Probes of a peer's NIC without a WQE in the ring (3.19).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;
using std::chrono::milliseconds;

namespace {

struct ProbedPair : NicPair {
  explicit ProbedPair(const Clock& with = SteadyClock::instance())
      : NicPair({.depth = 128}, with, 512) {}
  void probe() { REQUIRE(a.nic.probe(there.number()).ok()); }
  std::uint64_t probes() const { return traffic(a.nic).probes; }
  dq::Posted put(std::uint64_t word) { return NicPair::put(0, word * 8, 8); }
};

/// Advances the clock beyond the time that a queue waits for an answer.
void let_time_pass(ManualClock& clock, ProbedPair& pair) {
  const QueueSetup usual;
  for (std::uint32_t i = 0; i <= usual.retransmissions_most + 1; ++i) {
    clock.advance(usual.answer_timeout);
    pair.run();
  }
}

}  // namespace

TEST_CASE("a probe takes no WQEBB of the ring, whatever is posted before and behind it",
          "[req:3.19]") {
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  ProbedPair pair;
  std::uint64_t posted = 0;
  dq::Posted last;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 3 == 0) pair.probe();
    for (int turns = static_cast<int>(random() % 4); turns > 0; --turns) {
      (random() % 2 == 0 ? pair.a : pair.b).nic.progress();
    }
    if (random() % 2 == 0) continue;
    pair.a.memory[0] = ++posted;
    last = pair.put(1);
    REQUIRE(last.outcome == QueueOutcome::done);
    if (random() % 2 != 0) continue;
    REQUIRE(pair.wait(last) == QueueOutcome::done);
    REQUIRE(pair.b.memory[1] == posted);
  }
  REQUIRE(pair.wait(last) == QueueOutcome::done);
  pair.run();
  CHECK(pair.probes() > 10);
  CHECK(pair.a.nic.is_idle());
  // Only puts have taken WQEBBs.
  CHECK(pair.view().indexes->reserved == posted);
}

TEST_CASE("an unanswered probe fails the queue, and operations already done stay done",
          "[req:3.19]") {
  ManualClock clock;
  ProbedPair pair(clock);
  pair.a.memory[0] = 5;
  REQUIRE(pair.wait(pair.put(1)) == QueueOutcome::done);
  stop_nic(pair.b.nic);
  pair.probe();
  pair.run();
  clock.advance(QueueSetup().answer_timeout * 7);
  pair.run();
  CHECK(*pair.there.memory().first_error == 0);
  let_time_pass(clock, pair);
  CHECK(pair.a.nic.state(pair.there.number()).value() == QueueState::error);
  CHECK(pair.error().syndrome == static_cast<std::uint8_t>(Syndrome::transport_retry));
  CHECK(pair.error().opcode == kProbeOpcode);
  CHECK(dq::wait_all<DrivingMemory>(pair.view(), pair.control) == QueueOutcome::done);
  CHECK(pair.wait(pair.put(2)) == QueueOutcome::failed);
  CHECK(pair.b.memory[1] == 5);
  pair.probe();  // a probe of a queue that has ended
  pair.run();
  CHECK(pair.probes() == 1);
}

TEST_CASE("a probe answered just before its timeout succeeds, a lost answer is retransmitted",
          "[req:3.19]") {
  ManualClock clock;
  ProbedPair pair(clock);
  const bool is_lost = GENERATE(false, true);
  if (is_lost) {
    NicFaults faults;
    faults.lost_responses.push_back({.queue = 0, .nth = 1, .count = 3});
    set_faults(pair.b.nic, std::move(faults));
  }
  for (int i = 0; i < 3; ++i) {
    if (!is_lost) stop_nic(pair.b.nic);
    pair.probe();
    pair.run();
    clock.advance(QueueSetup().answer_timeout * 7 / 2);
    pair.run();
    if (!is_lost) resume_nic(pair.b.nic);
    let_time_pass(clock, pair);
    CHECK(pair.probes() == static_cast<std::uint64_t>(i + 1));
  }
  CHECK(*pair.there.memory().first_error == 0);
  REQUIRE(pair.wait(pair.put(1)) == QueueOutcome::done);
}

TEST_CASE("nobody is probed who has yet to answer, after an abort, or over several paths",
          "[req:3.19]") {
  ManualClock clock;
  ProbedPair pair(clock);
  CHECK_FALSE(pair.a.nic.probe(pair.there.number() ^ 1).ok());
  SECTION("a pending write fails instead") {
    stop_nic(pair.b.nic);
    REQUIRE(pair.put(1).outcome == QueueOutcome::done);
    pair.run();
    pair.probe();
    let_time_pass(clock, pair);
    CHECK(pair.probes() == 0);
    CHECK(pair.error().opcode == static_cast<std::uint8_t>(dq::Opcode::write));
  }
  SECTION("one probe is pending already") {
    stop_nic(pair.b.nic);
    pair.probe();
    pair.probe();
    pair.run();
    CHECK(pair.probes() == 1);
  }
  SECTION("after an abort nothing is sent") {
    pair.a.nic.end_sending();
    pair.probe();
    pair.run();
    CHECK(pair.probes() == 0);
    CHECK(traffic(pair.a.nic).requests == 0);
  }
  SECTION("a queue that goes on elsewhere has WQEs for it") {
    QueueRecords records;
    const SendQueue queue = pair.a.make_queue({.depth = 128, .records = &records});
    const Status refused = pair.a.nic.probe(queue.number());
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code() == ErrorCode::invalid_usage);
  }
}

TEST_CASE("an unanswered probe's error names the put posted behind the probe", "[req:3.19]") {
  ManualClock clock;
  ProbedPair pair(clock);
  pair.a.memory[0] = 5;
  REQUIRE(pair.wait(pair.put(1)) == QueueOutcome::done);
  stop_nic(pair.b.nic);
  pair.probe();
  pair.run();
  const bool is_under_way = GENERATE(true, false);
  dq::Posted put;
  if (is_under_way) put = pair.put(2);
  let_time_pass(clock, pair);
  if (!is_under_way) {
    CHECK(pair.error().opcode == kProbeOpcode);
    put = pair.put(2);
    pair.run();
  }
  CHECK(pair.error().opcode == static_cast<std::uint8_t>(dq::Opcode::write));
  CHECK(pair.error().syndrome == static_cast<std::uint8_t>(Syndrome::transport_retry));
  CHECK(pair.error().index == 1);
  CHECK(pair.wait(put) == QueueOutcome::failed);
  CHECK(pair.view().indexes->completed == 1);
}

namespace {

/// Memory policy of a thread that is interrupted before its compare-and-swap.
struct Interrupted : device::Memory {
  static inline void (*interrupt)(const dq::QueueView&) = nullptr;
  static inline const dq::QueueView* queue = nullptr;
  template <device::Order order, device::Scope scope, class T>
  static T compare_swap(T* at, T expected, T desired) {
    if (interrupt != nullptr) interrupt(*queue);
    return device::Memory::compare_swap<order, scope>(at, expected, desired);
  }
};

}  // namespace

TEST_CASE("a probe takes a WQEBB if nobody else comes, and never waits for one", "[req:3.19]") {
  ProbedPair pair;
  dq::Reservation place;
  Interrupted::queue = &pair.view();
  Interrupted::interrupt = nullptr;
  REQUIRE(pair.wait(pair.put(1)) == QueueOutcome::done);
  REQUIRE(reserve_if_empty<Interrupted>(pair.view(), place));
  CHECK(place.base == 1);
  CHECK(place.wqebbs == 1);
  CHECK(place.is_next);
  CHECK_FALSE(reserve_if_empty<Interrupted>(pair.view(), place));  // the first one is not complete
  dq::write_wqe(pair.view(), place, 0,
                dq::inline_write_wqe({pair.view().number, place.base}, dq::kSignalled, {},
                                     dq::InlineBytes(nullptr, 0)));
  REQUIRE(dq::publish(Thread(), pair.view(), place) == QueueOutcome::done);
  REQUIRE(dq::wait_all<DrivingMemory>(pair.view(), pair.control) == QueueOutcome::done);
  // Other threads fill the ring in between.
  Interrupted::interrupt = [](const dq::QueueView& queue) {
    queue.indexes->reserved += queue.depth;
  };
  const std::uint64_t before = pair.view().indexes->reserved;
  CHECK_FALSE(reserve_if_empty<Interrupted>(pair.view(), place));
  CHECK(pair.view().indexes->reserved == before + pair.view().depth);  // none is this probe's
}
