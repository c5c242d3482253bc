// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/support/held.hpp"
#include "support/fair_timer.hpp"
#include "support/ranks.hpp"
#include "support/seed.hpp"
#include "support/stop_at_message.hpp"

/// Ranks that die, stop, abort or make other calls while the other ranks wait for them.
namespace oriel::test {
namespace {

using std::chrono::steady_clock;

std::uint64_t now_ms() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now().time_since_epoch())
          .count());
}

// Indices of the words of SharedState.
constexpr std::size_t kCalls = 0;   // by rank: completed calls
constexpr std::size_t kEnded = 64;  // by rank: time of its error

std::string next_algorithm() {
  return GENERATE("one_shot", "two_shot", "stream", "eager");
}

/// Repeats all-reduces until one fails, and checks the error.
void reduce_until_failure(TestRanks& test_ranks, ncclComm_t comm, std::vector<float>& data,
                          ncclResult_t expected, const std::vector<std::string>& words) {
  const auto rank = static_cast<std::size_t>(test_ranks.first());
  const auto reduce = [&](std::size_t count) {
    return ncclAllReduce(data.data(), data.data(), count, ncclFloat, ncclMax, comm, nullptr);
  };
  ncclResult_t result = ncclSuccess;
  while ((result = reduce(data.size())) == ncclSuccess) test_ranks.word(kCalls + rank) += 1;
  test_ranks.word(kEnded + rank) = now_ms();
  expect_error(result, expected, "ncclAllReduce", words);
  // From now on every collective call, registration and ncclCommFinalize returns this error.
  require(state_of(comm) == result, fmt::format("the asynchronous error is not {}", result));
  expect_error(reduce(1), result, "a later call", words);
  require_words(ncclGetLastError(comm), words);
  std::thread([&] {  // a watchdog thread, without an error of its own
    require(state_of(comm) == result, "the asynchronous error, seen by another thread");
    require_words(ncclGetLastError(nullptr), words);
  })
      .join();
  Buffer buffer(4096);
  ncclWindow_t window = nullptr;
  require(ncclCommWindowRegister(comm, buffer.at(), 4096, &window, 0) == result,
          "a registration after the failure");
  require(ncclCommFinalize(comm) == result, "ncclCommFinalize after the failure");
  require(ncclCommDestroy(comm), "ncclCommDestroy after the failure");
}

TEST_CASE("survivors of a killed rank get an error that names it within a second", "[req:1.12]") {
  const std::string algorithm = next_algorithm();
  const std::size_t count = GENERATE(3, 100'000);
  CAPTURE(algorithm, count);
  const Environment environment(Variables{{"ORIEL_ALGORITHM", algorithm}});
  FairTimer timer;
  RankFixture fixture(LaunchMode::processes, 4, [&](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    std::vector<float> data(count, 1.0f);
    reduce_until_failure(test_ranks, comms[0], data, ncclRemoteError, {"rank 2"});
  });
  REQUIRE(fixture.wait_for_word(kCalls + 2, 20, 30s));
  timer.restart();
  const std::uint64_t killed = now_ms();
  fixture.kill(2, SIGKILL);
  const auto results = fixture.collect(30s);
  const auto most = static_cast<std::uint64_t>((1s + timer.withheld()) / 1ms);
  for (const std::size_t rank : {0U, 1U, 3U}) {
    CHECK(results[rank] == "ok");
    CHECK(fixture.shared().words[kEnded + rank] - killed < most);
  }
}

TEST_CASE("ORIEL_COLLECTIVE_TIMEOUT names a stopped rank", "[req:1.12]") {
  const std::string algorithm = next_algorithm();
  CAPTURE(algorithm);
  const Environment environment(
      Variables{{"ORIEL_ALGORITHM", algorithm}, {"ORIEL_COLLECTIVE_TIMEOUT", "700ms"}});
  RankFixture fixture(LaunchMode::processes, 3, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    std::vector<float> data(5000, 1.0f);
    reduce_until_failure(test_ranks, comms[0], data, ncclSystemError, {"rank 1"});
  });
  REQUIRE(fixture.wait_for_word(kCalls + 1, 20, 30s));
  fixture.kill(1, SIGSTOP);
  REQUIRE(fixture.wait_for_word(kEnded + 0, 1, 30s));
  REQUIRE(fixture.wait_for_word(kEnded + 2, 1, 30s));
  fixture.kill(1, SIGCONT);  // resumes, and finds the communicator failed
  check_all_ok(fixture.collect(20s));
}

