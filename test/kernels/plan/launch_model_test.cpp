// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/launch_model.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/plan/choice.hpp"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/kernel_set.hpp"
#include "kernels/plan/layout.hpp"
#include "kernels/plan/planned_launches.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Runs plans on a model of GPUs, in order to find deadlocks before the plans run on a GPU.
namespace {

using namespace oriel;
using namespace oriel::kernels;
using test::LaunchModel;

constexpr int kCap = 4;  // most CTAs of one launch

/// Returns the facts of one rank. Teams have `team` ranks each, and the last may have fewer; 0
/// makes one team of all ranks.
ExchangeFacts facts_of(int rank, int ranks, int most_messages = kMostMessages, int team = 0) {
  if (team == 0) team = ranks;
  ExchangeFacts facts;
  facts.most_messages = most_messages;
  facts.most_ctas = kCap;
  facts.world_size = ranks;
  facts.memory.world_rank = rank;
  facts.memory.rank = rank % team;
  const int first = rank - rank % team;
  facts.memory.ranks = std::min(team, ranks - first);
  facts.memory.channels = make_channel_layout(Backend::cuda, facts.memory.ranks, kCap, 0, 1 << 20);
  // Makes many messages long enough to wait for an offer, and some short enough for packets.
  ChannelLayout& channels = facts.memory.channels;
  channels.least_direct_bytes = 2 * std::uint64_t{channels.slot_bytes};
  channels.most_packet_bytes = channels.slot_bytes;
  channels.packet_bytes = channels.slot_bytes / 8;
  channels.packet_depth = ranks % 2 == 0 ? 2 : 4;  // where memory is short, and by default
  facts.memory.far_channels = make_far_channel_layout(Backend::cuda, ranks, 1 << 20, 1 << 20);
  for (int other = 0; other < ranks; ++other) {
    const bool near = other - other % team == first;
    facts.team_index.push_back(static_cast<std::int16_t>(near ? other % team : -1));
  }
  return facts;
}

/// One message of a group; a vector of them is in the order of the calls.
struct Parcel {
  int from;
  int to;
  std::uint64_t bytes;
};

std::vector<PointToPoint> calls_of(const std::vector<Parcel>& parcels, int rank,
                                   std::byte* data = nullptr) {
  std::vector<PointToPoint> calls;
  for (const Parcel& parcel : parcels) {
    if (parcel.from == rank) calls.push_back({true, data, parcel.bytes, parcel.to});
    if (parcel.to == rank) calls.push_back({false, data, parcel.bytes, parcel.from});
  }
  return calls;
}

/// Puts all ranks on one GPU. Returns an address in the rank's slot.
std::byte* put_on_one_gpu(ExchangeFacts& facts) {
  facts.on_one_gpu = true;
  facts.memory.stride_4g = 1;
  facts.memory.flat_base = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
  return facts.memory.flat_base + (static_cast<std::uint64_t>(facts.memory.rank) << 32);
}

void enqueue(LaunchModel& model, int communicator, const Exchange& exchange,
             const ExchangeFacts& facts, int stream = LaunchModel::kNoStream) {
  for (const auto& launch : test::launches_of(exchange, facts)) {
    model.enqueue(facts.memory.world_rank, communicator, launch, stream);
  }
}

std::uint64_t size_of_some_slots(std::mt19937_64& random, const ChannelLayout& channels) {
  return 1 + random() % (3 * std::uint64_t{channels.depth} * channels.slot_bytes);
}

std::vector<Parcel> random_parcels(int ranks, std::mt19937_64& random) {
  const ChannelLayout channels = facts_of(0, ranks).memory.channels;
  std::vector<Parcel> parcels(1 + random() % static_cast<unsigned>(3 * ranks));
  for (Parcel& parcel : parcels) {
    parcel.from = static_cast<int>(random() % static_cast<unsigned>(ranks));
    parcel.to = static_cast<int>(random() % static_cast<unsigned>(ranks));
    parcel.bytes = size_of_some_slots(random, channels);
  }
  return parcels;
}

RankCollective random_collective(int ranks, bool one_team, std::mt19937_64& random) {
  RankCollective call;
  do {
    call.collective = static_cast<Collective>(1 + random() % (kCollectiveCount - 1));
  } while (reduces(call.collective) || (!one_team && call.collective == Collective::all_gather));
  call.ranks = ranks;
  call.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
  call.count = size_of_some_slots(random, facts_of(0, ranks).memory.channels);
  // Makes some broadcasts long. From 2 MiB on they have several parts, which follow each other
  // through the teams.
  const bool is_long = call.collective == Collective::broadcast && random() % 4 == 0;
  if (is_long) call.count += random() % (4 << 20);
  call.type = DataType::u8;
  return call;
}

/// Returns a call that runs in steps: of all ranks if they are one team, else among teams. One team
/// has the CTAs of its plan. Among teams, every call may have all CTAs.
LaunchModel::TeamCall random_team_call(int ranks, bool one_team, std::mt19937_64& random) {
  LaunchModel::TeamCall call;
  for (int rank = 0; rank < ranks; ++rank) call.members.push_back(rank);
  call.steps = 1 + random() % 8;
  call.ctas = kCap;
  call.lead = 1 + random() % 3;
  if (!one_team) return call;
  const ScratchLayout layout = make_scratch_layout(Backend::cuda, ranks, kCap, 16 << 20);
  const std::uint64_t count = 1 + (random() >> (32 + random() % 32));
  const bool scatters = random() % 2 == 0;
  const auto choose = scatters ? choose_scatter_plan : choose_plan;
  const Plan plan = choose(ChoiceTable::built_in(), {}, Backend::cuda, layout, DataType::f32,
                           scatters ? count * static_cast<unsigned>(ranks) : count)
                        .value();
  call.ctas = plan.ctas;
  if (plan.algorithm == Algorithm::stream) call.lead = plan.lead;
  return call;
}

std::vector<std::vector<int>> teams_of(int ranks, int team) {
  std::vector<std::vector<int>> teams;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank % team == 0) teams.emplace_back();
    teams.back().push_back(rank);
  }
  return teams;
}

