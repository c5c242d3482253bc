// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/host/exchange_team.hpp"
#include "kernels/plan/copy_engines.hpp"
#include "kernels/plan/planned_launches.hpp"
#include "support/seed.hpp"

/// Tests the plans of collectives by copy engines. CPU threads run the plans and copy with memcpy.
namespace {

using namespace oriel;
using namespace oriel::kernels;
using test::BlockCase;
using test::expected;
using test::gets;
using test::Team;
using test::value;

constexpr Collective kCopiedCollectives[] = {Collective::all_gather, Collective::all_to_all,
                                             Collective::gather, Collective::scatter};

/// Offsets of a rank's buffers from the start of its memory, in elements.
struct Buffers {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
};

/// Returns the buffers of a rank. Inputs and outputs have the same offsets on all ranks. In place,
/// a rank's block lies at its position among all blocks.
Buffers buffers_of(const BlockCase& one, int rank, std::uint64_t elements) {
  Buffers buffers{0, elements / 2};
  const std::uint64_t own = static_cast<std::uint64_t>(rank) * one.count;
  if (one.in_place && receives_blocks(one.collective)) buffers.input = elements / 2 + own;
  if (one.in_place && sends_blocks(one.collective)) buffers.output = own;
  return buffers;
}

/// One rank in one call.
class EngineRank {
 public:
  EngineRank(Team& team, const BlockCase& one, int rank, Buffers buffers)
      : team_(team), one_(one), rank_(rank), facts_(team.facts(rank)), tokens_(token_bytes(64)) {
    std::uint32_t* const buffer = team.buffer(rank).data();
    input_ = buffer + buffers.input;
    output_ = buffer + buffers.output;
    call_.collective = one.collective;
    call_.rank = rank;
    call_.ranks = team.ranks();
    call_.root = one.root;
    // Leaves null, on other ranks, the buffers that only the root uses.
    const bool is_scatter = one.collective == Collective::scatter;
    if (!is_scatter || rank == one.root) call_.input = reinterpret_cast<const std::byte*>(input_);
    if (gets(one, rank)) call_.output = reinterpret_cast<std::byte*>(output_);
    call_.count = one.count;
    call_.type = DataType::u32;
  }

