// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator/collective_calls.hpp"

/// Ranks in calls with different numbers of rounds. One rank may be far ahead of the other when the
/// calls differ (3.16, 3.23).
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kShort = 50, kLong = 5000;  // elements: one round, and many

/// Arguments of one rank's call. Rank 1's arguments differ from those of the others.
struct SmallCall {
  Kind kind = Kind::all_reduce;
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  std::size_t count = 2;
};
struct Mistake {
  SmallCall right, wrong;
  const char* wrong_text;
};

// Three CPU ranks use eager for up to 512 bytes, and stream for more.
constexpr Mistake kMistakes[] = {
    {{}, {.type = DataType::i32}, "all-reduce (sum) of 2 x i32"},
    {{}, {.op = ReduceOp::max}, "all-reduce (max) of 2 x f32"},
    {{}, {.count = 4}, "all-reduce (sum) of 4 x f32"},
    {{.count = 50}, {.op = ReduceOp::prod, .count = 50}, "all-reduce (prod) of 50 x f32"},
    {{.count = 50}, {.count = 48}, "all-reduce (sum) of 48 x f32"},
    {{}, {.count = 50}, "all-reduce (sum) of 50 x f32"},
    {{.count = 50}, {.count = 5000}, "all-reduce (sum) of 5000 x f32"},
    {{.count = 5000}, {.type = DataType::u32, .count = 5000}, "all-reduce (sum) of 5000 x u32"},
    {{.count = 50}, {.kind = Kind::all_gather, .count = 50}, "all-gather of 50 x f32"},
};

Status call(Communicator& comm, const SmallCall& what) {
  std::vector<std::byte> in(what.count * 8 * 4), out(what.count * 8 * 4);
  return collective(comm, what.kind,
                    {.input = in.data(),
                     .output = out.data(),
                     .count = what.count,
                     .type = what.type,
                     .op = what.op});
}

/// Makes all mistakes in parallel, each on its own communicator, because each takes a second to
/// detect.
void make_mistakes(TestRanks& test_ranks) {
  std::vector<Communicator> comms;
  for (std::size_t i = 0; i < std::size(kMistakes); ++i) comms.push_back(join(test_ranks));
  for (Communicator& comm : comms) {  // first some matching calls
    for (const std::size_t count : {2, 50, 2, 5000}) must(call(comm, {.count = count}));
  }
  std::vector<Status> done(comms.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < comms.size(); ++i) {
    threads.emplace_back([&, i] {
      const Mistake& mistake = kMistakes[i];
      done[i] = call(comms[i], test_ranks.first() == 1 ? mistake.wrong : mistake.right);
    });
  }
  for (auto& thread : threads) thread.join();
  for (std::size_t i = 0; i < comms.size(); ++i) {
    must_fail(done[i], ErrorCode::invalid_usage,
              {"are in different calls", fmt::format("rank 1 in an {}", kMistakes[i].wrong_text)});
  }
  test_ranks.barrier();
}

/// Runs two ranks. Rank 0 waits until rank 1 cannot proceed in its first call.
void run_calls(Kind kind, std::vector<std::size_t> late, std::vector<std::size_t> early) {
  const auto body = [&](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    test_ranks.barrier();
    if (test_ranks.first() == 0) std::this_thread::sleep_for(200ms);
    Status done;
    for (const std::size_t count : test_ranks.first() == 0 ? late : early) {
      if (done.ok()) done = call(comm, {.kind = kind, .count = count});
    }
    test_ranks.barrier();
    must_fail(done, ErrorCode::invalid_usage, {"ranks", "are in different calls"});
  };
  run_on({0, 1}, {{"ORIEL_CHUNK", "512"}, {"ORIEL_COLLECTIVE_TIMEOUT", "8s"}}, body, __LINE__);
}

}  // namespace

TEST_CASE("ranks that differ in a small call get an error that says how", "[req:1.38]") {
  const LaunchMode launch_mode = GENERATE(LaunchMode::processes, LaunchMode::threads);
  INFO(name_of(launch_mode));
  const Environment bounded(Variables{{"ORIEL_COLLECTIVE_TIMEOUT", "60s"}});
  check_all_ok(run_ranks(launch_mode, 3, make_mistakes));
}

TEST_CASE("a call with no elements on one rank alone is not its next call", "[req:1.38]") {
  const LaunchMode launch_mode = GENERATE(LaunchMode::processes, LaunchMode::threads);
  const std::string algorithm = GENERATE("one_shot", "two_shot", "eager", "stream");
  INFO(name_of(launch_mode) << ", " << algorithm);
  const Environment forced(Variables{{"ORIEL_ALGORITHM", algorithm}});
  check_all_ok(run_ranks(launch_mode, 3, [&](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    for (const std::size_t count : {4, 4, 0, 4}) must(call(comm, {.count = count}));
    Status done = call(comm, {.count = test_ranks.first() == 2 ? std::size_t{0} : std::size_t{4}});
    if (done.ok()) done = call(comm, {.count = 4});
    must_fail(done, ErrorCode::invalid_usage, {"2", "are in different calls"});
    test_ranks.barrier();
  }));
}

TEST_CASE("packets of ranks that differ in a call are not taken for each other's", "[req:1.38]") {
  const std::string algorithm = GENERATE("one_shot", "two_shot", "eager");
  INFO(algorithm);
  const Environment forced(
      Variables{{"ORIEL_ALGORITHM", algorithm}, {"ORIEL_COLLECTIVE_TIMEOUT", "60s"}});
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const bool wrong = test_ranks.first() == 1;
    must_fail(call(comm, {.op = wrong ? ReduceOp::min : ReduceOp::max, .count = 70}),
              ErrorCode::invalid_usage,
              {"rank 0 in an all-reduce (max) of 70 x f32, rank 1 in an all-reduce (min)"});
    test_ranks.barrier();
  }));
}

TEST_CASE("ranks in calls of different lengths get an error that says so", "[req:3.16]") {
  const Kind kind = GENERATE(Kind::reduce_scatter, Kind::all_gather, Kind::all_reduce);
  INFO(kKindNames[static_cast<int>(kind)]);
  SECTION("who comes late has the shorter one") {
    run_calls(kind, {kShort}, {kLong});
  }
  SECTION("who comes late has the longer one") {
    run_calls(kind, {kLong}, {kShort});
  }
}

TEST_CASE("a rank that makes one call more gets an error that says so, and so do others",
          "[req:3.16]") {
  const Kind kind = GENERATE(Kind::reduce_scatter, Kind::all_gather);
  INFO(kKindNames[static_cast<int>(kind)]);
  run_calls(kind, {kShort, kLong}, {kLong});
}

}  // namespace oriel::test