/// Runs random calls of several communicators; returns whether all end. Each rank makes the calls
/// in its own order, or all ranks make them in one order on one stream.
bool run_random(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const int ranks = 2 + static_cast<int>(random() % (random() % 4 == 0 ? 71 : 7));
  const int communicators = 1 + static_cast<int>(random() % 4);
  // Draws all-gathers inside one team only. Such a team has at most as many ranks as one launch has
  // warps.
  const bool one_team = random() % 2 == 0 && ranks <= kCap * kMaxWarps;
  const int team = one_team ? ranks : 1 + static_cast<int>(random() % 8);
  // The bound that the design promises: each call has all its CTAs and the one of signatures.
  const int places = (kCap + 1) * communicators;
  LaunchModel model(ranks, places, random());
  std::vector<std::vector<Parcel>> groups;
  std::vector<RankCollective> collectives;
  std::vector<LaunchModel::TeamCall> team_calls;
  const int calls = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < calls * communicators; ++i) {
    groups.push_back(random_parcels(ranks, random));
    collectives.push_back(random_collective(ranks, one_team, random));
    team_calls.push_back(random_team_call(ranks, one_team, random));
  }
  const int stream = random() % 4 == 0 ? 0 : LaunchModel::kNoStream;
  const bool on_one_gpu = one_team && random() % 2 == 0;
  std::vector<int> turns;
  for (int c = 0; c < communicators; ++c) turns.insert(turns.end(), calls, c);
  for (int rank = 0; rank < ranks; ++rank) {
    const bool has_own_order = rank == 0 || stream == LaunchModel::kNoStream;
    if (has_own_order) std::shuffle(turns.begin(), turns.end(), random);
    std::vector<int> made(static_cast<std::size_t>(communicators));
    for (const int c : turns) {
      const int most = 2 + static_cast<int>(random() % 30);
      const auto call = static_cast<std::size_t>(c * calls + made[static_cast<std::size_t>(c)]++);
      if (call % 2 == 0) model.enqueue(rank, c, team_calls[call], stream);
      RankCollective collective = collectives[call];
      collective.rank = rank;
      ExchangeFacts facts = facts_of(rank, ranks, kMostMessages, team);
      std::byte* const slot = on_one_gpu ? put_on_one_gpu(facts) : nullptr;
      // Each rank decides whether its buffers are registered.
      if (random() % 2 == 0) collective.input = collective.output = slot;
      if (!one_team && collective.collective == Collective::broadcast) {
        for (const Exchange& part : broadcast_among_teams(collective, teams_of(ranks, team))) {
          enqueue(model, c, part, facts, stream);
        }
      } else {
        enqueue(model, c, test::exchange_of(collective), facts, stream);
      }
      const auto group =
          test::exchange_of(calls_of(groups[call], rank, random() % 2 == 0 ? slot : nullptr), rank);
      facts.most_messages = most;
      enqueue(model, c, group.value(), facts, stream);
    }
  }
  return model.run();
}

}  // namespace

