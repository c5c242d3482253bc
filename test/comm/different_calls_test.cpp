// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "comm/collective_calls.hpp"

/// Ranks in calls that take different numbers of rounds, of which one may be far ahead of the other
/// when that comes (3.16, 3.23).
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kShort = 50, kLong = 5000;  // elements: one round, and many

void on_node_of_its_own(const Players& players, const auto& body) {
  const Environment own(Variables{{"ORIEL_HOSTID", "node" + std::to_string(players.first())},
                                  {"ORIEL_CHUNK", "512"},
                                  {"ORIEL_COLLECTIVE_TIMEOUT", "8s"}});
  body();
}

Status call(Communicator& comm, Kind kind, std::size_t count) {
  const std::size_t all = count * static_cast<std::size_t>(comm.size());
  std::vector<float> in(kind == Kind::reduce_scatter ? all : count, 1);
  std::vector<float> out(kind == Kind::all_gather ? all : count, 0);
  if (kind == Kind::all_gather) {
    return comm.all_gather({.input = in.data(), .output = out.data(), .count = count});
  }
  if (kind == Kind::reduce_scatter) {
    return comm.reduce_scatter({.input = in.data(), .output = out.data(), .count = count});
  }
  return comm.all_reduce({.input = in.data(), .output = out.data(), .count = count});
}

/// Plays two ranks. Rank 0 waits until rank 1 is as far in its first call as it comes.
void play_calls(Kind kind, std::vector<std::size_t> late, std::vector<std::size_t> early) {
  check_all_ok(play(Cast::processes, 2, [&](Players& players) {
    on_node_of_its_own(players, [&] {
      auto comm = join(players);
      players.barrier();
      if (players.first() == 0) std::this_thread::sleep_for(200ms);
      Status done;
      for (const std::size_t count : players.first() == 0 ? late : early) {
        if (done.ok()) done = call(comm, kind, count);
      }
      players.barrier();
      must_fail(done, ErrorCode::invalid_usage, {"ranks", "are in different calls"});
    });
  }));
}

}  // namespace

TEST_CASE("3.16 ranks in calls of different lengths get an error that says so") {
  const Kind kind = GENERATE(Kind::reduce_scatter, Kind::all_gather, Kind::all_reduce);
  INFO(kKindNames[static_cast<int>(kind)]);
  SECTION("who comes late has the shorter one") {
    play_calls(kind, {kShort}, {kLong});
  }
  SECTION("who comes late has the longer one") {
    play_calls(kind, {kLong}, {kShort});
  }
}

TEST_CASE("3.16 a rank that makes one call more gets an error that says so, and so do others") {
  const Kind kind = GENERATE(Kind::reduce_scatter, Kind::all_gather);
  INFO(kKindNames[static_cast<int>(kind)]);
  play_calls(kind, {kShort, kLong}, {kLong});
}

}  // namespace oriel::test
