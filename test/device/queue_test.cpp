// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "device/queue_memory.hpp"
#include "support/long_run.hpp"
#include "support/on_threads.hpp"

/// Queues on CPU threads: publication, completion, splitting, and how waits end.
namespace oriel::test {
namespace {

namespace q = device::queue;
using device::Thread;
using device::WaitControl;
using q::QueueOutcome;

struct Case {
  std::uint32_t depth;
  int threads;
  std::uint32_t wqebbs;
  std::uint64_t base;
  std::uint32_t laps = 12;  ///< times around the ring
};

/// Publishes from all threads; none of them waits for completion of its own WQEs.
void publish_from_threads(const Case& at) {
  INFO("depth " << at.depth << ", " << at.threads << " threads, " << at.wqebbs << " WQEBBs, from "
                << at.base);
  QueueMemory memory(at.depth, at.base);
  DrainThread nic(memory);
  const std::uint32_t count =
      at.laps * at.depth / at.wqebbs / static_cast<std::uint32_t>(at.threads);
  WaitControl control;
  control.timeout_ns = 60'000'000'000;
  CHECK(on_threads(at.threads, [&](int) {
          return memory.publish(count, at.wqebbs, control) == QueueOutcome::done;
        }) == at.threads);
  const std::uint64_t all =
      at.base + std::uint64_t{count} * at.wqebbs * static_cast<std::uint64_t>(at.threads);
  CHECK(memory.indexes.reserved == all);
  CHECK(memory.rung() == all);  // no doorbell was lost, though no thread waited for its last WQEs
  nic.stop_at(all);
  CHECK(nic.doorbells() <= count * static_cast<std::uint32_t>(at.threads));
  CHECK(memory.wait(all) == QueueOutcome::done);
  CHECK(memory.indexes.completed == all);
}

}  // namespace

TEST_CASE("every WQE is handed over once, in index order, and no doorbell is lost",
          "[A7][A8][req:3.3][req:3.5]") {
  constexpr std::uint64_t k16 = 1 << 16, k32 = std::uint64_t{1} << 32;
  for (const Case& at : {Case{128, 1, 1, 0}, Case{128, 4, 1, k16 - 64}, Case{128, 2, 3, 5},
                         Case{1024, 4, 8, k32 - 100}, Case{1024, 3, 64, 0},
                         Case{32768, 2, 7, k16 - 64}, Case{128, 64, 1, k16 - 64}}) {
    publish_from_threads(at);
  }
  if (!is_long_run()) return;
  // Publishes ten million WQEs in total.
  for (const int threads : {2, 4, 8, 16, 32, 64}) {
    for (const std::uint32_t depth : {128u, 1024u}) {
      publish_from_threads({depth, threads, 1, k32 - 1000, 834'000 / depth});
    }
  }
}

TEST_CASE("WQEs are published once and in order while indexes pass 2^32, 2^56 and 2^62",
          "[Q1][req:3.5]") {
  for (const int bits : {32, 56, 62}) {
    publish_from_threads({128, 4, 3, (std::uint64_t{1} << bits) - 500});
  }
}

TEST_CASE("the 16 bits of a completion say what is complete, or too little where it is much newer",
          "[req:3.3]") {
  std::mt19937_64 random(Catch::rngSeed());
  INFO("seed " << Catch::rngSeed());
  for (int i = 0; i < 1'000'000; ++i) {
    const std::uint32_t depth = 128u << random() % 9;
    // Half of the cases lie around a wrap.
    const std::uint64_t wrap = std::uint64_t{1} << (random() % 2 == 0 ? 16 : 32);
    const std::uint64_t known = random() % 2 == 0 ? wrap - depth + random() % (2 * depth)
                                                  : random() % (std::uint64_t{1} << 40);
    const std::uint64_t ahead[] = {depth, random() % (depth + 1), random() % (1u << 20)};
    const std::uint64_t truth = known + ahead[random() % 3];
    const auto index = static_cast<std::uint16_t>((truth - 1) & 0xffffu);
    const std::uint64_t got = q::completed_wqebbs(known, index, depth);
    const bool is_right = truth <= known + depth ? got == truth : got >= known && got <= truth;
    if (!is_right) FAIL("depth " << depth << " known " << known << " truth " << truth);
  }
}

TEST_CASE("pieces make up the transfer and cross no chunk of either side", "[A6][req:3.2]") {
  std::mt19937_64 random(Catch::rngSeed());
  INFO("seed " << Catch::rngSeed());
  for (int round = 0; round < 20'000; ++round) {
    const auto make_region = [&](std::vector<std::uint32_t>& keys) {
      q::Region region;
      region.chunk_shift = 12 + static_cast<std::uint32_t>(random() % 20);
      region.bytes = 1 + random() % (std::uint64_t{40} << region.chunk_shift);
      region.skip = random() % (std::uint64_t{1} << region.chunk_shift);
      region.address = random() << 12;
      keys.resize(((region.skip + region.bytes - 1) >> region.chunk_shift) + 1);
      for (auto& key : keys) key = static_cast<std::uint32_t>(random());
      for (std::size_t i = 0; i < keys.size() && i < q::Region::kKeysInside; ++i) {
        region.keys[i] = keys[i];
      }
      if (keys.size() > q::Region::kKeysInside) {
        region.more_keys = keys.data() + q::Region::kKeysInside;
      }
      return region;
    };
    std::vector<std::uint32_t> lkeys, rkeys;
    const q::Region local = make_region(lkeys), remote = make_region(rkeys);
    const std::uint64_t local_offset = random() % local.bytes;
    const std::uint64_t remote_offset = random() % remote.bytes;
    const std::uint64_t most = std::min(local.bytes - local_offset, remote.bytes - remote_offset);
    const q::Transfer transfer{local, local_offset, remote, remote_offset, random() % (most + 1)};
    REQUIRE(transfer.is_inside());
    const auto check_side = [&](const q::Region& side, const std::vector<std::uint32_t>& keys,
                                std::uint64_t offset, std::uint32_t bytes) {
      const std::uint64_t first = (side.skip + offset) >> side.chunk_shift;
      const std::uint64_t last = (side.skip + offset + bytes - 1) >> side.chunk_shift;
      return first == last && side.key_at(offset) == keys.at(first);
    };
    std::uint64_t done = 0;
    while (done < transfer.bytes) {
      const std::uint32_t bytes = transfer.piece_at(done);
      REQUIRE(bytes > 0);
      REQUIRE(bytes <= q::kWqeBytesMost);
      REQUIRE(check_side(local, lkeys, local_offset + done, bytes));
      REQUIRE(check_side(remote, rkeys, remote_offset + done, bytes));
      done += bytes;
    }
    REQUIRE(done == transfer.bytes);
  }
}

TEST_CASE("operations that reach outside a region are refused and post nothing", "[req:3.23]") {
  QueueMemory memory(128);
  q::Region region;
  region.bytes = 4096;
  region.chunk_shift = 12;
  const q::Region none;
  const WaitControl control;
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  for (const q::Transfer& outside : {q::Transfer{region, 1, region, 0, 4096},
                                     {region, 0, region, 4096, 1},
                                     {region, kHuge, region, 0, 2},
                                     {region, 0, region, 8, kHuge},
                                     {none, 0, region, 0, 1},
                                     {region, 0, none, 0, 1}}) {
    CHECK(q::put(Thread(), memory.view, outside, control).outcome == QueueOutcome::refused);
  }
  CHECK(q::put_value(Thread(), memory.view, std::uint64_t{1}, region, 4089, control).outcome ==
        QueueOutcome::refused);
  CHECK(q::atomic<q::AtomicOp::add>(Thread(), memory.view, region, 4, std::uint64_t{1}, control)
            .outcome == QueueOutcome::refused);
  std::uint32_t old = 0;
  CHECK(q::fetch_atomic<q::AtomicOp::add>(memory.view, region, 2, std::uint32_t{1}, old, control) ==
        QueueOutcome::refused);
  CHECK(q::put_immediate(Thread(), memory.view, {region, 0, region, 0, 0}, 1, control).outcome ==
        QueueOutcome::refused);
  CHECK(q::put(Thread(), memory.view, {region, 4096, region, 4096, 0}, control).outcome ==
        QueueOutcome::done);
  CHECK(memory.indexes.reserved == 0);
  CHECK(memory.doorbell == 0);
}

TEST_CASE("an abort ends every wait, and nothing is published after it", "[req:3.6]") {
  QueueMemory memory(128);  // no NIC drains it
  std::uint32_t abort = 0;
  WaitControl control;
  control.abort = &abort;
  const auto publish_or_abort = [&](int thread) {
    if (thread < 4) return memory.publish(1000, 3, control) == QueueOutcome::aborted;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    device::Memory::store<device::Order::release>(&abort, 1u);
    return true;
  };
  CHECK(on_threads(5, publish_or_abort) == 5);
  CHECK(memory.rung() <= 128);
  const std::uint64_t doorbell = memory.doorbell;
  CHECK(memory.publish(1, 3, control) == QueueOutcome::aborted);
  CHECK(memory.doorbell == doorbell);
}

TEST_CASE("a dead NIC times out with the peer's name, and one that gives up ends all",
          "[req:3.6]") {
  QueueMemory memory(128);
  device::StallRecord stall{};
  WaitControl control;
  control.timeout_ns = 100'000'000;
  control.stall = &stall;
  WaitControl long_timeout;
  long_timeout.timeout_ns = 60'000'000'000;
  const auto begin = std::chrono::steady_clock::now();
  CHECK(on_threads(3, [&](int thread) {
          return memory.publish(1000, 1, thread == 0 ? control : long_timeout) ==
                 (thread == 0 ? QueueOutcome::timed_out : QueueOutcome::aborted);
        }) == 3);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
  CHECK(device::stalled_rank(stall.gave_up) == 7);
}

TEST_CASE("an error surfaces with its syndrome and opcode; what came before it is complete",
          "[req:3.6]") {
  for (const bool nic_word : {true, false}) {
    QueueMemory memory(128);
    if (!nic_word) memory.view.nic_error = nullptr;
    REQUIRE(memory.publish(10, 1) == QueueOutcome::done);
    // WQE 6 fails. If the NIC has an error word of its own, later WQEs have been flushed
    // since.
    const q::QueueError error{
        .syndrome = 0x13, .vendor_syndrome = 0x77, .opcode = 0x08, .index = 6};
    if (nic_word) memory.nic_error = q::encode_error(error);
    const std::uint8_t shown = nic_word ? q::kFlushed : error.syndrome;
    memory.completion.status = q::encode_syndromes({error.vendor_syndrome, shown});
    memory.show(q::CompletionKind::request_error, nic_word ? 9 : 6, error.opcode);
    CHECK(memory.wait(6) == QueueOutcome::done);
    CHECK(memory.wait(7) == QueueOutcome::failed);
    CHECK(q::wait_all(memory.view, WaitControl()) == QueueOutcome::failed);
    CHECK(memory.indexes.error == q::encode_error(error));
    // A publisher on a full ring must not wait for completions that will not come.
    CHECK(memory.publish(1000, 1) == QueueOutcome::failed);
  }
}

TEST_CASE("a completion that says only flushed does not make what came before it complete",
          "[req:3.6]") {
  QueueMemory memory(128);
  memory.view.nic_error = nullptr;
  REQUIRE(memory.publish(10, 1) == QueueOutcome::done);
  memory.show(q::CompletionKind::request, 2, 0x08);
  CHECK(memory.wait(3) == QueueOutcome::done);
  // WQE 5 failed. The CQE of WQE 9, flushed after it, has overwritten the CQE of WQE 5.
  memory.completion.status = q::encode_syndromes({0, q::kFlushed});
  memory.show(q::CompletionKind::request_error, 9, 0x08);
  CHECK(memory.wait(4) == QueueOutcome::failed);
  CHECK(memory.wait(9) == QueueOutcome::failed);
  CHECK(memory.wait(3) == QueueOutcome::done);
  CHECK(memory.indexes.completed == 3);
  CHECK(q::decode_error(memory.indexes.error).syndrome == q::kFlushed);
}

TEST_CASE("one doorbell covers all WQEs that were marked behind a gap",
          "[A8][Q2][req:3.3][req:3.5]") {
  QueueMemory memory(128);
  QueueDrain drain = memory.drain();
  std::vector<q::Reservation> all;
  for (int i = 0; i < 40; ++i) all.push_back(memory.write(3));
  for (std::size_t i = all.size(); i-- > 0;) {
    CHECK(drain.doorbells == 0);
    REQUIRE(memory.publish(all[i]) == QueueOutcome::done);
    drain.step(Thread());
  }
  CHECK(drain.doorbells == 1);
  CHECK(drain.consumed == 120);
  CHECK(drain.wrong_wqebbs == 0);
}

TEST_CASE("a queue that has timed out aborts its posts and rings no doorbell", "[req:3.6]") {
  for (const bool is_next : {true, false}) {
    INFO((is_next ? "next" : "marked"));
    QueueMemory memory(128);
    q::Reservation first = memory.write(32), second = memory.write(32), late;
    if (!is_next) {  // simulates another publisher in between
      first.is_next = false;
      REQUIRE(memory.publish(second) == QueueOutcome::done);
    }
    // The second reservation below finds no room, because no NIC drains the queue.
    WaitControl soon;
    soon.timeout_ns = 1'000'000;
    REQUIRE(q::reserve(Thread(), memory.view, 64, late, soon) == QueueOutcome::done);
    REQUIRE(q::reserve(Thread(), memory.view, 1, late, soon) == QueueOutcome::timed_out);
    CHECK(memory.publish(first) == QueueOutcome::aborted);
    CHECK(memory.publish(second) == QueueOutcome::aborted);
    CHECK(q::wait_all(memory.view, WaitControl()) == QueueOutcome::aborted);
    CHECK(memory.doorbell == 0);
    CHECK(memory.record[1] == 0);
  }
}

TEST_CASE("a publisher waits for no slower one before it, and no WQE is lost", "[req:3.5]") {
  QueueMemory memory(128);
  DrainThread nic(memory);
  q::Reservation slow = memory.write(2);
  CHECK(on_threads(1, [&](int) { return memory.publish(20, 2) == QueueOutcome::done; }) == 1);
  CHECK(device::Memory::load<device::Order::relaxed>(&memory.doorbell) == 0);
  REQUIRE(memory.publish(slow) == QueueOutcome::done);
  nic.stop_at(42);
}

}  // namespace oriel::test