TEST_CASE(
    "two communicators in crossed order hang where their CTAs do not fit together, and end "
    "where they do",
    "[req:5.1][D1]") {
  for (const int places : {kCap, 2 * kCap}) {
    bool ended = true;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      LaunchModel model(2, places, seed);
      const std::vector<Parcel> both = {{0, 1, 1 << 20}, {1, 0, 1 << 20}};
      for (int rank = 0; rank < 2; ++rank) {
        for (const int turn : {0, 1}) {
          const auto exchange = test::exchange_of(calls_of(both, rank), rank);
          enqueue(model, rank == 0 ? turn : 1 - turn, exchange.value(), facts_of(rank, 2));
        }
      }
      ended = model.run() && ended;
    }
    CAPTURE(places);
    CHECK(ended == (places == 2 * kCap));
  }
}

TEST_CASE("two all-reduces in crossed order hang where their CTAs do not fit together",
          "[req:5.1][D1]") {
  for (const int places : {kCap + 1, 2 * (kCap + 1)}) {
    bool ended = true;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      LaunchModel model(2, places, seed);
      for (int rank = 0; rank < 2; ++rank) {
        for (const int turn : {0, 1}) {
          const LaunchModel::TeamCall call{{0, 1}, kCap, 3};
          model.enqueue(rank, rank == 0 ? turn : 1 - turn, call);
        }
      }
      ended = model.run() && ended;
    }
    CAPTURE(places);
    CHECK(ended == (places == 2 * (kCap + 1)));
  }
}

TEST_CASE("an all-reduce and an exchange of one communicator hang if ranks differ in their order",
          "[req:5.1][req:5.2]") {
  for (const bool crossed : {true, false}) {
    LaunchModel model(2, 4 * kCap, 1);
    const std::vector<Parcel> both = {{0, 1, 1 << 20}, {1, 0, 1 << 20}};
    for (int rank = 0; rank < 2; ++rank) {
      const auto exchange = test::exchange_of(calls_of(both, rank), rank);
      const LaunchModel::TeamCall call{{0, 1}, kCap, 3};
      const bool is_late = crossed && rank == 1;
      if (!is_late) model.enqueue(rank, 0, call);
      enqueue(model, 0, exchange.value(), facts_of(rank, 2));
      if (is_late) model.enqueue(rank, 0, call);
    }
    CHECK(model.run() == !crossed);
  }
}

// Seen on two H200. The first communicator had a message of one rank only, so each rank named
// another communicator first in the group.
TEST_CASE(
    "exchanges of two communicators on one stream hang in crossed order, and end in one that all "
    "ranks share",
    "[req:5.1][req:5.2]") {
  for (const bool crossed : {true, false}) {
    LaunchModel model(2, 2 * kCap, 1);
    const std::vector<Parcel> both = {{0, 1, 1 << 20}, {1, 0, 1 << 20}};
    for (int rank = 0; rank < 2; ++rank) {
      for (const int turn : {0, 1}) {
        const int communicator = crossed && rank == 1 ? 1 - turn : turn;
        const auto exchange = test::exchange_of(calls_of(both, rank), rank);
        enqueue(model, communicator, exchange.value(), facts_of(rank, 2), 0);
      }
    }
    CHECK(model.run() == !crossed);
  }
}

