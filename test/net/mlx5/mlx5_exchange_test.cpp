// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_exchange.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "boot/link/sim_transport.hpp"
#include "net/mlx5/fake_verbs.hpp"
#include "net/mlx5/nic_mlx5.hpp"

// Exchange of queue handles in one agreed round (3.11, B2). Ranks run in one thread over a modelled
// network, each with an adapter of the model of verbs.

using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;

namespace {

constexpr int kRanks = 3;
constexpr std::size_t kQueuesEach = 2;

struct GroupRank {
  NicMlx5 nic;
  boot::Group group;
  std::vector<std::vector<Mlx5Queue>> queues;
};

struct GroupWorld {
  FakeVerbs verbs;
  Mlx5HostMemory memory;
  boot::SimNetwork network{kRanks, boot::SimModel(), 1};
  std::vector<GroupRank> ranks;

  GroupWorld() {
    verbs.adapters.clear();
    for (int i = 0; i < kRanks; ++i) {
      verbs.adapters.push_back(FakeVerbs::adapter("mlx5_" + std::to_string(i)));
      verbs.adapters.back().lid = static_cast<std::uint16_t>(7 + i);
    }
    for (int i = 0; i < kRanks; ++i) {
      NicMlx5::Options options;
      options.device.name = "mlx5_" + std::to_string(i);
      options.device.verbs = &verbs.library;
      ranks.push_back(
          {NicMlx5::open(options).value(), boot::Group(network.transport(i), {0, 1, 2}, i), {}});
    }
  }
  void make_queues() {
    for (std::size_t i = 0; i < kRanks; ++i) {
      ranks[i].queues.clear();
      for (std::size_t peer = 0; peer < kRanks; ++peer) {
        const std::vector<Mlx5Queue::Options> all(
            peer == i ? 0 : kQueuesEach, {.depth = 128,
                                          .peer = static_cast<std::int32_t>(peer),
                                          .psn = static_cast<std::uint32_t>(100 * i + peer)});
        ranks[i].queues.push_back(ranks[i].nic.create_queues(memory, all).value());
      }
    }
  }
  std::vector<Status> connect(std::vector<Status> made = std::vector<Status>(kRanks)) {
    std::vector<Task<Status>> tasks;
    for (std::size_t i = 0; i < kRanks; ++i) {
      tasks.push_back(connect_queues(ranks[i].group, std::move(made[i]), ranks[i].queues));
    }
    std::vector<Status> results;
    for (auto& result : network.run(std::move(tasks))) {
      REQUIRE(result);
      results.push_back(std::move(*result));
    }
    return results;
  }
  const FakeVerbs::QueuePair& pair(int adapter, const Mlx5Queue& queue) const {
    return verbs.queue_pairs.at(FakeVerbs::key_of(adapter, queue.number()));
  }
};

}  // namespace

TEST_CASE("all queues of a group are connected, the k-th to the k-th", "[req:3.11]") {
  GroupWorld world;
  world.make_queues();
  for (const Status& status : world.connect()) CHECK(status.ok());
  for (std::size_t i = 0; i < kRanks; ++i) {
    for (std::size_t peer = 0; peer < kRanks; ++peer) {
      for (std::size_t k = 0; k < world.ranks[i].queues[peer].size(); ++k) {
        const auto& pair = world.pair(static_cast<int>(i), world.ranks[i].queues[peer][k]);
        CHECK(pair.state == 3);
        CHECK(pair.remote == world.ranks[peer].queues[i][k].number());
        CHECK(pair.remote_lid == 7 + peer);
        CHECK(world.ranks[i].queues[peer][k].handle().psn == 100 * i + peer);
      }
    }
  }
  // The peer's first PSN is the one that this side expects.
  const Bytes& first = world.verbs.find("INIT2RTR_QP")->command;
  CHECK(first[24 + 0x4a8 / 8 + 2] == std::byte{100});
  CHECK(world.verbs.violations.empty());
}

TEST_CASE("one rank that fails makes all fail, and queues of earlier calls stay",
          "[req:3.11][B2]") {
  GroupWorld world;
  world.make_queues();
  for (const Status& status : world.connect()) REQUIRE(status.ok());
  std::vector<std::vector<std::vector<Mlx5Queue>>> earlier;
  for (GroupRank& rank : world.ranks) earlier.push_back(std::move(rank.queues));
  const std::size_t live = world.verbs.live();

  SECTION("in making queues") {
    world.make_queues();
    std::vector<Status> made(kRanks);
    made[1] = Error(ErrorCode::system, "no memory for a queue");
    for (const Status& status : world.connect(std::move(made))) {
      REQUIRE_FALSE(status.ok());
      CHECK(status.error().origin_rank() == 1);
      CHECK(status.error().to_string().find("no memory for a queue") != std::string::npos);
    }
  }
  SECTION("in connecting, whichever step of whichever queue") {
    const long steps = 3L * kRanks * (kRanks - 1) * kQueuesEach;
    for (long k = 1; k <= steps; ++k) {
      world.make_queues();
      world.verbs.fail_at = world.verbs.counted + k;
      int ok = 0;
      for (const Status& status : world.connect()) ok += status.ok() ? 1 : 0;
      INFO(k << ": " << world.verbs.failed);
      CHECK(ok == 0);
      for (GroupRank& rank : world.ranks) rank.queues.clear();
    }
  }
  SECTION("by having made another number of queues") {
    world.make_queues();
    world.ranks[2].queues[0].pop_back();
    for (const Status& status : world.connect()) {
      REQUIRE_FALSE(status.ok());
      CHECK(status.error().origin_rank() == 0);
    }
  }
  SECTION("by having made queues for another number of members") {
    world.make_queues();
    world.ranks[0].queues.pop_back();
    for (const Status& status : world.connect()) CHECK_FALSE(status.ok());
  }
  world.verbs.fail_at = 0;
  for (GroupRank& rank : world.ranks) rank.queues.clear();
  CHECK(world.verbs.live() == live);
  CHECK(world.verbs.violations.empty());
  for (std::size_t i = 0; i < kRanks; ++i) {
    for (const auto& queues : earlier[i]) {
      for (const Mlx5Queue& queue : queues)
        CHECK(world.pair(static_cast<int>(i), queue).state == 3);
    }
  }
}

TEST_CASE("a hostile list of handles is refused", "[req:3.23]") {
  Mlx5QueueHandle handle;
  handle.number = 5;
  handle.mtu = 5;
  handle.lid = 3;
  const std::vector<std::vector<Mlx5QueueHandle>> all = {{handle, handle}, {}, {handle}};
  const Bytes good = encode_handles(all);
  CHECK(parse_handles(good, 3, 0).value() == all[0]);
  CHECK(parse_handles(good, 3, 1).value().empty());
  CHECK(parse_handles(good, 3, 2).value() == all[2]);
  CHECK_FALSE(parse_handles(good, 2, 0).ok());
  CHECK_FALSE(parse_handles(good, 4, 0).ok());
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK_FALSE(parse_handles(ByteView(good).first(size), 3, 0).ok());
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  CHECK_FALSE(parse_handles(longer, 3, 0).ok());
  Bytes many = good;
  std::fill_n(many.begin() + 4, 4, std::byte{0xff});  // 2^32 - 1 queues
  const auto refused = parse_handles(many, 3, 0);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message().find("4294967295 queues") != std::string::npos);
  // A handle for another member is checked all the same.
  Bytes spoilt = good;
  spoilt[spoilt.size() - kMlx5HandleBytes + 4] = std::byte{0};
  CHECK_FALSE(parse_handles(spoilt, 3, 0).ok());
}
