// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

#include "device/emulated_warp.hpp"
#include "net/soft/random_ops.hpp"
#include "net/soft/running_pair.hpp"
#include "support/long_run.hpp"
#include "support/on_threads.hpp"

// Device-side operations executed by two NICs: over regions of many registrations, with more
// fetches than slots, and behind a fence.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;
using oriel::test::on_threads;
using std::chrono::milliseconds;

namespace {

/// Registers a side's memory in chunks of 2^shift bytes each, the first of which begins `skip`
/// bytes into its chunk. `keys` owns the keys; those that do not fit into the region are referred
/// to there.
dq::Region in_chunks(Side& side, std::vector<std::uint32_t>& keys, std::uint32_t shift,
                     std::uint64_t skip) {
  dq::Region made;
  made.address = side.region.address;
  made.bytes = side.region.bytes;
  made.chunk_shift = shift;
  made.skip = skip;
  const std::uint64_t chunk = std::uint64_t{1} << shift;
  std::byte* const base = side.bytes();
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

dq::Region in_random_chunks(Side& side, std::vector<std::uint32_t>& keys, std::mt19937_64& random) {
  const auto shift = static_cast<std::uint32_t>(8 + random() % 6);
  // Keeps each 8-byte word within one chunk.
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
    options.depth = 128;  // may be fewer than the pieces of a transfer
    NicPair pair(options);
    REQUIRE(post_receives(pair.back, 64));
    std::vector<std::uint32_t> keys_here, keys_there;
    const OperationsPath path{pair.view(), in_random_chunks(pair.a, keys_here, random),
                              in_random_chunks(pair.b, keys_there, random), pair.control};
    Mirror mirror(random, kBytes);
    std::copy(mirror.a.begin(), mirror.a.end(), pair.a.bytes());
    std::copy(mirror.b.begin(), mirror.b.end(), pair.b.bytes());
    std::vector<RandomOp> ops = random_ops(random, kBytes, 20, 30'000), given = ops;
    for (RandomOp& op : ops) mirror.apply(op);
    REQUIRE(run_ops<Thread, DrivingMemory>(path, given.data(), 20) == QueueOutcome::done);
    CHECK(same_old_values(ops, given.data()));
    // One immediate arrives for all pieces together.
    const std::uint64_t bytes = 1 + random() % 30'000;
    REQUIRE(pair.wait(pair.put_immediate({path.local, 100, path.remote, 33'000, bytes}, 7)) ==
            QueueOutcome::done);
    std::copy_n(mirror.a.begin() + 100, bytes, mirror.b.begin() + 33'000);
    Immediate immediate;
    REQUIRE(take_immediate(pair.back, immediate));
    CHECK(immediate.value == 7);
    CHECK_FALSE(take_immediate(pair.back, immediate));
    CHECK(std::equal(mirror.a.begin(), mirror.a.end(), pair.a.bytes()));
    CHECK(std::equal(mirror.b.begin(), mirror.b.end(), pair.b.bytes()));
  }
}

TEST_CASE("operations behind a fence start once the operations before it are complete",
          "[req:3.1]") {
  const bool fenced = GENERATE(false, true);
  ManualClock clock;
  NicPair pair({}, clock);
  delay_responses(pair.b.nic, clock, milliseconds(3));
  pair.b.memory[0] = 1;
  pair.a.memory[5] = 2;
  REQUIRE(pair.get(72, 0, 8).outcome == QueueOutcome::done);
  if (fenced) {
    REQUIRE(dq::fence(Thread(), pair.view(), pair.control).outcome == QueueOutcome::done);
  }
  REQUIRE(pair.put(40, 0, 8).outcome == QueueOutcome::done);
  pair.run();
  CHECK(pair.b.memory[0] == (fenced ? 1u : 2u));
  clock.advance(milliseconds(3));
  pair.run();
  CHECK(pair.a.memory[9] == 1);
  CHECK(pair.b.memory[0] == 2);
}

namespace {

/// Fetches and adds `each` times in each thread. Usually has fewer slots for old values than
/// threads.
void check_tickets(std::size_t threads, std::uint32_t each, std::uint32_t slots) {
  INFO(threads << " threads, " << slots << " slots");
  RunningPair pair({.depth = std::max(128u, slots), .fetch_slots = slots});
  const OperationsPath path = pair.path();
  std::vector<std::uint64_t> tickets(threads * each);
  const auto draw = [&](int thread) {
    return draw_tickets(path, 8, each, &tickets[static_cast<std::size_t>(thread) * each]) ==
           QueueOutcome::done;
  };
  CHECK(on_threads(static_cast<int>(threads), draw) == static_cast<int>(threads));
  CHECK(is_permutation(tickets));
  CHECK(pair.b.memory[1] == tickets.size());
}

/// Runs all operations in `count` groups by `run(path, wrong)`. CHECKs that no step failed, and
/// that the peer has received each group's immediate.
template <class Run>
void check_operations(std::uint32_t count, std::uint32_t fetch_slots, const Run& run) {
  for (const bool dump : {false, true}) {
    RunningPair pair({.depth = 128, .gets_need_dump = dump, .fetch_slots = fetch_slots},
                     {.receives = 32});
    REQUIRE(post_receives(pair.back, count));
    std::vector<std::uint32_t> wrong(count);
    run(pair.path(), wrong);
    CHECK(wrong == std::vector<std::uint32_t>(count));
    std::set<std::uint32_t> immediates;
    Immediate immediate;
    while (take_immediate(pair.back, immediate)) CHECK(immediates.insert(immediate.value).second);
    CHECK(immediates.size() == count);
    CHECK(*immediates.rbegin() == count - 1);
  }
}

}  // namespace

// Threads of a GPU run the same bodies in gpu_nic_cuda_test.cpp.
TEST_CASE("more fetches at once than there are slots give each its own old value",
          "[A11][req:3.4]") {
  check_tickets(12, 150, 4);
  if (oriel::test::is_long_run()) check_tickets(4096, 1, 1024);
}

TEST_CASE("every operation does what it says, for threads, warps and CTAs at once", "[req:3.1]") {
  check_operations(6, 4, [](const OperationsPath& path, std::vector<std::uint32_t>& wrong) {
    on_threads(6, [&](int thread) {
      const auto i = static_cast<std::uint32_t>(thread);
      if (i % 3 == 0) wrong[i] = OperationsBody<Thread>(path, i).run();
      if (i % 3 == 1) wrong[i] = OperationsBody<device::Warp>(path, i).run();
      if (i % 3 == 2) wrong[i] = OperationsBody<device::Cta>(path, i).run();
      return true;
    });
  });
}

TEST_CASE("every operation does what it says, for lanes of a warp that call together",
          "[req:3.1][req:3.2]") {
  const std::uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  using oriel::test::EmulatedWarp;
  // Each lane holds a slot while it posts another operation.
  constexpr std::uint32_t kLanes = EmulatedWarp::kLanes;
  check_operations(kLanes, kLanes, [&](const OperationsPath& path, auto& wrong) {
    EmulatedWarp warp(seed);
    warp.run([&](std::uint32_t lane) {
      using oriel::test::EmulatedLaneMemory;
      using oriel::test::EmulatedLanes;
      wrong[lane] = OperationsBody<EmulatedLanes, EmulatedLaneMemory>(path, lane).run();
    });
  });
}

TEST_CASE("one fetching atomic per fetch slot is outstanding at once, and they end in any order",
          "[req:3.1]") {
  NicPair pair({.fetch_slots = 4});
  const auto begin = [&](std::uint64_t at) {  // drives NICs only while it waits
    return dq::begin_fetch<dq::AtomicOp::add, Thread, std::uint32_t, DrivingMemory>(
        Thread(), pair.view(), pair.b.region, at, 10, pair.control);
  };
  std::uint32_t old = 99;
  const auto end = [&](const dq::Fetch<std::uint32_t>& fetch) {
    return dq::end_fetch<Thread, std::uint32_t, DrivingMemory>(Thread(), pair.view(), fetch, old,
                                                               pair.control);
  };
  const dq::Fetch<std::uint32_t> fetches[] = {begin(4), begin(4), begin(4), begin(4)};
  for (const std::uint32_t i : {3u, 0u, 2u, 1u}) {
    REQUIRE(fetches[i].outcome == QueueOutcome::done);
    CHECK(end(fetches[i]) == QueueOutcome::done);
    CHECK(old == i * 10);
  }
  old = 99;
  CHECK(end(begin(2)) == QueueOutcome::refused);
  CHECK(old == 99);
  // One fetch more than there are slots waits for a slot.
  for (int i = 0; i < 4; ++i) REQUIRE(begin(4).outcome == QueueOutcome::done);
  pair.control.timeout_ns = 1'000'000;
  CHECK(begin(4).outcome == QueueOutcome::timed_out);
}