TEST_CASE("a launch has the form that all its messages have in common", "[req:5.9]") {
  const ExchangeFacts facts = facts_of(0, 4, kMostMessages, 2);
  const std::uint64_t in_packets = facts.memory.channels.most_packet_bytes;
  const auto form_of = [&](const std::vector<Parcel>& parcels) {
    const auto exchange = test::exchange_of(calls_of(parcels, 0), 0);
    return test::launches_of(exchange.value(), facts)[0].form;
  };
  CHECK(form_of({{0, 1, 8}, {1, 0, in_packets}}) == ExchangeForm::packets);
  CHECK(form_of({{0, 1, in_packets + 1}, {1, 0, 8}}) == ExchangeForm::wide);
  CHECK(form_of({{0, 1, 8}, {2, 0, 8}}) == ExchangeForm::any);
  CHECK(form_of({{0, 2, 8}, {1, 0, in_packets + 1}}) == ExchangeForm::any);
}

TEST_CASE(
    "streams have several warps where a launch has few streams and leaves warps to its copies",
    "[req:5.9]") {
  const ExchangeFacts facts = facts_of(0, 4);
  std::byte memory[2] = {};
  const auto warps_of = [&](const std::vector<Parcel>& parcels, bool copies = false) {
    Exchange exchange = test::exchange_of(calls_of(parcels, 0), 0).value();
    if (copies) exchange.copies.push_back({&memory[0], &memory[1], 1});
    const auto launches = test::launches_of(exchange, facts);
    REQUIRE(launches.size() == 1);
    CHECK((launches[0].form == ExchangeForm::wide) == (launches[0].stream_warps > 1));
    return launches[0].stream_warps;
  };
  const std::uint64_t bytes = 1 << 20;  // on every channel to the peer
  // A peer has a sixth of the warps for each direction.
  CHECK(warps_of({{0, 1, bytes}}) == 4);
  CHECK(warps_of({{0, 1, bytes}, {3, 0, bytes}}) == 2);
  CHECK(warps_of({{0, 1, bytes}, {0, 2, bytes}, {0, 3, bytes}}) == 2);
  CHECK(warps_of({{0, 1, bytes}, {0, 2, bytes}, {0, 3, bytes}}, true) == 1);
  CHECK(warps_of({{1, 0, bytes}, {2, 0, bytes}, {3, 0, bytes}}, true) == 2);
  CHECK(warps_of({{0, 1, facts.memory.channels.most_packet_bytes}}) == 1);
}

TEST_CASE("some CTAs only send, where a launch also makes long copies", "[req:5.9]") {
  ExchangeFacts facts = facts_of(0, 4);
  facts.most_ctas = 32;
  facts.memory.stride_4g = 1;
  auto* const slot = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
  facts.memory.flat_base = slot;
  constexpr std::uint64_t kBytes = 64 << 20;
  const auto launch_of = [&](int sends, int receives, std::uint64_t copied, std::byte* received) {
    Exchange exchange;
    for (int i = 0; i < sends; ++i) exchange.sends.push_back({nullptr, kBytes, 1 + i, 0});
    for (int i = receives; i > 0; --i) {
      exchange.receives.push_back({received, kBytes, 3 - i + 1, 0});
    }
    if (copied > 0) exchange.copies.push_back({slot, slot + copied, copied});
    const LaunchList launches = test::launches_of(exchange, facts);
    REQUIRE(launches.size() == 1);
    const ExchangeArguments& launch = launches[0];
    const std::int32_t groups = kMaxWarps / launch.stream_warps;
    const std::int32_t senders = launch.run[launch.send_runs].stream;
    if (launch.send_ctas > 0) {  // each stream has a group
      CHECK(launch.send_ctas * groups >= senders);
      CHECK((launch.ctas - launch.send_ctas) * groups >= launch.run[launch.runs].stream - senders);
    }
    return std::pair<int, int>(launch.ctas, launch.send_ctas);
  };
  CHECK(launch_of(1, 0, 0, nullptr).second == 0);
  CHECK(launch_of(1, 1, 0, nullptr).second == 0);
  CHECK(launch_of(0, 3, kBytes, nullptr).second == 0);
  CHECK(launch_of(3, 3, 1 << 20, nullptr).second == 0);
  CHECK(launch_of(3, 0, kBytes, nullptr) == std::pair(32, 29));  // the root of a scatter
  CHECK(launch_of(3, 3, kBytes, nullptr).second > 0);
  // Data that arrive in windows are no work of this rank.
  CHECK(launch_of(3, 3, kBytes, slot).second > launch_of(3, 3, kBytes, nullptr).second);
  facts.most_ctas = 18;
  CHECK(launch_of(3, 0, kBytes, nullptr) == std::pair(18, 0));  // too few would send
  facts.most_ctas = 32;
  facts.on_one_gpu = true;
  CHECK(launch_of(3, 3, kBytes, nullptr).second == 0);
}

