// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "device/interleaving.hpp"
#include "device/queue_memory.hpp"
#include "support/sanitized.hpp"

/// Publication in every order that a few preemptions can cause: no wake-up is lost.
namespace oriel::test {
namespace {

namespace q = device::queue;
using device::Thread;
using device::WaitControl;
using q::QueueOutcome;

/// Threads that publish `count` reservations of `wqebbs` WQEBBs each and end. One more fiber drains
/// the queue.
struct OrderCase {
  int threads;
  std::uint32_t count;
  std::uint32_t wqebbs;
  std::uint64_t base = 0;
};

/// Returns false, with a reason, unless every WQE was drained once and was complete when it was
/// announced.
bool run(const OrderCase& order_case, const Interleaving::Choose& choose) {
  QueueMemory memory(128, order_case.base);
  QueueDrain drain = memory.drain();
  int done = 0;
  std::vector<std::function<void()>> bodies;
  for (int i = 0; i < order_case.threads; ++i) {
    bodies.emplace_back([&] {
      done += publish_marked<Thread, InterleavedMemory>(Thread(), memory.view, order_case.count,
                                                        order_case.wqebbs,
                                                        WaitControl()) == QueueOutcome::done;
    });
  }
  // Polls as often as the other fibers let it: the WQEs that it finds must be complete at any
  // moment.
  bodies.emplace_back([&] {
    while (done < order_case.threads) {
      drain.step<Thread, InterleavedMemory>(Thread());
      InterleavedMemory::relax();
    }
  });
  Interleaving interleaving;
  if (!interleaving.run(bodies, choose, 20'000)) {
    UNSCOPED_INFO("no end: " << done << " done, reserved " << memory.indexes.reserved << ", sweep "
                             << memory.indexes.sweep << ", consumed " << drain.consumed);
    return false;
  }
  while (drain.step(Thread()) != 0) {
  }
  const std::uint64_t all = order_case.base + std::uint64_t{order_case.count} * order_case.wqebbs *
                                                  static_cast<std::uint64_t>(order_case.threads);
  const bool good = drain.consumed == all && drain.wrong_wqebbs == 0 && drain.wrong_doorbells == 0;
  if (!good) {
    UNSCOPED_INFO("consumed " << drain.consumed << " of " << all << ", " << drain.wrong_wqebbs
                              << " wrong WQEBBs, " << drain.wrong_doorbells << " wrong doorbells");
  }
  return good;
}

/// CTA whose two threads are the first two fibers of an interleaving.
struct FiberCta : device::Cta {
  static std::uint32_t rank() { return static_cast<std::uint32_t>(Interleaving::fiber()); }
  static std::uint32_t size() { return 2; }
  static void sync() {
    const std::uint64_t round = rounds;
    if (++arrived == 2) {
      arrived = 0;
      ++rounds;
    }
    while (rounds == round) Interleaving::pause();
  }
  static std::uint64_t broadcast(std::uint64_t value) {
    sync();
    if (rank() == 0) shared = value;
    sync();
    return shared;
  }
  static inline int arrived;
  static inline std::uint64_t rounds, shared;
};

/// NIC that makes reads visible only once it has executed a dump after them.
class DumpingNic {
 public:
  explicit DumpingNic(QueueMemory& memory) : memory_(memory) {}
  /// Executes the WQEs that the doorbell has announced.
  void step() {
    const auto rung = InterleavedMemory::load<device::Order::acquire>(&memory_.doorbell);
    const std::uint32_t low = (q::big_endian(static_cast<std::uint32_t>(rung)) >> 8) & 0xffffu;
    if (low == done_) return;
    for (; done_ != low; ++done_) {
      const std::uint32_t first = memory_.ring[done_ & 127u].part[0].word[0];
      const auto opcode = static_cast<q::Opcode>(q::big_endian(first) & 0xffu);
      has_read_ = has_read_ || opcode == q::Opcode::read;
      if (opcode == q::Opcode::dump) is_visible_ = has_read_;
    }
    const q::CompletionTail tail{.kind = q::CompletionKind::request,
                                 .opcode = 0,
                                 .queue = memory_.view.number,
                                 .index = static_cast<std::uint16_t>(done_ - 1)};
    InterleavedMemory::store<device::Order::release>(&memory_.completion.tail,
                                                     q::encode_tail(tail));
  }
  bool is_visible() const { return is_visible_; }

 private:
  QueueMemory& memory_;
  std::uint32_t done_ = 0;
  bool has_read_ = false;
  bool is_visible_ = false;
};

/// Both threads of a CTA get, and each waits at once until its read is visible. Returns false if a
/// wait ended before.
bool get_and_check(const Interleaving::Choose& choose) {
  QueueMemory memory(128);
  memory.view.gets_need_dump = true;
  q::Region region;
  region.bytes = 4096;
  DumpingNic nic(memory);
  FiberCta::arrived = 0;
  FiberCta::rounds = 0;
  int ended = 0, good = 0;
  const auto body = [&] {
    const auto posted = q::get<FiberCta, InterleavedMemory>(
        FiberCta(), memory.view, {region, 0, region, 0, 64}, WaitControl());
    const auto waited = q::wait_visible<InterleavedMemory>(memory.view, WaitControl());
    good +=
        posted.outcome == QueueOutcome::done && waited == QueueOutcome::done && nic.is_visible();
    ++ended;
  };
  std::vector<std::function<void()>> bodies{body, body};
  bodies.emplace_back([&] {
    while (ended < 2) {
      nic.step();
      InterleavedMemory::relax();
    }
  });
  Interleaving interleaving;
  return interleaving.run(bodies, choose, 20'000) && good == 2;
}

}  // namespace

TEST_CASE("any thread of a CTA may wait for what the CTA has just read", "[A10]") {
  bool good = true;
  const std::uint64_t tried = explore(2, [&](const Interleaving::Choose& choose) {
    good = get_and_check(choose);
    return good;
  });
  CHECK(good);
  CHECK(tried > 1000);
}

TEST_CASE("no wake-up is lost, whichever two preemptions happen", "[Q2][req:3.5]") {
  for (const OrderCase& order_case : {OrderCase{2, 2, 1}, OrderCase{2, 1, 3}, OrderCase{3, 1, 1}}) {
    INFO(order_case.threads << " threads");
    bool good = true;
    const std::uint64_t tried = explore(2, [&](const Interleaving::Choose& choose) {
      good = run(order_case, choose);
      return good;
    });
    CHECK(good);
    CHECK(tried > 1000);
  }
}

TEST_CASE("no wake-up is lost in random orders of up to five threads", "[Q2][req:3.5]") {
  std::mt19937_64 random(Catch::rngSeed());
  INFO("seed " << Catch::rngSeed());
  for (int round = 0; round < repeats(10'000); ++round) {
    const OrderCase order_case{2 + static_cast<int>(random() % 4),
                               1 + static_cast<std::uint32_t>(random() % 3),
                               1 + static_cast<std::uint32_t>(random() % 4),
                               random() % 3 * ((std::uint64_t{1} << 16) - 8)};
    const std::uint64_t rarity = 2 + random() % 12;
    const bool good = run(order_case, [&](std::size_t runnable) -> std::size_t {
      return random() % rarity == 0 ? random() % runnable : 0;
    });
    REQUIRE(good);
  }
}

}  // namespace oriel::test
