// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <csignal>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "nccl.h"

#include "comm/communicator/collective_calls.hpp"
#include "comm/support/in_teams.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Collectives among nodes that fail or are refused (3.16, 3.19, 3.23).
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

/// Repeats all-reduces until one fails, and returns the error.
Error reduce_until_error(Communicator& comm, std::size_t count, const auto& behind_each) {
  std::vector<float> data(count, 1);
  for (;;) {
    const Status done = comm.all_reduce(
        {.input = data.data(), .output = data.data(), .count = count, .op = ReduceOp::max});
    if (!done.ok()) return done.error();
    behind_each();
  }
}

}  // namespace

TEST_CASE("a rank that is killed during a collective is named by all others", "[req:3.19]") {
  for (const std::size_t count : {std::size_t{100}, std::size_t{60'000}}) {
    constexpr int kVictim = 2;
    RankFixture fixture(LaunchMode::processes, 4, [&](TestRanks& test_ranks) {
      const Environment own(on_node({0, 0, 1, 1}, test_ranks));
      auto comm = join(test_ranks);
      const Error error = reduce_until_error(comm, count, [&] { ++test_ranks.word(0); });
      require(error.origin_rank() == kVictim, error.to_string());
      require(error.code() == ErrorCode::remote, error.to_string());
      require(comm.async_error().has_value(), "the communicator knows");
    });
    REQUIRE(fixture.wait_for_word(0, 40, 60s));
    fixture.kill(kVictim, SIGKILL);
    const auto results = fixture.collect(60s);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      if (rank != kVictim) CHECK(results[rank] == "ok");
    }
  }
}

namespace {

/// One call of a rank in a loop of calls.
struct LoopCall {
  ncclComm_t comm;
  int rank;
  int root;  ///< differs in each round
  const float* in;
  float* out;
  std::size_t count;

  ncclResult_t send(int to) const { return ncclSend(in, count, ncclFloat, to, comm, nullptr); }
  ncclResult_t receive(int from) const {
    return ncclRecv(out, count, ncclFloat, from, comm, nullptr);
  }
  ncclResult_t reduce() const {
    return ncclReduce(in, out, count, ncclFloat, ncclMax, root, comm, nullptr);
  }
  ncclResult_t broadcast() const {
    return ncclBroadcast(in, out, count, ncclFloat, root, comm, nullptr);
  }
};

struct LoopKind {
  const char* name;
  ncclResult_t (*call)(const LoopCall& of);
};

const LoopKind kLoopKinds[] = {
    {"broadcast", [](const LoopCall& of) { return of.broadcast(); }},
    {"reduce", [](const LoopCall& of) { return of.reduce(); }},
    {"all-gather",
     [](const LoopCall& of) {
       return ncclAllGather(of.in, of.out, of.count, ncclFloat, of.comm, nullptr);
     }},
    {"reduce-scatter",
     [](const LoopCall& of) {
       return ncclReduceScatter(of.in, of.out, of.count, ncclFloat, ncclSum, of.comm, nullptr);
     }},
    {"all-to-all",
     [](const LoopCall& of) {
       return ncclAlltoAll(of.in, of.out, of.count, ncclFloat, of.comm, nullptr);
     }},
    {"gather",
     [](const LoopCall& of) {
       return ncclGather(of.in, of.out, of.count, ncclFloat, of.root, of.comm, nullptr);
     }},
    {"scatter",
     [](const LoopCall& of) {
       return ncclScatter(of.in, of.out, of.count, ncclFloat, of.root, of.comm, nullptr);
     }},
    {"send",  // two ranks receive
     [](const LoopCall& of) {
       if (of.rank != of.root) return of.receive(of.root);
       const ncclResult_t first = of.send((of.rank + 1) % 3);
       return first == ncclSuccess ? of.send((of.rank + 2) % 3) : first;
     }},
    {"recv",  // two ranks send
     [](const LoopCall& of) {
       if (of.rank != of.root) return of.send(of.root);
       const ncclResult_t first = of.receive((of.rank + 1) % 3);
       return first == ncclSuccess ? of.receive((of.rank + 2) % 3) : first;
     }},
    {"mixed group",
     [](const LoopCall& of) {
       require(ncclGroupStart(), "ncclGroupStart");
       // A refused call makes the whole group fail with that call's error.
       static_cast<void>(of.send((of.rank + 1) % 3));
       static_cast<void>(of.reduce());
       static_cast<void>(of.broadcast());
       static_cast<void>(
           ncclRecv(of.out + of.count, of.count, ncclFloat, (of.rank + 2) % 3, of.comm, nullptr));
       return ncclGroupEnd();
     }},
};

/// Repeats the call until it fails. The error must name the victim. Then destroys the communicator.
void loop_until_error(TestRanks& test_ranks, const LoopKind& kind, std::size_t count, int victim) {
  auto comms = test_ranks.init();
  std::vector<float> in(3 * count, 1), out(3 * count);
  ncclResult_t result = ncclSuccess;
  for (int round = 0; result == ncclSuccess; ++round) {
    if (round == 20) ++test_ranks.word(0);
    result = kind.call({comms[0], test_ranks.first(), round % 3, in.data(), out.data(), count});
  }
  const std::string text = ncclGetLastError(comms[0]);
  require_words(text, {fmt::format("rank {}", victim)});
  test_ranks.destroy(comms);
  ++test_ranks.word(1);
}

}  // namespace

TEST_CASE("a rank killed or stopped in any call is named by all others, who can destroy",
          "[req:5.21][req:5.10][req:5.11][req:1.12]") {
  std::mt19937_64 rng(test_seed());
  const bool stops = GENERATE(false, true);
  const bool on_three_nodes = GENERATE(false, true);
  INFO((stops ? "stopped, " : "killed, ") << (on_three_nodes ? "three nodes" : "one node"));
  const Environment common(Variables{{"ORIEL_COLLECTIVE_TIMEOUT", stops ? "2s" : ""}});
  struct Run {
    const char* name;
    int victim;
    std::unique_ptr<RankFixture> fixture;
  };
  std::vector<Run> runs;  // run in parallel, as they mostly wait
  for (const LoopKind& kind : kLoopKinds) {
    const auto victim = static_cast<int>(rng() % 3);
    const std::size_t count = rng() % 2 == 0 ? 100 : 60'000;
    if (kSanitized && rng() % 4 != 0) continue;
    const auto body = [&kind, victim, count, on_three_nodes](TestRanks& test_ranks) {
      const Environment own(of_node(on_three_nodes ? test_ranks.first() : 0));
      loop_until_error(test_ranks, kind, count, victim);
    };
    runs.push_back(
        {kind.name, victim, std::make_unique<RankFixture>(LaunchMode::processes, 3, body)});
  }
  for (const Run& run : runs) {
    INFO(run.name << ", the victim is rank " << run.victim);
    REQUIRE(run.fixture->wait_for_word(0, 3, 60s));
    std::this_thread::sleep_for(std::chrono::microseconds(rng() % 5'000));
    run.fixture->kill(run.victim, stops ? SIGSTOP : SIGKILL);
  }
  for (const Run& run : runs) {
    INFO(run.name << ", the victim is rank " << run.victim);
    CHECK(run.fixture->wait_for_word(1, 2, 15s));
    run.fixture->kill(run.victim, SIGKILL);
    const auto results = run.fixture->collect(1s);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != run.victim) CHECK(results[static_cast<std::size_t>(rank)] == "ok");
    }
  }
}

TEST_CASE("a rank that does not come is named when the time is over", "[req:3.19]") {
  const auto body = [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    std::vector<float> data(50'000, 1);
    if (test_ranks.first() == 0) {
      const auto error =
          comm.reduce_scatter({.input = data.data(), .output = data.data(), .count = 25'000});
      must_fail(error, ErrorCode::timeout, {"rank 0 has waited for rank 1"});
    }
    test_ranks.barrier();
  };
  run_on({0, 1}, {{"ORIEL_COLLECTIVE_TIMEOUT", "400ms"}}, body, __LINE__);
}

TEST_CASE("an abort ends the collectives of all ranks", "[req:3.16]") {
  const auto body = [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    if (test_ranks.first() == 0) {
      test_ranks.await(0, 2);
      comm.abort();
    } else {
      std::vector<float> data(300, 1), all(900);
      ++test_ranks.word(0);
      const Status done =
          comm.all_gather({.input = data.data(), .output = all.data(), .count = 300});
      require(!done.ok(), "nobody can have all");
      require(done.error().origin_rank() == 0, done.error().to_string());
    }
    test_ranks.barrier();
  };
  run_on({0, 1, 1}, {}, body, __LINE__);
}

TEST_CASE("ranks in different calls get an error that says so", "[req:3.16]") {
  struct Pair {
    Kind kinds[2];
    std::size_t counts[2];
  };
  const Pair pairs[] = {{{Kind::all_reduce, Kind::all_reduce}, {100, 101}},
                        {{Kind::all_reduce, Kind::all_reduce}, {100, 30'000}},
                        {{Kind::all_reduce, Kind::all_reduce}, {30'000, 30'001}},
                        {{Kind::all_gather, Kind::reduce_scatter}, {500, 500}},
                        {{Kind::all_gather, Kind::all_gather}, {500, 501}},
                        {{Kind::all_gather, Kind::all_gather}, {500, 30'000}},
                        {{Kind::all_gather, Kind::reduce_scatter}, {30'000, 30'000}},
                        {{Kind::all_gather, Kind::all_gather}, {30'000, 30'001}},
                        {{Kind::reduce_scatter, Kind::reduce_scatter}, {100, 101}},
                        {{Kind::reduce_scatter, Kind::reduce_scatter}, {100, 30'000}},
                        {{Kind::reduce_scatter, Kind::all_reduce}, {100, 100}}};
  const auto body = [&](TestRanks& test_ranks) {
    const auto me = static_cast<std::size_t>(test_ranks.first());
    std::vector<float> in(70'000, 1), out(70'000, 0);
    for (const Pair& pair : pairs) {
      auto comm = join(test_ranks);
      const Status done =
          collective(comm, pair.kinds[me],
                     {.input = in.data(), .output = out.data(), .count = pair.counts[me]});
      must_fail(done, ErrorCode::invalid_usage, {"ranks", "are in different calls"});
      test_ranks.barrier();
    }
  };
  run_on({0, 1}, {}, body, __LINE__);
}

TEST_CASE("a collective with a bad buffer, count, type or operation is refused with the reason",
          "[req:3.23]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    ncclComm_t const handle = comm.handle();
    std::vector<std::int64_t> data(64);
    auto* const base = data.data();
    const auto gather = [&](const void* in, void* out, std::size_t count) {
      return ncclAllGather(in, out, count, ncclInt64, handle, nullptr);
    };
    const auto scatter = [&](const void* in, void* out, std::size_t count) {
      return ncclReduceScatter(in, out, count, ncclInt64, ncclSum, handle, nullptr);
    };
    const auto expect_bad = [](ncclResult_t result, const std::vector<std::string>& words) {
      expect_error(result, ncclInvalidArgument, "a collective", words);
    };
    expect_bad(gather(nullptr, base, 4), {"sendbuff is null", "all-gather"});
    expect_bad(scatter(base, nullptr, 4), {"recvbuff is null", "reduce-scatter"});
    expect_bad(gather(reinterpret_cast<char*>(base) + 1, base + 8, 1), {"sendbuff", "aligned"});
    expect_bad(gather(base + 1, base, 4), {"overlap", "rank * sendcount"});
    expect_bad(scatter(base, base + 2, 4), {"overlap", "rank * recvcount"});
    expect_bad(gather(base, base + 8, SIZE_MAX / 16), {"larger than memory"});
    expect_bad(ncclAllGather(base, base + 8, 1, static_cast<ncclDataType_t>(ncclNumTypes), handle,
                             nullptr),
               {"datatype is 12"});
    expect_bad(ncclReduceScatter(base, base + 8, 1, ncclInt64, static_cast<ncclRedOp_t>(ncclNumOps),
                                 handle, nullptr),
               {});
    expect_bad(
        ncclAllGather(base, base + 8, 1, ncclInt64, handle, reinterpret_cast<cudaStream_t>(base)),
        {"stream"});
    require(gather(nullptr, nullptr, 0), "nothing to gather");
    require(scatter(nullptr, nullptr, 0), "nothing to scatter");
    test_ranks.barrier();
  }));
}

}  // namespace oriel::test