TEST_CASE("on one GPU both ends of a message between windows move parts of it", "[req:5.23]") {
  ExchangeFacts facts = facts_of(0, 4);
  facts.on_one_gpu = true;
  facts.memory.stride_4g = 1;
  auto* const slot = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
  facts.memory.flat_base = slot;
  constexpr std::uint64_t kBytes = 1 << 20;
  const auto launch_of = [&](int sends, int receives, int copies, std::byte* data) {
    Exchange exchange;
    for (int i = 0; i < sends; ++i) exchange.sends.push_back({data, kBytes, 1 + i, 0});
    for (int i = receives; i > 0; --i) exchange.receives.push_back({data, kBytes, 3 - i + 1, 0});
    for (int i = 0; i < copies; ++i) exchange.copies.push_back({slot, slot + kBytes, kBytes});
    const LaunchList launches = test::launches_of(exchange, facts);
    REQUIRE(launches.size() == 1);
    CHECK(launches[0].form == ExchangeForm::one_gpu);
    return std::pair<int, int>(launches[0].pulled_parts, launches[0].stream_warps);
  };
  CHECK(launch_of(3, 0, 1, slot) == std::pair(int{kPulledParts}, 2));  // the root of a scatter
  CHECK(launch_of(1, 0, 1, slot).first == kPulledParts);               // a broadcast to one rank
  CHECK(launch_of(1, 0, 0, slot) == std::pair(0, 4));                  // a rank of a gather
  CHECK(launch_of(0, 3, 1, slot) == std::pair(0, 2));                  // the root of a gather
  CHECK(launch_of(1, 1, 0, slot).first == kPulledParts / 2);           // sends in a ring
  CHECK(launch_of(1, 1, 1, slot).first == 0);                          // an all-to-all of two ranks
  CHECK(launch_of(3, 3, 1, slot).first == kPulledParts / 3);           // four ranks
  CHECK(launch_of(3, 0, 1, nullptr) == std::pair(0, 1));               // buffers in no window
}

TEST_CASE("a send and a receive of one group hang if each is a launch of its own, and end as one",
          "[req:5.1]") {
  for (const bool together : {false, true}) {
    LaunchModel model(2, 4 * kCap, 1);
    for (int rank = 0; rank < 2; ++rank) {
      const PointToPoint send{true, nullptr, 16 << 20, 1 - rank};
      const PointToPoint receive{false, nullptr, 16 << 20, 1 - rank};
      if (together) {
        enqueue(model, 0, test::exchange_of({send, receive}, rank).value(), facts_of(rank, 2));
      } else {
        enqueue(model, 0, test::exchange_of({send}, rank).value(), facts_of(rank, 2));
        enqueue(model, 0, test::exchange_of({receive}, rank).value(), facts_of(rank, 2));
      }
    }
    CHECK(model.run() == together);
  }
}

TEST_CASE("no random group of 2 to 72 ranks deadlocks, wherever its launches are cut",
          "[req:5.1]") {
  const std::uint64_t seed = test::test_seed();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(test::repeats(60, 10));
  std::uint64_t groups = 0;
  for (; std::chrono::steady_clock::now() < end; ++groups) {
    CAPTURE(seed, groups);
    REQUIRE(run_random(seed + groups));
  }
  WARN(groups << " random sets of calls");
}
