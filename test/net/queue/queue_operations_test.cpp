// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "device/emulated_warp.hpp"
#include "net/soft/nic_pair.hpp"
#include "net/soft/random_ops.hpp"
#include "net/support/run_nic.hpp"
#include "support/long_run.hpp"

// The operations of kernels, executed by two NICs: over regions of many registrations, with more
// fetches than slots, and behind a fence.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;
using std::chrono::milliseconds;

namespace {

/// A side's memory in registrations of 2^shift bytes each, the first of which begins `skip` bytes
/// into its chunk; those whose keys do not fit into the region have them in `keys`.
dq::Region in_chunks(Side& side, std::vector<std::uint32_t>& keys, std::uint32_t shift,
                     std::uint64_t skip) {
  dq::Region made;
  made.address = side.region.address;
  made.bytes = side.region.bytes;
  made.chunk_shift = shift;
  made.skip = skip;
  const std::uint64_t chunk = std::uint64_t{1} << shift;
  auto* const base = reinterpret_cast<std::byte*>(side.memory.data());
  for (std::uint64_t from = 0, to = 0; from < made.bytes; from = to) {
    to = std::min(made.bytes, (from + skip) / chunk * chunk + chunk - skip);
    const auto key =
        side.nic.register_memory({made.address + from, to - from, base + from, kAllAccess});
    REQUIRE(key.ok());
    keys.push_back(key.value());
  }
  const std::size_t inside = std::min(keys.size(), std::size(made.keys));
  std::copy_n(keys.begin(), inside, made.keys);
  if (keys.size() > inside) made.more_keys = keys.data() + inside;
  return made;
}

std::byte* bytes_of(Side& side) {
  return reinterpret_cast<std::byte*>(side.memory.data());
}

dq::Region in_random_chunks(Side& side, std::vector<std::uint32_t>& keys, std::mt19937_64& random) {
  const auto shift = static_cast<std::uint32_t>(8 + random() % 6);
  // No word lies in two of them.
  return in_chunks(side, keys, shift, random() % (std::uint64_t{1} << shift) & ~std::uint64_t{7});
}

}  // namespace

