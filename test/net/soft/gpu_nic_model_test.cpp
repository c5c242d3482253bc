// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "net/queue/queue_records.hpp"
#include "net/queue/syndrome.hpp"
#include "net/soft/gpu_side.hpp"
#include "net/soft/random_ops.hpp"
#include "net/wire/ring_pair.hpp"
#include "support/cuda/fault_cuda.hpp"

// The software NIC and the memory of GPUs (3.9), on a model of the driver whose streams run late.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::AtomicOp;
using dq::QueueOutcome;

namespace {

void fill(GpuSide& side, unsigned seed) {
  std::mt19937_64 random(seed);
  std::generate_n(side.memory(), side.bytes, [&] { return static_cast<std::byte>(random()); });
}

Bytes copy_of(const GpuSide& side) {
  return Bytes(side.memory(), side.memory() + side.bytes);
}

/// Random operations from a to b, and what memory must hold then.
void check_transfers(GpuPair& pair, unsigned seed, int count, std::size_t longest) {
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  Mirror mirror(random, pair.a.bytes);
  std::copy(mirror.a.begin(), mirror.a.end(), pair.a.memory());
  std::copy(mirror.b.begin(), mirror.b.end(), pair.b.memory());
  std::vector<RandomOp> ops = random_ops(random, pair.a.bytes, count, longest), given = ops;
  for (RandomOp& op : ops) mirror.apply(op);
  const OperationsPath path{pair.view(), pair.a.region, pair.b.region, pair.control};
  REQUIRE(run_ops<Thread, LateMemory>(path, given.data(), static_cast<std::uint32_t>(count)) ==
          QueueOutcome::done);
  CHECK(same_old_values(ops, given.data()));
  CHECK(copy_of(pair.a) == mirror.a);
  CHECK(copy_of(pair.b) == mirror.b);
  CHECK(*pair.there.memory().first_error == 0);
}

}  // namespace

