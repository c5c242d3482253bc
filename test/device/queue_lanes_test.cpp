// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <cstdint>
#include <random>

#include <catch2/catch.hpp>

#include "device/emulated_warp.hpp"
#include "device/queue_memory.hpp"
#include "support/sanitized.hpp"

/// Tests of the group Lanes: the lanes of an emulated warp post at the same time. The number of
/// WQEs may differ from lane to lane.
namespace oriel::test {
namespace {

namespace q = device::queue;
using device::WaitControl;
using q::QueueOutcome;

constexpr std::uint32_t kLanes = EmulatedWarp::kLanes;

WaitControl lane_control() {
  WaitControl control;
  control.timeout_ns = 60'000'000'000;
  return control;
}

/// Number of WQEBBs of each lane in each round.
using LaneWqebbs = std::array<std::uint32_t, kLanes>;

/// Has each lane publish its WQEBBs `rounds` times; lane 0 does so `more` times in addition.
void publish_by_lanes(const LaneWqebbs& wqebbs, std::uint32_t rounds, std::uint32_t more,
                      std::uint64_t seed) {
  QueueMemory memory(256, (1u << 16) - 100);
  const std::uint64_t base = memory.indexes.reserved;
  DrainThread nic(memory);
  std::atomic<std::uint32_t> done = 0;
  EmulatedWarp warp(seed);
  warp.run([&](std::uint32_t lane) {
    done += publish_marked<EmulatedLanes, EmulatedLaneMemory>(
                EmulatedLanes(), memory.view, rounds + (lane == 0 ? more : 0), wqebbs[lane],
                lane_control()) == QueueOutcome::done;
  });
  CHECK(done == kLanes);
  std::uint64_t all = wqebbs[0] * std::uint64_t{more};
  for (const std::uint32_t each : wqebbs) all += std::uint64_t{rounds} * each;
  CHECK(memory.indexes.reserved == base + all);
  nic.stop_at(base + all);
}

}  // namespace

TEST_CASE("lanes that need different numbers of WQEBBs get WQEBBs of their own",
          "[req:3.2][req:3.5]") {
  const std::uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  LaneWqebbs wqebbs;
  // Gives one lane a number of WQEBBs of its own. Its index equals each other lane's WQEBB count.
  for (const std::uint32_t others : {1u, 2u}) {
    wqebbs.fill(others);
    wqebbs[others] = 3;
    publish_by_lanes(wqebbs, 4, 0, random());
  }
  // Draws the numbers at random. With a small limit many lanes share a number; with the largest
  // limit most lanes go alone.
  for (const std::uint32_t most : {2u, 3u, 8u, q::kReservationMost}) {
    for (auto& each : wqebbs) each = 1 + static_cast<std::uint32_t>(random()) % most;
    publish_by_lanes(wqebbs, repeats(6u, 3u), 2, random());
  }
}

TEST_CASE("lanes that put lengths of one to three WQEs post each piece once", "[req:3.2]") {
  QueueMemory memory(128);
  q::Region local;
  local.address = std::uint64_t{1} << 40;
  local.bytes = std::uint64_t{1} << 40;
  const q::Region& remote = local;
  const auto bytes_of = [](std::uint32_t lane) {
    return lane == 1 ? std::uint64_t{5} << 29 : std::uint64_t{4096} + lane;
  };
  std::array<q::Posted, kLanes> posted;
  EmulatedWarp warp(7);
  warp.run([&](std::uint32_t lane) {
    const std::uint64_t at = std::uint64_t{lane} << 34;
    posted[lane] = q::put<EmulatedLanes, EmulatedLaneMemory>(
        EmulatedLanes(), memory.view, {local, at, remote, at, bytes_of(lane)}, lane_control());
  });
  CHECK(memory.indexes.reserved == kLanes - 1 + 3);
  CHECK(memory.rung() == kLanes - 1 + 3);
  // Sums the bytes that the WQEs move for each lane.
  std::array<std::uint64_t, kLanes> moved{};
  for (std::uint64_t i = 0; i < kLanes - 1 + 3; ++i) {
    const auto& parts = memory.ring[i].part;
    const std::uint64_t there =
        std::uint64_t{q::big_endian(parts[1].word[0])} << 32 | q::big_endian(parts[1].word[1]);
    CHECK((q::big_endian(parts[0].word[0]) >> 8 & 0xffffu) == i);
    const std::uint64_t lane = (there - local.address) >> 34;
    REQUIRE(lane < kLanes);
    moved[lane] += q::big_endian(parts[2].word[0]);
  }
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    INFO("lane " << lane);
    CHECK(posted[lane].outcome == QueueOutcome::done);
    CHECK(moved[lane] == bytes_of(lane));
  }
}

}  // namespace oriel::test
