// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/algorithms/exchange_streams.hpp"
#include "kernels/host/exchange_team.hpp"
#include "kernels/plan/planned_launches.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Runs the streams of ranks that share a GPU on CPU threads, one thread for all streams of a rank.
namespace {

using namespace oriel;
using namespace oriel::kernels;
using test::BlockCase;
using test::Team;

/// Copies bytes, and counts those that go to user buffers.
struct CountedOps {
  static constexpr bool kReads = false;
  std::uint64_t placed = 0;

  static void send(std::byte* slot, const std::byte* from, std::uint64_t bytes) {
    std::memcpy(slot, from, bytes);
  }
  void place(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    std::memcpy(to, from, bytes);
    placed += bytes;
  }
};

constexpr auto kForm = ExchangeForm::one_gpu;
using Sender = SendStream<device::Thread, CountedOps, device::Memory, kForm>;
using Receiver = ReceiveStream<device::Thread, CountedOps, device::Memory, kForm>;

/// Streams of one rank in one launch.
struct RankStreams {
  RankStreams(const ExchangeArguments& arguments, CountedOps& ops) {
    for (std::int32_t run = 0; run < arguments.runs; ++run) {
      const std::int32_t channels = arguments.run[run + 1].stream - arguments.run[run].stream;
      for (std::int32_t channel = 0; channel < channels; ++channel) {
        if (run < arguments.send_runs) {
          sends.push_back(std::make_unique<Sender>(arguments, ops, run, channel));
        } else {
          receives.push_back(std::make_unique<Receiver>(arguments, ops, run, channel));
        }
      }
    }
  }