TEST_CASE("operations over many registrations on both sides move the right bytes",
          "[A6][req:3.2]") {
  constexpr std::size_t kBytes = 65536;
  const std::uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 24; ++round) {
    SendQueue::Options options;
    options.gets_need_dump = round % 3 == 0;
    options.receives = 64;
    options.piece_bytes = round % 2 == 0 ? 700 : 256 << 10;
    options.depth = 128;  // fewer than the pieces of a transfer may be
    NicPair pair(options);
    REQUIRE(pair.back.post_receives(64).ok());
    std::vector<std::uint32_t> keys_here, keys_there;
    const OperationsPath path{pair.view(), in_random_chunks(pair.a, keys_here, random),
                              in_random_chunks(pair.b, keys_there, random), pair.control};
    Mirror mirror(random, kBytes);
    std::copy(mirror.a.begin(), mirror.a.end(), bytes_of(pair.a));
    std::copy(mirror.b.begin(), mirror.b.end(), bytes_of(pair.b));
    std::vector<RandomOp> ops = random_ops(random, kBytes, 20, 30'000), given = ops;
    for (RandomOp& op : ops) mirror.apply(op);
    REQUIRE(run_ops<Thread, DrivingMemory>(path, given.data(), 20) == QueueOutcome::done);
    CHECK(same_old_values(ops, given.data()));
    // One immediate comes with all pieces together.
    const std::uint64_t bytes = 1 + random() % 30'000;
    const auto posted = dq::put_immediate<Thread, DrivingMemory>(
        Thread(), path.queue, {path.local, 100, path.remote, 33'000, bytes}, 7, path.control);
    REQUIRE(pair.wait(posted) == QueueOutcome::done);
    std::copy_n(mirror.a.begin() + 100, bytes, mirror.b.begin() + 33'000);
    SendQueue::Immediate immediate;
    REQUIRE(pair.back.take_immediate(immediate));
    CHECK(immediate.value == 7);
    CHECK_FALSE(pair.back.take_immediate(immediate));
    CHECK(std::equal(mirror.a.begin(), mirror.a.end(), bytes_of(pair.a)));
    CHECK(std::equal(mirror.b.begin(), mirror.b.end(), bytes_of(pair.b)));
  }
}

TEST_CASE("what follows a fence begins once what came before it is done", "[req:3.1]") {
  for (const bool fenced : {false, true}) {
    ManualClock clock;
    NicPair pair({}, clock);
    NicFaults faults;
    faults.clock = &clock;
    faults.reads_behind_writes = milliseconds(3);
    set_faults(pair.b.nic, faults);
    pair.b.memory[0] = 1;
    pair.a.memory[5] = 2;
    const Thread thread;
    const auto read =
        dq::get<Thread, DrivingMemory>(thread, pair.view(), pair.transfer(72, 0, 8), pair.control);
    REQUIRE(read.outcome == QueueOutcome::done);
    if (fenced) {
      REQUIRE(dq::fence<Thread, DrivingMemory>(thread, pair.view(), pair.control).outcome ==
              QueueOutcome::done);
    }
    REQUIRE(
        dq::put<Thread, DrivingMemory>(thread, pair.view(), pair.transfer(40, 0, 8), pair.control)
            .outcome == QueueOutcome::done);
    for (int i = 0; i < 5; ++i) {
      pair.run();
      clock.advance(milliseconds(3));
    }
    pair.run();
    CHECK(pair.a.memory[9] == (fenced ? 1u : 2u));
  }
}

namespace {

/// Each thread fetches and adds `each` times, with fewer slots for old values than threads.
void check_tickets(std::size_t threads, std::uint32_t each, std::uint32_t slots) {
  INFO(threads << " threads, " << slots << " slots");
  SendQueue::Options options;
  options.fetch_slots = slots;
  options.depth = std::max(128u, slots);
  NicPair pair(options);
  NicThread near = run_nic(pair.a.nic);
  NicThread far = run_nic(pair.b.nic);
  OperationsPath path{pair.view(), pair.a.region, pair.b.region, {}};
  path.control.timeout_ns = 200'000'000'000;
  std::vector<std::uint64_t> tickets(threads * each);
  std::atomic<std::size_t> good = 0;
  {
    std::vector<std::jthread> running;
    running.reserve(threads);
    for (std::size_t i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        good += draw_tickets(path, 8, each, &tickets[i * each]) == QueueOutcome::done ? 1 : 0;
      });
    }
  }
  CHECK(near.stop(Deadline::after(std::chrono::seconds(5))).ok());
  CHECK(far.stop(Deadline::after(std::chrono::seconds(5))).ok());
  CHECK(good == threads);
  CHECK(is_permutation(tickets));
  CHECK(pair.b.memory[1] == tickets.size());
}

}  // namespace

// Threads of a GPU run the same body in gpu_nic_cuda_test.cpp.
TEST_CASE("more fetches at once than there are slots give each its own old value",
          "[A11][req:3.4]") {
  check_tickets(12, 150, 4);
  if (oriel::test::is_long_run()) check_tickets(4096, 1, 1024);
}

namespace {

/// Which of the indexes below `count` the peer has had as immediates; each once.
std::vector<bool> immediates_of(SendQueue& queue, std::size_t count) {
  std::vector<bool> seen(count);
  SendQueue::Immediate immediate;
  while (queue.take_immediate(immediate)) {
    REQUIRE(immediate.value < count);
    REQUIRE_FALSE(seen[immediate.value]);
    seen[immediate.value] = true;
  }
  return seen;
}

}  // namespace

// A GPU's threads run the same body in gpu_nic_cuda_test.cpp.
TEST_CASE("every operation does what it says, for threads, warps and CTAs at once", "[req:3.1]") {
  constexpr std::uint32_t kGroups = 6;
  for (const bool dump : {false, true}) {
    SendQueue::Options options;
    options.gets_need_dump = dump;
    options.fetch_slots = 4;
    options.depth = 128;
    options.receives = 8;
    NicPair pair(options);
    REQUIRE(pair.back.post_receives(8).ok());
    NicThread near = run_nic(pair.a.nic);
    NicThread far = run_nic(pair.b.nic);
    OperationsPath path{pair.view(), pair.a.region, pair.b.region, {}};
    path.control.timeout_ns = 100'000'000'000;
    std::array<std::uint32_t, kGroups> wrong{};
    {
      std::vector<std::jthread> threads;
      for (std::uint32_t i = 0; i < kGroups; ++i) {
        threads.emplace_back([&, i] {
          if (i % 3 == 0) wrong[i] = OperationsBody<Thread>(path, i).run();
          if (i % 3 == 1) wrong[i] = OperationsBody<device::Warp>(path, i).run();
          if (i % 3 == 2) wrong[i] = OperationsBody<device::Cta>(path, i).run();
        });
      }
    }
    CHECK(near.stop(Deadline::after(std::chrono::seconds(5))).ok());
    CHECK(far.stop(Deadline::after(std::chrono::seconds(5))).ok());
    for (const std::uint32_t steps : wrong) CHECK(steps == 0);
    CHECK(immediates_of(pair.back, kGroups) == std::vector<bool>(kGroups, true));
  }
}

TEST_CASE("every operation does what it says, for lanes of a warp that call together",
          "[req:3.1][req:3.2]") {
  const std::uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  using oriel::test::EmulatedLaneMemory;
  using oriel::test::EmulatedLanes;
  constexpr std::uint32_t kLanes = oriel::test::EmulatedWarp::kLanes;
  for (const bool dump : {false, true}) {
    SendQueue::Options options;
    options.gets_need_dump = dump;
    options.fetch_slots = kLanes;  // each takes one while it posts something else
    options.depth = 128;
    options.receives = kLanes;
    NicPair pair(options);
    REQUIRE(pair.back.post_receives(kLanes).ok());
    NicThread near = run_nic(pair.a.nic);
    NicThread far = run_nic(pair.b.nic);
    OperationsPath path{pair.view(), pair.a.region, pair.b.region, {}};
    path.control.timeout_ns = 60'000'000'000;
    std::array<std::uint32_t, kLanes> wrong{};
    oriel::test::EmulatedWarp warp(seed);
    warp.run([&](std::uint32_t lane) {
      wrong[lane] = OperationsBody<EmulatedLanes, EmulatedLaneMemory>(path, lane).run();
    });
    CHECK(near.stop(Deadline::after(std::chrono::seconds(5))).ok());
    CHECK(far.stop(Deadline::after(std::chrono::seconds(5))).ok());
    for (const std::uint32_t steps : wrong) CHECK(steps == 0);
    CHECK(immediates_of(pair.back, kLanes) == std::vector<bool>(kLanes, true));
  }
}

TEST_CASE("as many fetches as there are slots are under way at once, and end in any order",
          "[req:3.1]") {
  SendQueue::Options options;
  options.fetch_slots = 4;
  NicPair pair(options);
  const Thread self;
  std::vector<dq::Fetch<std::uint32_t>> fetches;
  for (std::uint32_t i = 0; i < 4; ++i) {
    // Nobody drives a NIC here: none of them waits.
    fetches.push_back(dq::begin_fetch<dq::AtomicOp::add>(self, pair.view(), pair.b.region, 4,
                                                         std::uint32_t{10}, pair.control));
    REQUIRE(fetches.back().outcome == QueueOutcome::done);
  }
  for (const std::uint32_t i : {3u, 0u, 2u, 1u}) {
    std::uint32_t old = 99;
    CHECK(dq::end_fetch<Thread, std::uint32_t, DrivingMemory>(self, pair.view(), fetches[i], old,
                                                              pair.control) == QueueOutcome::done);
    CHECK(old == i * 10);
  }
  std::uint32_t old = 99;
  const auto refused = dq::begin_fetch<dq::AtomicOp::add>(self, pair.view(), pair.b.region, 2,
                                                          std::uint32_t{10}, pair.control);
  CHECK(refused.outcome == QueueOutcome::refused);
  CHECK(dq::end_fetch(self, pair.view(), refused, old, pair.control) == QueueOutcome::refused);
  CHECK(old == 99);
  // One more than there are slots waits for one of them.
  for (int i = 0; i < 4; ++i) {
    fetches[0] = dq::begin_fetch<dq::AtomicOp::add>(self, pair.view(), pair.b.region, 4,
                                                    std::uint32_t{10}, pair.control);
    REQUIRE(fetches[0].outcome == QueueOutcome::done);
  }
  device::WaitControl soon;
  soon.timeout_ns = 1'000'000;
  const auto late = dq::begin_fetch<dq::AtomicOp::add, Thread, std::uint32_t, DrivingMemory>(
      self, pair.view(), pair.b.region, 4, 10, soon);
  CHECK(late.outcome == QueueOutcome::timed_out);
}