TEST_CASE("operations between GPUs are exact, by the wire and by direct copy", "[req:3.9][A12]") {
  const bool direct = GENERATE(false, true);
  const bool servers = GENERATE(false, true);
  const bool own_words = GENERATE(false, true);
  INFO((servers ? "a process copies" : "this process copies"));
  LateModel model;
  SendQueue::Options options;
  options.depth = 128;
  options.piece_bytes = 10'000;  // more than a slot
  GpuPair pair(direct, 262'144, options, own_words, servers);
  check_transfers(pair, 5, 300, 40'000);
  // By the wire each piece is one request; by direct copy each of these transfers is.
  CHECK((pair.a.nic->counters().requests <= 300) == direct);
}

TEST_CASE("pieces in slots go both ways by a ring that is shorter than all of them", "[req:3.21]") {
  const bool servers = GENERATE(false, true);
  LateModel model;
  GpuPair pair(false, std::size_t{1} << 18, {}, false, servers);
  RingPair rings(32768);
  const std::uint32_t wire_a = pair.a.nic->add_wire(std::move(rings.a));
  const std::uint32_t wire_b = pair.b.nic->add_wire(std::move(rings.b));
  fill(pair.a, 1);
  fill(pair.b, 2);
  const Bytes of_a = copy_of(pair.a), of_b = copy_of(pair.b);
  SendQueue::Options options;
  options.piece_bytes = 4096;  // a slot
  std::vector<SendQueue> queues;
  constexpr std::size_t kEach = 60'000;
  for (std::size_t i = 0; i < 2; ++i) {
    queues.push_back(pair.a.make_queue(options));
    queues.push_back(pair.b.make_queue(options));
    SendQueue& there = queues[2 * i];
    SendQueue& back = queues[2 * i + 1];
    REQUIRE(there.connect({wire_a, {2}, back.number()}).ok());
    REQUIRE(back.connect({wire_b, {1}, there.number()}).ok());
  }
  std::vector<dq::Posted> posted;
  for (std::size_t i = 0; i < queues.size(); ++i) {
    const GpuSide& from = i % 2 == 0 ? pair.a : pair.b;
    const GpuSide& to = i % 2 == 0 ? pair.b : pair.a;
    const std::size_t at = i / 2 * kEach;
    posted.push_back(dq::put<Thread, LateMemory>(Thread(), queues[i].view(),
                                                 {from.region, at, to.region, 131'072 + at, kEach},
                                                 pair.control));
    REQUIRE(posted.back().outcome == QueueOutcome::done);
  }
  for (std::size_t i = 0; i < queues.size(); ++i) {
    REQUIRE(dq::wait_complete<LateMemory>(queues[i].view(), posted[i].end, pair.control) ==
            QueueOutcome::done);
  }
  CHECK(std::equal(of_a.begin(), of_a.begin() + 2 * kEach, pair.b.memory() + 131'072));
  CHECK(std::equal(of_b.begin(), of_b.begin() + 2 * kEach, pair.a.memory() + 131'072));
}

TEST_CASE("a transfer that is longer than all slots together goes through them", "[req:3.9]") {
  const bool servers = GENERATE(false, true);
  LateModel model;
  SendQueue::Options options;
  options.piece_bytes = kPieceBytesMost;
  GpuPair pair(false, std::size_t{1} << 19, options, false, servers);
  fill(pair.a, 1);
  const std::size_t bytes = pair.a.bytes;
  REQUIRE(pair.wait(dq::put<Thread, LateMemory>(Thread(), pair.view(), pair.transfer(0, 0, bytes),
                                                pair.control)) == QueueOutcome::done);
  CHECK(copy_of(pair.a) == copy_of(pair.b));
  fill(pair.b, 2);
  REQUIRE(pair.wait(dq::get<Thread, LateMemory>(Thread(), pair.view(), pair.transfer(0, 0, bytes),
                                                pair.control)) == QueueOutcome::done);
  CHECK(copy_of(pair.a) == copy_of(pair.b));
}

TEST_CASE("a signal is never seen before the bytes in front of it", "[req:3.9][A13]") {
  const bool direct = GENERATE(false, true);
  const bool servers = GENERATE(false, true);
  LateModel model;
  GpuPair pair(direct, 65'536, {}, true, servers);
  constexpr std::size_t kBytes = 9'001;
  auto* const signal = reinterpret_cast<std::uint64_t*>(pair.b.memory() + 65'528);
  const auto seen = [signal] {
    return std::atomic_ref<std::uint64_t>(*signal).load(std::memory_order_acquire);
  };
  for (std::uint64_t round = 1; round <= 40; ++round) {
    std::memset(pair.a.memory(), static_cast<int>(round), kBytes);
    auto posted = dq::put<Thread, LateMemory>(Thread(), pair.view(), pair.transfer(0, 3, kBytes),
                                              pair.control);
    REQUIRE(posted.outcome == QueueOutcome::done);
    posted = dq::atomic<AtomicOp::add, Thread, std::uint64_t, LateMemory>(
        Thread(), pair.view(), pair.b.region, 65'528, 1, pair.control);
    REQUIRE(posted.outcome == QueueOutcome::done);
    // Step by step, so that every state that a kernel could see is looked at.
    const Deadline due = Deadline::after(std::chrono::seconds(20));
    for (int step = 0;; ++step) {
      const std::uint64_t value = seen();  // once: a server changes it at any time
      if (value == round) break;
      REQUIRE(value == round - 1);
      REQUIRE((servers || step < 10'000));
      REQUIRE_FALSE(due.expired(SteadyClock::instance().now()));
      if (servers) std::this_thread::yield();
      pair.a.nic->progress();
      pair.b.nic->progress();
      model.made->run_streams(1);
    }
    const auto is_new = [&](std::byte byte) { return byte == static_cast<std::byte>(round); };
    REQUIRE(std::all_of(pair.b.memory() + 3, pair.b.memory() + 3 + kBytes, is_new));
    REQUIRE(pair.wait(posted) == QueueOutcome::done);
  }
}

TEST_CASE("nothing is complete before the copy engine has done it", "[req:3.9]") {
  const bool direct = GENERATE(false, true);
  LateModel model;
  GpuPair pair(direct);
  fill(pair.a, 3);
  const auto posted =
      dq::put<Thread, LateMemory>(Thread(), pair.view(), pair.transfer(0, 0, 1000), pair.control);
  for (int i = 0; i < 100; ++i) {
    pair.a.nic->progress();
    pair.b.nic->progress();
    if (i < 50) CHECK(pair.b.memory()[1] == std::byte{0});  // the engine has not moved at all
  }
  device::WaitControl brief = pair.control;
  brief.timeout_ns = 1'000'000;
  CHECK(dq::wait_complete<DrivingMemory>(pair.view(), posted.end, brief) ==
        QueueOutcome::timed_out);
}

TEST_CASE("an atomic sees what others have made of a GPU's word", "[req:3.9][A12]") {
  const bool servers = GENERATE(false, true);
  LateModel model;
  GpuPair pair(false, 4096, {}, false, servers);
  for (const std::uint64_t there : {5u, 70u}) {
    std::memcpy(pair.b.memory() + 8, &there, 8);  // as a kernel would
    std::uint64_t old = 0;
    REQUIRE(dq::fetch_atomic<AtomicOp::add, std::uint64_t, LateMemory>(
                pair.view(), pair.b.region, 8, 1, old, pair.control) == QueueOutcome::done);
    CHECK(old == there);
  }
}

TEST_CASE("old values and immediates of GPUs' queues, and refusals, are as ever", "[req:3.9]") {
  LateModel model;
  SendQueue::Options options;
  options.receives = 4;
  GpuPair pair(true, 65'536, options);
  REQUIRE(pair.back.post_receives(2).ok());
  for (const std::uint32_t immediate : {7u, 8u}) {
    fill(pair.a, immediate);
    const auto put = dq::put_immediate<Thread, LateMemory>(
        Thread(), pair.view(), pair.transfer(0, 100, 5000), immediate, pair.control);
    REQUIRE(pair.wait(put) == QueueOutcome::done);
    SendQueue::Immediate got;
    REQUIRE(pair.back.take_immediate(got));
    CHECK(got.value == immediate);
    CHECK(std::memcmp(pair.a.memory(), pair.b.memory() + 100, 5000) == 0);
  }
  dq::Region wrong = pair.b.region;
  wrong.keys[0] ^= 1;
  const auto put = dq::put<Thread, LateMemory>(Thread(), pair.view(),
                                               {pair.a.region, 0, wrong, 0, 64}, pair.control);
  CHECK(pair.wait(put) == QueueOutcome::failed);
  CHECK(pair.error().syndrome == static_cast<std::uint32_t>(Syndrome::remote_access));
}

TEST_CASE("every operation of a GPU's queue does what it says", "[req:3.1]") {
  LateModel model;
  for (const bool direct : {false, true}) {
    SendQueue::Options options;
    options.receives = 2;
    GpuPair pair(direct, 65'536, options, direct);
    REQUIRE(pair.back.post_receives(1).ok());
    const OperationsPath path{pair.view(), pair.a.region, pair.b.region, pair.control};
    CHECK(OperationsBody<Thread, LateMemory>(path, 3).run() == 0);
    SendQueue::Immediate immediate;
    REQUIRE(pair.back.take_immediate(immediate));
    CHECK(immediate.value == 3);
  }
}

TEST_CASE("atomics of two queues, and writes between them, are all there in the end",
          "[req:3.9][A12]") {
  LateModel model;
  LocalExchange exchange;
  GpuSide side(exchange, 0, 4096);
  CudaMover& mover = *side.mover;
  const auto value = [&] {
    std::uint64_t word = 0;
    std::memcpy(&word, side.memory(), sizeof word);
    return word;
  };
  const bool is_overwritten = GENERATE(false, true);
  AtomicMove moves[2];
  for (AtomicMove& move : moves) {
    move.work.bytes = 8;
    move.work.operand = 1;
  }
  // Both read the word before either has written it.
  CHECK_FALSE(mover.step_atomic(moves[0], side.memory()));
  CHECK_FALSE(mover.step_atomic(moves[1], side.memory()));
  if (is_overwritten) {
    const std::uint64_t other = 100;
    MoveTicket ticket = 0;
    REQUIRE(mover.store(side.memory(), ByteView(reinterpret_cast<const std::byte*>(&other), 8),
                        ticket) == 8);
  }
  bool done[2] = {};
  for (int turn = 0; turn < 1000 && !(done[0] && done[1]); ++turn) {
    static_cast<void>(mover.flush());
    LateModel::step();
    for (int i = 0; i < 2; ++i) done[i] = done[i] || mover.step_atomic(moves[i], side.memory());
  }
  REQUIRE((done[0] && done[1]));
  while (mover.flush()) LateModel::step();
  const std::uint64_t before = is_overwritten ? 100 : 0;
  CHECK(value() == before + 2);
  CHECK(std::min(moves[0].old_value, moves[1].old_value) == before);
  CHECK(std::max(moves[0].old_value, moves[1].old_value) == before + 1);
}

TEST_CASE("a GPU that is full, and graphs that others capture, do not hinder it", "[req:3.9]") {
  LateModel model;
  model.made->fill_devices(true);
  model.made->begin_foreign_capture();
  GpuPair pair(false);
  check_transfers(pair, 8, 40, 9'000);
  GpuPair direct(true);
  check_transfers(direct, 9, 40, 9'000);
  model.made->end_foreign_capture();
  model.made->fill_devices(false);
}

TEST_CASE("what is on its way to memory that is given back has arrived before", "[req:3.9]") {
  const bool direct = GENERATE(false, true);
  LateModel model;
  GpuPair pair(direct);
  fill(pair.a, 3);
  const auto put =
      dq::put<Thread, LateMemory>(Thread(), pair.view(), pair.transfer(0, 0, 4000), pair.control);
  REQUIRE(put.outcome == QueueOutcome::done);
  pair.a.nic->progress();
  if (!direct) model.made->run_streams(100);
  pair.a.nic->progress();
  pair.b.nic->progress();
  CHECK(pair.b.memory()[0] == std::byte{0});
  REQUIRE(pair.b.nic->deregister_memory(pair.b.key).ok());
  CHECK(std::memcmp(pair.a.memory(), pair.b.memory(), 4000) == 0);
  CHECK(pair.wait(put) == QueueOutcome::done);
  const auto late =
      dq::put<Thread, LateMemory>(Thread(), pair.view(), pair.transfer(0, 0, 4000), pair.control);
  CHECK(pair.wait(late) == QueueOutcome::failed);
}

TEST_CASE("what was accepted is copied before its source is unmapped, the rest by the wire",
          "[req:3.9]") {
  LateModel model;
  GpuPair pair(true);
  fill(pair.a, 3);
  // The put waits behind an atomic whose word is still being read.
  REQUIRE(dq::atomic<AtomicOp::add, Thread, std::uint64_t, LateMemory>(
              Thread(), pair.view(), pair.b.region, 0, 1, pair.control)
              .outcome == QueueOutcome::done);
  const auto put =
      dq::put<Thread, LateMemory>(Thread(), pair.view(), pair.transfer(64, 64, 4000), pair.control);
  REQUIRE(put.outcome == QueueOutcome::done);
  pair.a.nic->progress();
  pair.b.nic->progress();
  CHECK(pair.b.nic->counters().direct_copies == 0);
  REQUIRE(pair.b.nic->unmap_peer_memory(1, pair.a.key).ok());
  CHECK(pair.b.nic->counters().direct_copies == 1);
  CHECK(std::memcmp(pair.a.memory() + 64, pair.b.memory() + 64, 4000) == 0);
  REQUIRE(pair.wait(put) == QueueOutcome::done);
  for (const std::uint64_t at : {8192, 16'384}) {
    const auto later = dq::put<Thread, LateMemory>(Thread(), pair.view(),
                                                   pair.transfer(64, at, 4000), pair.control);
    CHECK(pair.wait(later) == QueueOutcome::done);
    CHECK(std::memcmp(pair.a.memory() + 64, pair.b.memory() + at, 4000) == 0);
  }
  CHECK(pair.b.nic->counters().direct_copies == 1);
  CHECK(pair.a.nic->counters().unmapped == 1);
  CHECK(*pair.there.memory().first_error == 0);
}

TEST_CASE("what a GPU has done by the time of a fence is not done again", "[req:3.14][F4]") {
  LateModel model;
  QueueRecords records;
  GpuPair pair(true);
  SendQueue::Options options;
  SendQueue from = pair.a.make_queue(options);
  options.records = &records;
  options.receives = 2;
  SendQueue to = pair.b.make_queue(options);
  REQUIRE(to.post_receives(1).ok());
  REQUIRE(from.connect({0, pair.b.nic->address(0), to.number(), 0, 2}).ok());
  REQUIRE(to.connect({0, pair.a.nic->address(0), from.number(), 0, 1}).ok());
  fill(pair.a, 3);
  const dq::QueueView& view = from.view();
  const auto value = dq::put_value<Thread, std::uint64_t, LateMemory>(
      Thread(), view, 7, pair.b.region, 0, pair.control);
  REQUIRE(value.outcome == QueueOutcome::done);
  const auto put = dq::put_immediate<Thread, LateMemory>(
      Thread(), view, pair.transfer(64, 64, 4000), 5, pair.control);
  REQUIRE(put.outcome == QueueOutcome::done);
  pair.a.nic->progress();
  pair.b.nic->progress();
  // Begun, and not known to be done.
  CHECK(pair.b.memory()[0] == std::byte{0});
  CHECK(records.delivery.received == 0);
  REQUIRE(pair.b.nic->to_error(to.number()).ok());
  CHECK(pair.b.memory()[0] == std::byte{7});
  CHECK(std::memcmp(pair.a.memory() + 64, pair.b.memory() + 64, 4000) == 0);
  SendQueue::Immediate got;
  REQUIRE(to.take_immediate(got));
  CHECK(got.value == 5);
  // Whoever has seen the value may have changed the word since.
  CHECK(records.delivery.expected() == 2);
  records.delivery.hand_over();
  CHECK(records.delivery.expected() == 2);
}

TEST_CASE("a peer can name no source that this side has not mapped", "[req:3.23]") {
  LateModel model;
  GpuPair pair(true);
  // What this side believes is reached is mapped there no more.
  REQUIRE(pair.b.nic->unmap_peer_memory(1, pair.a.key).ok());
  fill(pair.a, 1);
  const auto put =
      dq::put<Thread, LateMemory>(Thread(), pair.view(), pair.transfer(0, 0, 100), pair.control);
  CHECK(pair.wait(put) == QueueOutcome::done);
  CHECK(pair.b.nic->counters().direct_copies == 0);
  CHECK(std::memcmp(pair.a.memory(), pair.b.memory(), 100) == 0);
}

TEST_CASE("when a GPU's streams fail, entries end with an error at either end", "[req:3.9]") {
  const bool direct = GENERATE(false, true);
  const bool reads = GENERATE(false, true);
  LateModel model;
  {
    GpuPair pair(direct);
    check_transfers(pair, 2, 5, 1000);
    const auto transfer = pair.transfer(0, 0, 30'000);
    const auto posted =
        reads ? dq::get<Thread, LateMemory>(Thread(), pair.view(), transfer, pair.control)
              : dq::put<Thread, LateMemory>(Thread(), pair.view(), transfer, pair.control);
    pair.a.nic->progress();
    model.made->fail_streams(CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(pair.wait(posted) == QueueOutcome::failed);
    const auto syndrome = static_cast<Syndrome>(pair.error().syndrome);
    CHECK((syndrome == Syndrome::local_operation || syndrome == Syndrome::remote_operation));
    CHECK((pair.a.mover->has_failed() || pair.b.mover->has_failed()));
  }
  model.made->fail_streams(CUDA_SUCCESS);
}

TEST_CASE("whichever call of the driver fails, the mover is not made or its queue ends",
          "[req:3.9]") {
  long k = 1;
  for (bool hit = true; hit; ++k) {
    LateModel model;
    const oriel::test::CudaFaultHooks hooks;
    oriel::test::FaultPlan plan;
    plan.fail_at = k;
    plan.status = CUDA_ERROR_UNKNOWN;
    INFO(k);
    {
      oriel::test::ScopedCudaFaults faults(plan);
      const auto mover = CudaMover::create({});
      const bool was_hit = plan.hit();
      const std::string failed = was_hit ? plan.failed.load() : "";
      // Leaving a context is not what it was made for.
      const bool leaves = failed == "ctx_pop_current" || failed.starts_with("thread_exchange");
      if (!leaves) CHECK(mover.ok() != was_hit);
      const auto pages = CudaQueuePages::create(0);
      if (pages.ok()) static_cast<void>(pages.value()->allocate_on_host(4096));
      if (pages.ok()) static_cast<void>(pages.value()->allocate(4096));
    }
    hit = plan.hit();
  }
  CHECK(k > 15);
  const bool direct = GENERATE(false, true);
  k = 1;
  for (bool hit = true; hit; k += 7) {
    INFO("in traffic: " << k);
    LateModel model;
    const oriel::test::CudaFaultHooks hooks;
    {
      GpuPair pair(direct);
      fill(pair.a, 4);
      oriel::test::FaultPlan plan;
      plan.fail_at = k;
      plan.status = CUDA_ERROR_ILLEGAL_ADDRESS;
      oriel::test::ScopedCudaFaults faults(plan);
      QueueOutcome outcome = QueueOutcome::done;
      for (int i = 0; i < 3 && outcome == QueueOutcome::done; ++i) {
        outcome = pair.wait(dq::put<Thread, LateMemory>(Thread(), pair.view(),
                                                        pair.transfer(0, 0, 9000), pair.control));
      }
      hit = plan.hit();
      if (outcome == QueueOutcome::done) {
        CHECK(std::memcmp(pair.a.memory(), pair.b.memory(), 9000) == 0);
        CHECK_FALSE((hit && k < 8));
      } else {
        CHECK(outcome == QueueOutcome::failed);
        CHECK(hit);
      }
    }
  }
  CHECK(k > 20);
}