  ExchangeFacts& facts() { return facts_; }
  CopyEnginePlan plan() {
    const ExchangeMemory& memory = facts_.memory;
    const std::byte* const slot =
        memory.flat_base + (std::uint64_t{memory.stride_4g} << 32) * static_cast<unsigned>(rank_);
    CopyEnginePlan plan;
    plan_copy_engines(
        call_,
        {memory.flat_base, memory.stride_4g,
         static_cast<std::uint64_t>(shared_buffer(call_).data - slot), tokens_.data()},
        plan);
    return plan;
  }
  void fill() const {
    const bool has_output = gets(one_, rank_);
    if (has_output) std::fill_n(output_, received(), 0xdeadbeefu);
    const bool has_input = one_.collective != Collective::scatter || rank_ == one_.root;
    for (std::uint64_t i = 0; has_input && i < sent(); ++i) input_[i] = value(rank_, i);
  }
  /// Runs the entry barrier, the copies and the exit barrier; returns false if a barrier fails.
  bool run(std::mt19937_64& random) {
    const CopyEnginePlan made = plan();
    if (!Team::run(test::launches_of(made.entry, facts_), random)) return false;
    for (const LocalCopy& copy : made.copies) {
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
    return Team::run(test::launches_of(made.exit, facts_), random);
  }
  /// Returns whether the receive buffer holds the expected elements.
  bool is_right() const {
    if (!gets(one_, rank_)) return true;
    for (std::uint64_t i = 0; i < received(); ++i) {
      if (output_[i] != expected(one_, rank_, i)) return false;
    }
    return true;
  }
  /// Overwrites the input, as a user may once the call has ended.
  void spoil_input() const {
    const bool in_output = one_.in_place && one_.collective != Collective::scatter;
    if (!in_output && one_.collective != Collective::scatter) {
      std::fill_n(input_, sent(), 0xdeadbeefu);
    }
  }

 private:
  std::uint64_t blocks() const { return static_cast<std::uint64_t>(team_.ranks()) * one_.count; }
  std::uint64_t sent() const { return sends_blocks(one_.collective) ? blocks() : one_.count; }
  std::uint64_t received() const {
    return receives_blocks(one_.collective) ? blocks() : one_.count;
  }

  Team& team_;
  const BlockCase& one_;
  int rank_;
  ExchangeFacts facts_;
  std::vector<std::byte> tokens_;
  RankCollective call_;
  std::uint32_t* input_;
  std::uint32_t* output_;
};

bool play_copies(Team& team, const BlockCase& one, int rank, std::uint64_t seed) {
  EngineRank self(team, one, rank, buffers_of(one, rank, team.buffer(rank).size()));
  std::mt19937_64 random(seed + static_cast<unsigned>(rank));
  if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
  self.fill();
  if (!self.run(random)) return false;
  const bool is_right = self.is_right();
  self.spoil_input();
  return is_right;
}

}  // namespace

TEST_CASE("collectives by copy engines give every rank what they are defined to give",
          "[req:5.9]") {
  const std::uint64_t seed = test::test_seed();
  for (int ranks = 2; ranks <= 8; ++ranks) {
    Team team(ranks, 1 << 14);
    for (const Collective collective : kCopiedCollectives) {
      for (const std::uint64_t count : {1, 31, 5001}) {
        for (const bool in_place : {false, true}) {
          if (in_place && collective == Collective::all_to_all) continue;
          const int root = has_root(collective) ? static_cast<int>(count) % ranks : 0;
          const BlockCase one{collective, root, count, in_place};
          CAPTURE(ranks, name_of(collective), count, in_place);
          REQUIRE(team.on_ranks([&](int rank) { return play_copies(team, one, rank, seed); }) ==
                  ranks);
        }
      }
    }
  }
}

TEST_CASE("a rank whose buffer lies elsewhere in the window, or that is in another call, is named",
          "[req:5.9]") {
  struct Difference {
    const char* what;
    BlockCase here, there;  ///< calls of rank 0 and of rank 1
    std::uint64_t shift;    ///< offset of rank 1's buffers, in elements
  };
  const BlockCase gathered{Collective::all_gather, 0, 500, false};
  BlockCase in_place = gathered;
  in_place.in_place = true;
  const BlockCase exchanged{Collective::all_to_all, 0, 500, false};
  const BlockCase shorter{Collective::all_gather, 0, 499, false};
  const Difference cases[] = {{"the offset", gathered, gathered, 4},
                              {"the form", gathered, in_place, 0},
                              {"the collective", gathered, exchanged, 0},
                              {"the count", gathered, shorter, 0}};
  for (const Difference& difference : cases) {
    INFO(difference.what);
    Team team(2, 1 << 14);
    const int good = team.on_ranks([&](int rank) {
      const BlockCase& one = rank == 0 ? difference.here : difference.there;
      Buffers buffers = buffers_of(one, rank, team.buffer(rank).size());
      if (rank == 1)
        buffers = {buffers.input + difference.shift, buffers.output + difference.shift};
      EngineRank self(team, one, rank, buffers);
      std::mt19937_64 random(1);
      return self.run(random);
    });
    CHECK(good == 0);
    for (const int rank : {0, 1}) {
      CHECK(team.failure(rank).kind == static_cast<std::uint32_t>(FailureKind::world_signature));
      CHECK(team.failure(rank).rank == 1 - rank);
    }
  }
}

TEST_CASE("the root of a gather in place finds that others have their inputs elsewhere",
          "[req:5.9]") {
  Team team(3, 1 << 14);
  const BlockCase in_place{Collective::gather, 1, 500, true};
  const BlockCase apart{Collective::gather, 1, 500, false};
  const int good = team.on_ranks([&](int rank) {
    const BlockCase& one = rank == 1 ? in_place : apart;
    EngineRank self(team, one, rank, buffers_of(one, rank, team.buffer(rank).size()));
    self.facts().memory.wait.timeout_ns = 200'000'000;  // the other ranks wait for the root
    std::mt19937_64 random(1);
    return self.run(random);
  });
  CHECK(good == 0);
  CHECK(team.failure(1).kind == static_cast<std::uint32_t>(FailureKind::world_signature));
}

TEST_CASE("a rank that copies and one that exchanges the same call notice it", "[req:5.9]") {
  Team team(2, 1 << 14);
  const BlockCase one{Collective::all_gather, 0, 5000, false};
  const int good = team.on_ranks([&](int rank) {
    EngineRank self(team, one, rank, buffers_of(one, rank, team.buffer(rank).size()));
    self.facts().memory.wait.timeout_ns = 200'000'000;
    std::mt19937_64 random(1);
    if (rank == 0) return self.run(random);
    RankCollective call;
    call.collective = one.collective;
    call.rank = rank;
    call.ranks = 2;
    call.input = reinterpret_cast<const std::byte*>(team.buffer(rank).data());
    call.output = reinterpret_cast<std::byte*>(team.buffer(rank).data() + 100'000);
    call.count = one.count;
    call.type = DataType::u32;
    return Team::run(test::launches_of(test::exchange_of(call), self.facts()), random);
  });
  CHECK(good == 0);
  CHECK(team.failure(0).kind == static_cast<std::uint32_t>(FailureKind::world_signature));
}

TEST_CASE("long blocks of four collectives suit copy engines, all others do not", "[req:5.9]") {
  RankCollective call;
  call.ranks = 2;
  call.type = DataType::u8;
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    call.collective = static_cast<Collective>(kind);
    const bool is_known = std::find(std::begin(kCopiedCollectives), std::end(kCopiedCollectives),
                                    call.collective) != std::end(kCopiedCollectives);
    INFO(name_of(call.collective));
    call.count = 4 << 20;
    CHECK(suits_copy_engines(call) == is_known);
    --call.count;
    CHECK_FALSE(suits_copy_engines(call));
    call.count = 4 << 20;
    call.ranks = 1;
    CHECK_FALSE(suits_copy_engines(call));
    call.ranks = 2;
  }
}

TEST_CASE("copies begin with the neighbour and end with the own block, which is left out in place",
          "[req:5.9]") {
  Team team(4, 1 << 14);
  constexpr int kRank = 2;
  for (const Collective collective : kCopiedCollectives) {
    for (const bool in_place : {false, true}) {
      if (in_place && collective == Collective::all_to_all) continue;
      INFO(name_of(collective) << (in_place ? " in place" : ""));
      const BlockCase one{collective, kRank, 10, in_place};
      const std::size_t elements = team.buffer(kRank).size();
      EngineRank self(team, one, kRank, buffers_of(one, kRank, elements));
      const CopyEnginePlan plan = self.plan();
      REQUIRE(plan.copies.size() == (in_place ? 3 : 4));
      CHECK(plan.copies_own_block == !in_place);
      for (std::size_t i = 0; i < 3; ++i) {
        const LocalCopy& copy = plan.copies[i];
        const int right = (kRank + static_cast<int>(i) + 1) % 4;
        const std::byte* const far = collective == Collective::scatter ? copy.to : copy.from;
        const auto* const theirs = reinterpret_cast<const std::byte*>(team.buffer(right).data());
        CHECK(far >= theirs);
        CHECK(far < theirs + elements * sizeof(std::uint32_t));
        CHECK(copy.bytes == 40);
      }
    }
  }
}

TEST_CASE("a barrier among eight GPUs is one launch of one CTA, in packets", "[req:5.9]") {
  constexpr int kRanks = 8;
  Team team(kRanks, 1 << 14);
  const BlockCase one{Collective::all_to_all, 0, 10, false};
  EngineRank self(team, one, 3, buffers_of(one, 3, team.buffer(3).size()));
  ExchangeFacts facts = self.facts();
  facts.memory.channels = make_channel_layout(Backend::cuda, kRanks, 32, 4096, 21 << 20);
  facts.most_ctas = 32;
  const CopyEnginePlan plan = self.plan();
  for (const Exchange* const barrier : {&plan.entry, &plan.exit}) {
    const LaunchList launches = test::launches_of(*barrier, facts);
    REQUIRE(launches.size() == 1);
    CHECK(launches[0].ctas == 1);
    CHECK(launches[0].form == ExchangeForm::packets);
  }
}
