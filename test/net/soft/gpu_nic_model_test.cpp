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
#include "net/soft/gpu_pair.hpp"
#include "net/soft/immediates_body.hpp"
#include "net/soft/random_ops.hpp"
#include "net/wire/ring_pair.hpp"
#include "support/cuda/fault_cuda.hpp"

// Software NIC with memory of GPUs (3.9), on a model of the driver whose streams run late.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;

namespace {

/// Runs random operations from a to b, and checks the memory of both.
void check_transfers(GpuPair& pair, unsigned seed, int count, std::size_t longest) {
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  Mirror mirror(random, pair.bytes);
  std::copy(mirror.a.begin(), mirror.a.end(), pair.a.memory());
  std::copy(mirror.b.begin(), mirror.b.end(), pair.b.memory());
  std::vector<RandomOp> ops = random_ops(random, pair.bytes, count, longest), given = ops;
  for (RandomOp& op : ops) mirror.apply(op);
  REQUIRE(run_ops<Thread, LateMemory>(pair.path(), given.data(),
                                      static_cast<std::uint32_t>(count)) == QueueOutcome::done);
  CHECK(same_old_values(ops, given.data()));
  CHECK(pair.copy_of(pair.a) == mirror.a);
  CHECK(pair.copy_of(pair.b) == mirror.b);
  CHECK(pair.error().syndrome == 0);
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
  // More than a staging slot, or more than all slots together.
  options.piece_bytes = own_words ? 10'000 : kPieceBytesMost;
  GpuPair pair(direct, 262'144, options, own_words, servers);
  check_transfers(pair, 5, 300, 40'000);
  // By the wire, each piece is one request. By direct copy, each of these transfers is one request.
  if (own_words) CHECK((traffic(*pair.a.nic).requests <= 300) == direct);
}

TEST_CASE("pieces in slots go both ways by a ring that is shorter than all of them", "[req:3.21]") {
  const bool servers = GENERATE(false, true);
  LateModel model;
  GpuPair pair(false, std::size_t{1} << 18, {}, false, servers);
  RingPair rings(32768);
  const std::uint32_t wire_a = pair.a.nic->add_wire(std::move(rings.a));
  const std::uint32_t wire_b = pair.b.nic->add_wire(std::move(rings.b));
  pair.fill(pair.a, 1);
  pair.fill(pair.b, 2);
  const Bytes of_a = pair.copy_of(pair.a), of_b = pair.copy_of(pair.b);
  SendQueue::Options options;
  options.piece_bytes = 4096;  // size of a slot
  constexpr std::size_t kEach = 60'000, kTarget = 131'072;
  std::vector<SendQueue> queues;
  for (const std::size_t at : {std::size_t{0}, kEach}) {
    SendQueue& there = queues.emplace_back(pair.a.make_queue(options));
    SendQueue back = pair.b.make_queue(options);
    REQUIRE(there.connect({wire_a, {2}, back.number()}).ok());
    REQUIRE(back.connect({wire_b, {1}, there.number()}).ok());
    for (const bool is_there : {true, false}) {
      const dq::QueueView& view = is_there ? there.view() : back.view();
      const dq::Region &from = is_there ? pair.a.region : pair.b.region,
                       &to = is_there ? pair.b.region : pair.a.region;
      REQUIRE(dq::put<Thread, LateMemory>(Thread(), view, {from, at, to, kTarget + at, kEach},
                                          pair.control)
                  .outcome == QueueOutcome::done);
    }
    queues.push_back(std::move(back));
  }
  for (const SendQueue& queue : queues) {
    REQUIRE(dq::wait_all<LateMemory>(queue.view(), pair.control) == QueueOutcome::done);
  }
  CHECK(std::equal(of_a.begin(), of_a.begin() + 2 * kEach, pair.b.memory() + kTarget));
  CHECK(std::equal(of_b.begin(), of_b.begin() + 2 * kEach, pair.a.memory() + kTarget));
}

TEST_CASE("a signal is never seen before the bytes in front of it", "[req:3.9][A13]") {
  const bool direct = GENERATE(false, true);
  const bool servers = GENERATE(false, true);
  LateModel model;
  GpuPair pair(direct, 65'536, {}, true, servers);
  constexpr std::size_t kBytes = 9'001;
  auto* const signal = reinterpret_cast<std::uint64_t*>(pair.b.memory() + 65'528);
  for (std::uint64_t round = 1; round <= 40; ++round) {
    std::memset(pair.a.memory(), static_cast<int>(round), kBytes);
    REQUIRE(pair.put(0, 3, kBytes).outcome == QueueOutcome::done);
    const dq::Posted add = pair.add(1, 65'528);
    REQUIRE(add.outcome == QueueOutcome::done);
    // Proceeds step by step, to check every state that a kernel could see.
    const Deadline due = Deadline::after(std::chrono::seconds(20));
    for (int step = 0;; ++step) {
      // Loads the word once: a server may change it at any time.
      const std::uint64_t value =
          std::atomic_ref<std::uint64_t>(*signal).load(std::memory_order_acquire);
      if (value == round) break;
      REQUIRE(value == round - 1);
      REQUIRE((servers || step < 10'000));
      REQUIRE_FALSE(due.expired(SteadyClock::instance().now()));
      if (servers) std::this_thread::yield();
      pair.progress();
      model.run_streams(1);
    }
    REQUIRE(pair.same(0, 3, kBytes));
    REQUIRE(pair.wait(add) == QueueOutcome::done);
  }
}

TEST_CASE("nothing is complete before the copy engine has done it", "[req:3.9]") {
  const bool direct = GENERATE(false, true);
  LateModel model;
  GpuPair pair(direct);
  pair.fill(pair.a, 3);
  const dq::Posted put = pair.put(0, 0, 1000);
  for (int i = 0; i < 100; ++i) {
    pair.progress();
    if (i < 50) CHECK(pair.b.memory()[1] == std::byte{0});  // the engine has not moved at all
  }
  device::WaitControl brief = pair.control;
  brief.timeout_ns = 1'000'000;
  CHECK(dq::wait_complete<DrivingMemory>(pair.view(), put.end, brief) == QueueOutcome::timed_out);
}

TEST_CASE("an atomic on a word that a kernel has changed before returns the changed value",
          "[req:3.9][A12]") {
  const bool servers = GENERATE(false, true);
  LateModel model;
  GpuPair pair(false, 4096, {}, false, servers);
  for (const std::uint64_t there : {5u, 70u}) {
    std::memcpy(pair.b.memory() + 8, &there, 8);  // emulates the kernel
    std::uint64_t old = 0;
    REQUIRE(draw_tickets<LateMemory>(pair.path(), 8, 1, &old) == QueueOutcome::done);
    CHECK(old == there);
  }
}

TEST_CASE("every operation of a GPU's queue does what it says, a wrong key is refused",
          "[req:3.1]") {
  const bool direct = GENERATE(false, true);
  LateModel model;
  GpuPair pair(direct, 65'536, {.receives = 2}, direct);
  REQUIRE(post_receives(pair.back, 1));
  CHECK(OperationsBody<Thread, LateMemory>(pair.path(), 3).run() == 0);
  Immediate immediate;
  REQUIRE(take_immediate(pair.back, immediate));
  CHECK(immediate.value == 3);
  pair.b.region.keys[0] ^= 1;
  CHECK(pair.wait(pair.put(0, 0, 64)) == QueueOutcome::failed);
  CHECK(pair.error().syndrome == static_cast<std::uint32_t>(Syndrome::remote_access));
}

// Runs in a thread the body that a kernel in operations_kernels.cu runs.
TEST_CASE("a wait for an immediate on a GPU's queue sees the bytes sent with the immediate",
          "[B4]") {
  const bool direct = GENERATE(false, true);
  const bool servers = GENERATE(false, true);
  LateModel model;
  GpuPair pair(direct, 65'536, {.receives = 4, .mode = DoorbellMode::alone}, false, servers);
  ImmediatesPath from{pair.view(), {}, pair.a.region, pair.b.region, 1024, 8, pair.control};
  ImmediatesPath to{pair.back.view(), pair.back.receives(), pair.b.region, pair.a.region, 1024, 8,
                    pair.control};
  // The larger size exceeds a staging slot.
  from.bytes = to.bytes = GENERATE(1024u, 6000u);
  ImmediatesBody<Thread, LateMemory> sender(from);
  ImmediatesBody<Thread, LateMemory> receiver(to);
  // The host posts the first receives.
  REQUIRE(post_receives(pair.back, 4));
  std::uint32_t sent = 0;
  for (std::uint32_t round = 0; round < 60; ++round) {
    for (; sent < round + 1 + round % 4; ++sent) {
      REQUIRE(sender.send(sent) == QueueOutcome::done);
    }
    REQUIRE(receiver.receive(round) == QueueOutcome::done);
  }
  CHECK(receiver.wrong() == 0);
  CHECK(pair.back.receives().position->taken == 60);
  // The host takes the remaining immediates.
  for (std::uint32_t left = sent - 60, polls = 0; left > 0; LateMemory::relax()) {
    REQUIRE(++polls < 1'000'000);
    Immediate immediate;
    if (take_immediate(pair.back, immediate)) --left;
  }
  to.control.timeout_ns = 1'000'000;
  CHECK(receiver.receive(sent) == QueueOutcome::timed_out);
  const std::uint32_t abort = 1;
  to.control.abort = &abort;
  CHECK(receiver.receive(sent) == QueueOutcome::aborted);
  to.control = pair.control;
  REQUIRE(pair.back.refuse_posts().ok());
  CHECK(receiver.receive(sent) == QueueOutcome::aborted);
}

TEST_CASE("atomics of two queues, and writes between them, are all there in the end",
          "[req:3.9][A12]") {
  LateModel model;
  LocalWires exchange;
  GpuSide side(exchange.attach(), {.bytes = 4096});
  std::memset(side.memory(), 0, 8);
  CudaCopyEngine& engine = *side.engine;
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
  CHECK_FALSE(engine.step_atomic(moves[0], side.memory()));
  CHECK_FALSE(engine.step_atomic(moves[1], side.memory()));
  if (is_overwritten) {
    const std::uint64_t other = 100;
    MoveTicket ticket = 0;
    REQUIRE(engine.store(side.memory(), ByteView(reinterpret_cast<const std::byte*>(&other), 8),
                         ticket) == 8);
  }
  bool done[2] = {};
  for (int turn = 0; turn < 1000 && !(done[0] && done[1]); ++turn) {
    static_cast<void>(engine.flush());
    LateModel::step();
    for (int i = 0; i < 2; ++i) done[i] = done[i] || engine.step_atomic(moves[i], side.memory());
  }
  REQUIRE((done[0] && done[1]));
  while (engine.flush()) LateModel::step();
  const std::uint64_t before = is_overwritten ? 100 : 0;
  CHECK(value() == before + 2);
  CHECK(std::min(moves[0].old_value, moves[1].old_value) == before);
  CHECK(std::max(moves[0].old_value, moves[1].old_value) == before + 1);
}

TEST_CASE("a GPU that is full, and graphs that others capture, do not hinder it", "[req:3.9]") {
  LateModel model;
  model.fill_devices(true);
  model.begin_foreign_capture();
  GpuPair pair(false);
  check_transfers(pair, 8, 40, 9'000);
  GpuPair direct(true);
  check_transfers(direct, 9, 40, 9'000);
  model.end_foreign_capture();
  model.fill_devices(false);
}

TEST_CASE("deregistration of GPU memory completes the copies on their way into it", "[req:3.9]") {
  const bool direct = GENERATE(false, true);
  LateModel model;
  GpuPair pair(direct);
  pair.fill(pair.a, 3);
  const dq::Posted put = pair.put(0, 0, 4000);
  REQUIRE(put.outcome == QueueOutcome::done);
  pair.a.nic->progress();
  if (!direct) model.run_streams(100);
  pair.progress();
  CHECK(pair.b.memory()[0] == std::byte{0});
  REQUIRE(pair.b.nic->deregister_memory(pair.b.key).ok());
  CHECK(pair.same(0, 0, 4000));
  CHECK(pair.wait(put) == QueueOutcome::done);
  CHECK(pair.wait(pair.put(0, 0, 4000)) == QueueOutcome::failed);
}

TEST_CASE("unmapping of peer memory completes accepted direct copies; later puts use the wire",
          "[req:3.9]") {
  LateModel model;
  GpuPair pair(true);
  pair.fill(pair.a, 3);
  // The put waits behind an atomic whose word is still being read.
  REQUIRE(pair.add(1, 0).outcome == QueueOutcome::done);
  const dq::Posted put = pair.put(64, 64, 4000);
  REQUIRE(put.outcome == QueueOutcome::done);
  pair.progress();
  CHECK_FALSE(pair.same(64, 64, 4000));
  REQUIRE(pair.b.nic->unmap_peer_memory(1, pair.a.key).ok());
  CHECK(pair.same(64, 64, 4000));
  REQUIRE(pair.wait(put) == QueueOutcome::done);
  CHECK(traffic(*pair.a.nic).payload_bytes == 0);
  for (const std::uint64_t at : {8192, 16'384}) {
    CHECK(pair.wait(pair.put(64, at, 4000)) == QueueOutcome::done);
    CHECK(pair.same(64, at, 4000));
  }
  CHECK(traffic(*pair.a.nic).payload_bytes == 8000);
  CHECK(traffic(*pair.a.nic).refused == 1);
  CHECK(pair.error().syndrome == 0);
}

TEST_CASE("operations that a GPU completed before its queue was fenced are not replayed",
          "[req:3.14][F4]") {
  LateModel model;
  QueueRecords records;
  GpuPair pair(true);
  SendQueue::Options options;
  SendQueue from = pair.a.make_queue(options);
  options.records = &records;
  options.receives = 2;
  SendQueue to = pair.b.make_queue(options);
  REQUIRE(post_receives(to, 1));
  pair.connect(from, to);
  pair.fill(pair.a, 3);
  const dq::QueueView& view = from.view();
  const auto value = dq::put_value<Thread, std::uint64_t, LateMemory>(
      Thread(), view, 7, pair.b.region, 0, pair.control);
  REQUIRE(value.outcome == QueueOutcome::done);
  const auto put = dq::put_immediate<Thread, LateMemory>(
      Thread(), view, pair.transfer(64, 64, 4000), 5, pair.control);
  REQUIRE(put.outcome == QueueOutcome::done);
  pair.progress();
  // The operations have started, and are not known to be complete.
  CHECK(pair.b.memory()[0] == std::byte{0});
  CHECK(records.delivery.received == 0);
  REQUIRE(pair.b.nic->to_error(to.number()).ok());
  CHECK(pair.b.memory()[0] == std::byte{7});
  CHECK(pair.same(64, 64, 4000));
  Immediate got;
  REQUIRE(take_immediate(to, got));
  CHECK(got.value == 5);
  // A reader of the value may have changed the word since.
  CHECK(records.delivery.expected() == 2);
  records.delivery.hand_over();
  CHECK(records.delivery.expected() == 2);
}

TEST_CASE("when a GPU's streams fail, WQEs end with an error at either end", "[req:3.9]") {
  const bool direct = GENERATE(false, true);
  const bool reads = GENERATE(false, true);
  LateModel model;
  {
    GpuPair pair(direct);
    check_transfers(pair, 2, 5, 1000);
    const dq::Posted posted = reads ? pair.get(0, 0, 30'000) : pair.put(0, 0, 30'000);
    pair.a.nic->progress();
    model.fail_streams(CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(pair.wait(posted) == QueueOutcome::failed);
    const auto syndrome = static_cast<Syndrome>(pair.error().syndrome);
    CHECK((syndrome == Syndrome::local_operation || syndrome == Syndrome::remote_operation));
    CHECK((pair.a.engine->has_failed() || pair.b.engine->has_failed()));
  }
  model.fail_streams(CUDA_SUCCESS);
}

TEST_CASE("any failed driver call prevents the copy engine's creation or fails its queue",
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
      const auto engine = CudaCopyEngine::create({});
      const bool was_hit = plan.hit();
      const std::string failed = was_hit ? plan.failed.load() : "";
      // Leaving a context is not needed for creating the engine.
      const bool leaves = failed == "ctx_pop_current" || failed.starts_with("thread_exchange");
      if (!leaves) CHECK(engine.ok() != was_hit);
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
      pair.fill(pair.a, 4);
      oriel::test::FaultPlan plan;
      plan.fail_at = k;
      plan.status = CUDA_ERROR_ILLEGAL_ADDRESS;
      oriel::test::ScopedCudaFaults faults(plan);
      QueueOutcome outcome = QueueOutcome::done;
      for (int i = 0; i < 3 && outcome == QueueOutcome::done; ++i) {
        outcome = pair.wait(pair.put(0, 0, 9000));
      }
      hit = plan.hit();
      if (outcome == QueueOutcome::done) {
        CHECK(pair.same(0, 0, 9000));
        CHECK_FALSE((hit && k < 8));
      } else {
        CHECK(outcome == QueueOutcome::failed);
        CHECK(hit);
      }
    }
  }
  CHECK(k > 20);
}