TEST_CASE("ncclCommAbort from another thread ends a blocked all-reduce", "[req:1.12]") {
  const std::string algorithm = next_algorithm();
  CAPTURE(algorithm);
  const Environment environment(Variables{{"ORIEL_ALGORITHM", algorithm}});
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    const ncclComm_t comm = test_ranks.init()[0];
    if (test_ranks.first() == 1) {  // never calls; learns of the abort
      require(await_failure(comm) == ncclRemoteError, "after the peer's abort");
      require_words(ncclGetLastError(comm), {"rank 0"});
      return require(ncclCommDestroy(comm), "ncclCommDestroy");
    }
    std::thread aborter([&] {
      std::this_thread::sleep_for(300ms);
      require(ncclCommAbort(comm), "ncclCommAbort");
    });
    std::vector<float> data(5000, 1.0f);
    const auto started = steady_clock::now();
    const ncclResult_t result = sum(data.data(), data.size(), comm);
    const auto took = steady_clock::now() - started;
    aborter.join();
    require(took < 15s, "the abort took too long");
    expect_error(result, ncclInvalidUsage, "ncclAllReduce", {"abort"});
  }));
}

TEST_CASE("a call whose data are complete succeeds whatever a peer does afterwards", "[req:1.31]") {
  const std::string algorithm = next_algorithm();
  CAPTURE(algorithm);
  const Environment environment(Variables{{"ORIEL_ALGORITHM", algorithm}});
  check_all_ok(run_ranks(LaunchMode::threads, 3, [](TestRanks& test_ranks) {
    for (int round = 0; round < 20; ++round) {
      const ncclComm_t comm = test_ranks.init()[0];
      test_ranks.barrier();  // else a rank may abort before another rank's init has ended
      std::vector<float> data(200'000, 1.0f);
      const ncclResult_t result = sum(data.data(), data.size(), comm);
      const auto right = std::count(data.begin(), data.end(), 3.0f);
      require(ncclCommAbort(comm), "ncclCommAbort");
      // A rank that has sent all its data may leave early. No call succeeds without complete data.
      const bool complete = right == static_cast<std::ptrdiff_t>(data.size());
      require((result == ncclSuccess) == complete,
              fmt::format("{} with {} elements right", static_cast<int>(result), right));
    }
  }));
}

TEST_CASE("a peer's abort is a remote error of every call, also of those that wait", "[req:1.31]") {
  check_all_ok(run_ranks(LaunchMode::threads, 3, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    test_ranks.barrier();
    if (test_ranks.first() == 1) {
      std::this_thread::sleep_for(200ms);
      return require(ncclCommAbort(comms[0]), "ncclCommAbort");
    }
    std::vector<float> data(5000, 1.0f);
    Buffer buffer(4096);
    ncclWindow_t window = nullptr;
    const std::vector<std::string> words = {"remote", "rank 1", "ncclCommAbort was called"};
    for (const bool reduces : {test_ranks.first() == 0, test_ranks.first() != 0}) {
      expect_error(reduces ? sum(data.data(), data.size(), comms[0])
                           : ncclCommWindowRegister(comms[0], buffer.at(), 4096, &window, 1),
                   ncclRemoteError, reduces ? "ncclAllReduce" : "ncclCommWindowRegister", words);
      require(state_of(comms[0]) == ncclRemoteError, "the asynchronous error");
    }
    expect_error(ncclCommFinalize(comms[0]), ncclRemoteError, "ncclCommFinalize", words);
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("a collective call that ran into its deadline leaves the error at once", "[req:1.12]") {
  Environment environment(Variables{{"ORIEL_TIMEOUT", "500ms"}});
  check_all_ok(run_ranks(LaunchMode::threads, 2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    if (test_ranks.first() == 0) {
      ncclComm_t none = nullptr;
      expect_error(ncclCommSplit(comms[0], NCCL_SPLIT_NOCOLOR, 0, &none, nullptr), ncclSystemError,
                   "ncclCommSplit", {"rank 1"});
      require(state_of(comms[0]) == ncclSystemError, "the asynchronous error");
    }
    test_ranks.barrier();
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("ncclCommAbort ends a blocked init of a non-blocking communicator", "[req:1.12]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    const ncclUniqueId id = test_ranks.next_id();
    if (test_ranks.first() == 1) {
      test_ranks.barrier();
      return;  // never joins
    }
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    require(ncclCommInitRankConfig(&comm, 2, id, 0, &config) == ncclInProgress, "init");
    require(state_of(comm) == ncclInProgress, "still starting");
    float value = 1;
    expect_error(sum(&value, 1, comm), ncclInvalidUsage, "before it has started", {"not started"});
    const auto started = steady_clock::now();
    require(ncclCommAbort(comm), "ncclCommAbort");
    require(steady_clock::now() - started < 15s, "abort does not wait");
    ncclResult_t state = ncclSuccess;
    expect_error(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument, "after the abort");
    test_ranks.barrier();
  }));
}

TEST_CASE("init names the rank that never came or died", "[req:1.12]") {
  Environment environment(Variables{{"ORIEL_TIMEOUT", "1500ms"}});
  for (const bool dies : {false, true}) {
    INFO((dies ? "killed" : "absent"));
    RankFixture fixture(LaunchMode::processes, 3, [&](TestRanks& test_ranks) {
      const ncclUniqueId id = test_ranks.next_id();
      if (test_ranks.first() == 2 && !dies) return;
      if (test_ranks.first() == 2) ::raise(SIGKILL);
      ncclComm_t comm = nullptr;
      const ncclResult_t result = ncclCommInitRank(&comm, 3, id, test_ranks.first());
      require(comm == nullptr, "init cannot have succeeded");
      expect_error(result, ncclSystemError, "init", {"2"});
    });
    const auto results = fixture.collect(20s);
    CHECK(results[0] == "ok");
    CHECK(results[1] == "ok");
  }
}

TEST_CASE("a rank that destroys early ends the others' waits", "[req:1.12]") {
  const std::string algorithm = GENERATE("one_shot", "stream");
  CAPTURE(algorithm);
  const Environment environment(Variables{{"ORIEL_ALGORITHM", algorithm}});
  check_all_ok(run_ranks(LaunchMode::processes, 3, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    std::vector<float> data(5000, 1.0f);
    require(sum(data.data(), data.size(), comms[0]), "ncclAllReduce");
    if (test_ranks.first() == 1) return test_ranks.destroy(comms);
    const auto started = steady_clock::now();
    const ncclResult_t result = sum(data.data(), data.size(), comms[0]);
    require(steady_clock::now() - started < 15s, "it took too long");
    expect_error(result, ncclRemoteError, "ncclAllReduce", {"rank 1", "destroyed"});
    require(ncclCommDestroy(comms[0]), "ncclCommDestroy");
  }));
}

/// A case in which `victim` stops in init or in registration, with one node or two ranks per node.
struct StopCase {
  bool in_init;
  int ranks;
  int victim;
  bool nodes_of_two = false;
};

/// Runs one rank of a case whose victim stops at the k-th message of its init or registration.
/// The call must fail on every rank, even on the victim, which slept through the deadline. With
/// k = 0, no rank stops, and the victim's messages are counted.
void live_beside_a_stop(TestRanks& test_ranks, const StopCase& stop_case, std::uint64_t k) {
  const auto rank = static_cast<std::size_t>(test_ranks.first());
  const bool victim = test_ranks.first() == stop_case.victim;
  const bool in_init = stop_case.in_init;
  std::optional<Environment> node;
  if (stop_case.nodes_of_two) {
    node.emplace(Variables{{"ORIEL_HOSTID", fmt::format("node{}", rank / 2)}});
  }
  const Held before = held();
  const ncclUniqueId id = test_ranks.next_id();
  FairTimer timer;
  const auto run = [&](bool stops, const auto& call) {
    std::optional<StopAtMessage> stop;
    if (victim && stops) stop.emplace(k);
    timer.restart();
    const ncclResult_t result = call();
    const auto took = timer.spent();
    if (stop && k == 0) test_ranks.word(kCalls) = stop->sent();
    if (!stops || k == 0) return require(result, "a call that nothing disturbs");
    test_ranks.word(kEnded + rank) = 1;
    if (victim) return expect_error(result, ncclSystemError, "the call that slept", {"rank"});
    expect_error(result, ncclSystemError, "the call beside a stop",
                 {fmt::format("(communicator): rank {}: ", stop_case.victim)});
    require(took < 3s, "the error came late");
  };
  ncclComm_t comm = nullptr;
  run(in_init, [&] { return ncclCommInitRank(&comm, stop_case.ranks, id, test_ranks.first()); });
  require((comm == nullptr) == (in_init && k != 0), "a communicator, or none");
  if (comm != nullptr) {
    Buffer buffer(65536);
    ncclWindow_t window = nullptr;
    test_ranks.barrier();
    run(!in_init, [&] { return ncclCommWindowRegister(comm, buffer.at(), 65536, &window, 1); });
    require((window == nullptr) == (!in_init && k != 0), "a window, or none");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  }
  require_held(before, "at the end");
}

TEST_CASE("a rank that stops in the middle of init or of a registration is named in time",
          "[req:1.38]") {
  Environment environment(Variables{{"ORIEL_TIMEOUT", "2s"}});
  for (const StopCase& stop_case :
       {StopCase{true, 3, 1}, StopCase{false, 3, 1}, StopCase{false, 4, 3, true}}) {
    RankFixture counted(LaunchMode::processes, stop_case.ranks,
                        [&](TestRanks& p) { live_beside_a_stop(p, stop_case, 0); });
    check_all_ok(counted.collect(30s));
    const std::uint64_t messages = counted.shared().words[kCalls];
    REQUIRE(messages >= 4);
    std::vector<std::unique_ptr<RankFixture>>
        fixtures;  // run in parallel, as each waits for a deadline
    for (const std::uint64_t k : {std::uint64_t{1}, messages / 2}) {
      fixtures.push_back(std::make_unique<RankFixture>(
          LaunchMode::processes, stop_case.ranks,
          [&stop_case, k](TestRanks& p) { live_beside_a_stop(p, stop_case, k); }));
    }
    INFO((stop_case.in_init ? "init" : "registration") << " of " << stop_case.ranks << " ranks");
    for (const auto& fixture : fixtures) {
      for (int rank = 0; rank < stop_case.ranks; ++rank) {
        if (rank == stop_case.victim) continue;
        CHECK(fixture->wait_for_word(kEnded + static_cast<std::size_t>(rank), 1, 30s));
      }
      const auto victim = static_cast<std::size_t>(stop_case.victim);
      CHECK(fixture->shared().words[kEnded + victim] == 0);  // the victim still sleeps
      fixture->kill(stop_case.victim, SIGCONT);
    }
    for (const auto& fixture : fixtures) check_all_ok(fixture->collect(20s));
  }
}

/// Kills and stops ranks at random moments. No rank may hang, return wrong data or leave anything
/// behind.
TEST_CASE("if a rank is killed or stopped at a random moment, no other hangs or has wrong data",
          "[req:1.41]") {
  const std::uint64_t seed = test_seed();
  const char* rounds = std::getenv("ORIEL_TEST_KILLS");
  const int kills = rounds != nullptr ? std::atoi(rounds) : 4;
  INFO("seed " << seed);
  std::mt19937_64 rng(seed);
  Environment environment(Variables{{"ORIEL_TIMEOUT", "5s"}});
  for (int round = 0; round < kills + kills / 2; ++round) {
    const bool stop = round % 3 == 2;
    const int victim = static_cast<int>(rng() % 3);
    const auto delay = std::chrono::microseconds(rng() % 60'000);
    INFO("round " << round << ": rank " << victim << (stop ? " stops" : " dies") << " after "
                  << delay.count() << " us");
    RankFixture fixture(LaunchMode::processes, 3, [&](TestRanks& test_ranks) {
      const Held before = held();
      const ncclUniqueId id = test_ranks.next_id();
      for (int cycle = 0; cycle < (stop ? 5 : 100'000); ++cycle) {
        ncclComm_t comm = nullptr;
        if (ncclCommInitRank(&comm, 3, cycle == 0 ? id : test_ranks.next_id(),
                             test_ranks.first()) != ncclSuccess) {
          require(!stop, std::string("a stop must not fail init: ") + ncclGetLastError(nullptr));
          return require_held(before, "at the end");
        }
        std::optional<Buffer> buffer(std::in_place, 1 << 20);
        ncclWindow_t window = nullptr;
        ncclResult_t result = ncclCommWindowRegister(comm, buffer->at(), 1 << 20, &window, 1);
        auto* const data = reinterpret_cast<float*>(buffer->at());
        for (int call = 0; call < 30 && result == ncclSuccess; ++call) {
          const std::size_t count = call % 2 == 0 ? 7 : 100'000;
          std::fill(data, data + count, static_cast<float>(test_ranks.first() + call));
          result = sum(data, count, comm);
          if (result != ncclSuccess) break;
          const auto right = static_cast<float>(3 * call + 3);
          require(std::count(data, data + count, right) == static_cast<long>(count), "wrong data");
        }
        if (result != ncclSuccess) {
          require(!stop, std::string("a stop must not fail a call: ") + ncclGetLastError(nullptr));
          expect_error(result, ncclRemoteError, "the error", {"rank"});
        }
        require(ncclCommDestroy(comm), "ncclCommDestroy");
        buffer.reset();
        if (result != ncclSuccess) break;
      }
      require_held(before, "at the end");
    });
    std::this_thread::sleep_for(delay);
    if (!stop) {
      fixture.kill(victim, SIGKILL);
      fixture.shared().ids_failed = 1;  // keeps ranks from waiting for an id that never comes
    } else {
      fixture.kill(victim, SIGSTOP);
      std::this_thread::sleep_for(1300ms);  // longer than a stall takes to be noticed
      fixture.kill(victim, SIGCONT);
    }
    const auto results = fixture.collect(70s);
    for (int rank = 0; rank < 3; ++rank) {
      INFO("rank " << rank);
      const std::string& result = results[static_cast<std::size_t>(rank)];
      if (!stop && rank == victim) {
        CHECK(result.find("killed") != std::string::npos);
      } else if (!stop && result.find("no unique id") != std::string::npos) {
        SUCCEED("it was between two communicators");
      } else {
        CHECK(result == "ok");
      }
    }
  }
}

}  // namespace
}  // namespace oriel::test