  std::vector<std::unique_ptr<Sender>> sends;
  std::vector<std::unique_ptr<Receiver>> receives;
};

/// Makes a step of each stream that can move. Returns whether all are done; sets `failed`.
template <class Streams>
bool move_each(Streams& streams, bool& failed) {
  bool all_done = true;
  for (auto& stream : streams) {
    if (!stream->done() && stream->is_ready()) failed = failed || !stream->step();
    all_done = all_done && stream->done();
  }
  return all_done;
}

bool run_launch(const ExchangeArguments& arguments, CountedOps& ops) {
  RankStreams streams(arguments, ops);
  for (std::int32_t i = 0; i < arguments.copies; ++i) {
    const LocalCopy& copy = arguments.copy[i];
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  for (bool failed = false, done = false; !done;) {
    done = move_each(streams.sends, failed);
    done = move_each(streams.receives, failed) && done;
    if (failed) return false;
    std::this_thread::yield();
  }
  for (auto& stream : streams.sends) stream->finish();
  for (auto& stream : streams.receives) stream->finish();
  return true;
}

constexpr int kCtas = 1;

/// Returns ranks with channels of GPUs, several for each peer.
Team team_of(int ranks) {
  constexpr std::uint64_t kChannelBytes = 1 << 20;
  return {ranks,
          make_channel_layout(Backend::cuda, ranks, kCtas, Team::kLayoutPlace, kChannelBytes),
          PeerProcess::Reach::none};
}

ExchangeFacts facts_of(Team& team, int rank) {
  ExchangeFacts facts = team.facts(rank);
  facts.most_ctas = kCtas;
  facts.on_one_gpu = true;
  return facts;
}

/// Places of one rank's buffers: in its slot of the flat space, which stands for a window, or not.
struct Windows {
  bool inputs = true;
  bool outputs = true;
};

/// Runs a collective on one rank. Returns whether its output is right; adds what its threads
/// placed in user buffers to `placed`.
bool run_case(Team& team, const BlockCase& one, int rank, Windows windows, std::uint64_t& placed) {
  const auto ranks = static_cast<std::uint64_t>(team.ranks());
  const std::uint64_t sent = sends_blocks(one.collective) ? ranks * one.count : one.count;
  const std::uint64_t got = receives_blocks(one.collective) ? ranks * one.count : one.count;
  std::vector<std::uint32_t> input_memory(sent);
  std::vector<std::uint32_t> output_memory(got, 0xdeadbeef);
  const std::span<std::uint32_t> buffer = team.buffer(rank);
  if (sent + got > buffer.size()) return false;
  std::uint32_t* const input = windows.inputs ? buffer.data() : input_memory.data();
  std::uint32_t* const output = windows.outputs ? buffer.data() + sent : output_memory.data();
  for (std::uint64_t i = 0; i < sent; ++i) input[i] = test::value(rank, i);
  const RankCollective call{one.collective,
                            rank,
                            team.ranks(),
                            one.root,
                            reinterpret_cast<const std::byte*>(input),
                            reinterpret_cast<std::byte*>(output),
                            one.count,
                            DataType::u32};
  Exchange exchange;
  set_exchange(exchange, call);
  const LaunchList launches = test::launches_of(exchange, facts_of(team, rank));
  CountedOps ops;
  for (const ExchangeArguments& launch : launches) {
    if (!run_launch(launch, ops)) return false;
  }
  placed = ops.placed;
  // The rank overwrites its input as soon as its call has ended.
  const std::vector<std::uint32_t> result(output, output + got);
  std::fill_n(input, sent, 0xbad0bad0);
  for (std::uint64_t i = 0; gets(one, rank) && i < got; ++i) {
    if (result[i] != test::expected(one, rank, i)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("every collective among ranks on one GPU delivers every byte, registered or not",
          "[req:5.3][req:5.23]") {
  const std::uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  const Collective collectives[] = {Collective::broadcast, Collective::all_gather,
                                    Collective::all_to_all, Collective::gather,
                                    Collective::scatter};
  for (int turn = 0; turn < test::repeats(30, 6); ++turn) {
    const int ranks = 2 + static_cast<int>(random() % 3);
    Team team = team_of(ranks);
    for (int call = 0; call < 8; ++call) {
      BlockCase one{};
      one.collective = collectives[random() % std::size(collectives)];
      one.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
      one.count = 1 + random() % (call % 2 == 0 ? 100 : 30'000);
      const std::uint64_t drawn = random();
      const int good = team.on_ranks([&](int rank) {
        std::mt19937_64 own(drawn + static_cast<unsigned>(rank));
        std::uint64_t placed = 0;
        return run_case(team, one, rank, {own() % 4 != 0, own() % 4 != 0}, placed);
      });
      INFO("collective " << static_cast<int>(one.collective) << ", " << one.count << " elements");
      REQUIRE(good == ranks);
    }
  }
}

TEST_CASE("receivers on one GPU copy all of a scatter, none of a gather, from windows",
          "[req:5.23]") {
  Team team = team_of(3);
  constexpr std::uint64_t kCount = 16'384;
  const auto placed_in = [&](Collective collective, Windows windows) {
    std::vector<std::uint64_t> placed(3);
    const BlockCase one{collective, 0, kCount, false};
    CHECK(team.on_ranks([&](int rank) {
      return run_case(team, one, rank, windows, placed[static_cast<std::size_t>(rank)]);
    }) == 3);
    return placed;
  };
  using Placed = std::vector<std::uint64_t>;
  constexpr std::uint64_t kBlock = kCount * sizeof(std::uint32_t);
  CHECK(placed_in(Collective::scatter, {}) == Placed{0, kBlock, kBlock});
  CHECK(placed_in(Collective::broadcast, {}) == Placed{0, kBlock, kBlock});
  CHECK(placed_in(Collective::gather, {}) == Placed{0, kBlock, kBlock});
  CHECK(placed_in(Collective::scatter, {false, true}) == Placed{2 * kBlock, 0, 0});
  // Receivers copy out of windows even if their own buffers are in none.
  CHECK(placed_in(Collective::scatter, {true, false}) == Placed{0, kBlock, kBlock});
}

TEST_CASE("a sender on one GPU ends only after its receiver has copied", "[req:5.23]") {
  Team team = team_of(2);
  constexpr std::uint64_t kBytes = 64 << 10;
  const auto launch_of = [&](int rank) {
    Exchange exchange;
    const Message message{reinterpret_cast<std::byte*>(team.buffer(rank).data()), kBytes, 1 - rank,
                          7};
    (rank == 0 ? exchange.sends : exchange.receives).push_back(message);
    LaunchList launches = test::launches_of(exchange, facts_of(team, rank));
    launches.begin()->pulled_parts = kPulledParts / 2;
    return launches;
  };
  const std::uint64_t part = cut_over_channels(team.layout(), kBytes).piece;  // channel 0
  const LaunchList sent = launch_of(0);
  const LaunchList received = launch_of(1);
  team.buffer(0)[0] = 42;
  team.buffer(0)[part / 4 - 1] = 43;
  CountedOps pushing;
  CountedOps pulling;
  Sender sender(sent[0], pushing, 0, 0);
  CHECK_FALSE(sender.is_ready());  // no offer
  Receiver receiver(received[0], pulling, 0, 0);
  for (int step = 0; step < 2; ++step) {
    REQUIRE(sender.is_ready());
    REQUIRE(sender.step());
  }
  CHECK(pushing.placed == part / 2);
  CHECK_FALSE(sender.done());
  CHECK_FALSE(sender.is_ready());
  for (int step = 0; step < 2; ++step) {
    REQUIRE(receiver.is_ready());
    REQUIRE(receiver.step());
  }
  CHECK(receiver.done());
  CHECK(pulling.placed == part / 2);
  REQUIRE(sender.is_ready());
  REQUIRE(sender.step());
  CHECK(sender.done());
  CHECK(team.buffer(1)[0] == 42);
  CHECK(team.buffer(1)[part / 4 - 1] == 43);
}
