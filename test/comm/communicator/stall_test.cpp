// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "nccl.h"

#include "comm/request/reported_call.hpp"
#include "comm/support/stall_log.hpp"
#include "support/process_state.hpp"
#include "support/ranks.hpp"

/// Checks that a stalled job logs the stall by itself.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr std::size_t kWaiting = 0, kLateMayCome = 1;  // indices of SharedState::words

/// All ranks make the first call. Then rank 0 alone makes the next call, with other arguments.
void be_late_once(TestRanks& test_ranks) {
  auto comms = test_ranks.init();
  std::vector<float> data(5000, 1.0f);
  require(ncclAllReduce(data.data(), data.data(), 7, ncclFloat, ncclSum, comms[0], nullptr),
          "the first call");
  test_ranks.barrier();
  if (test_ranks.first() == 0) test_ranks.word(kWaiting) = 1;
  if (test_ranks.first() != 0) test_ranks.await(kLateMayCome);
  require(ncclAllReduce(data.data(), data.data(), 5000, ncclFloat, ncclMax, comms[0], nullptr),
          "the call that stalls");
  test_ranks.destroy(comms);
}

}  // namespace

TEST_CASE("a stalled all-reduce says so at the default log level, and again, with call and ranks",
          "[req:1.12][D7]") {
  CHECK(comm::StallTimes().first == 10s);
  CHECK(comm::StallTimes().again == 1min);
  const StallLog log;
  RankFixture fixture(LaunchMode::processes, 3, be_late_once);
  REQUIRE(fixture.wait_for_word(kWaiting, 1, 30s));
  const auto begin = steady_clock::now();
  const pid_t pid = fixture.pid(0);
  CHECK(eventually([&] { return !log.lines(pid).empty(); }));
  CHECK(steady_clock::now() - begin > StallLog::kFirst - 300ms);
  CHECK(eventually([&] { return log.lines(pid).size() >= 3; }));
  fixture.shared().words[kLateMayCome] = 1;
  const auto lines = log.lines(pid);
  CHECK(log.lines(fixture.pid(1)).empty());
  check_all_ok(fixture.collect(30s));
  REQUIRE(lines.size() >= 3);
  for (const std::string& line : lines) {
    CAPTURE(line);
    CHECK_NOTHROW(require_words(
        line, {" [0] ORIEL WARN stalled: ", "for ranks 1 and 2 (",
               " in an all-reduce (max) of 5000 x f32 (call 2 of",
               "; rank 1 is in no call; the last collective of rank 1 is call 1, an all-reduce "
               "(sum) of 7 x f32; hint: "}));
  }
  CHECK(lines.front().find("waited for 1 s") != std::string::npos);
  CHECK(lines.back().find("waited for 1 s") == std::string::npos);
}

TEST_CASE("a stall names the last call of a rank on another node, as that rank reports it",
          "[req:5.3]") {
  const StallLog log;
  RankFixture fixture(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    const Environment node(
        Variables{{"ORIEL_HOSTID", test_ranks.first() == 0 ? "first" : "second"}});
    auto comms = test_ranks.init();
    std::vector<float> data(7, 1.0f);
    const int self = test_ranks.first();
    require(ncclGroupStart(), "ncclGroupStart");  // a group is one call
    require(ncclSend(data.data(), 1, ncclFloat, self, comms[0], nullptr), "a send");
    require(ncclRecv(data.data() + 1, 1, ncclFloat, self, comms[0], nullptr), "a receive");
    require(ncclGroupEnd(), "ncclGroupEnd");
    require(ncclAllReduce(data.data(), data.data(), 7, ncclFloat, ncclSum, comms[0], nullptr),
            "the first call");
    if (test_ranks.first() == 0) {
      test_ranks.word(kWaiting) = 1;
      require(ncclRecv(data.data(), 7, ncclFloat, 1, comms[0], nullptr), "the late message");
    } else {
      test_ranks.await(kLateMayCome);
      require(ncclSend(data.data(), 7, ncclFloat, 0, comms[0], nullptr), "sending late");
    }
    test_ranks.destroy(comms);
  });
  REQUIRE(fixture.wait_for_word(kWaiting, 1, 30s));
  const pid_t pid = fixture.pid(0);
  CHECK(eventually([&] { return log.lines(pid).size() >= 2; }));
  fixture.shared().words[kLateMayCome] = 1;
  const auto lines = log.lines(pid);
  check_all_ok(fixture.collect(30s));
  REQUIRE(lines.size() >= 2);
  CHECK_NOTHROW(require_words(
      lines[1], {"WARN stalled: rank 0 has waited for ", " in a receive from rank 1 for rank 1 (",
                 "; rank 1 has made call 2 last, an all-reduce (sum) of 7 x f32, which has "
                 "returned; hint: "}));
}

TEST_CASE("a stall says that the rank does not answer if its process is stopped", "[req:5.3]") {
  const StallLog log;
  RankFixture fixture(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    const Environment node(
        Variables{{"ORIEL_HOSTID", test_ranks.first() == 0 ? "first" : "second"}});
    auto comms = test_ranks.init();
    std::vector<float> data(7, 1.0f);
    if (test_ranks.first() != 0) test_ranks.word(kWaiting) = 1;
    if (test_ranks.first() != 0) test_ranks.await(kLateMayCome);
    require(ncclAllReduce(data.data(), data.data(), 7, ncclFloat, ncclSum, comms[0], nullptr),
            "the call");
    test_ranks.destroy(comms);
  });
  REQUIRE(fixture.wait_for_word(kWaiting, 1, 30s));
  fixture.kill(1, SIGSTOP);
  const pid_t pid = fixture.pid(0);
  CHECK(eventually([&] { return log.lines(pid).size() >= 2; }));
  const auto lines = log.lines(pid);
  fixture.kill(1, SIGCONT);
  fixture.shared().words[kLateMayCome] = 1;
  check_all_ok(fixture.collect(30s));
  REQUIRE(lines.size() >= 2);
  CHECK_NOTHROW(require_words(lines[1], {"; rank 1 does not answer; hint: "}));
}

TEST_CASE("a stall on one node says whether the stopped rank is in the call of the rank that waits",
          "[req:4.11][req:5.3]") {
  const bool is_inside = GENERATE(true, false);
  const StallLog log;
  RankFixture fixture(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    std::vector<float> data(4'000'000, 1.0f);  // needs the work of both ranks
    if (test_ranks.first() != 0) test_ranks.word(kWaiting) = 1;
    if ((test_ranks.first() == 0) == is_inside) test_ranks.await(kLateMayCome);
    require(
        ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat, ncclSum, comms[0], nullptr),
        "the call");
    test_ranks.destroy(comms);
  });
  const pid_t pids[] = {fixture.pid(0), fixture.pid(1)};
  REQUIRE(fixture.wait_for_word(kWaiting, 1, 30s));
  // A rank that waits in the call prints a line of its own.
  if (is_inside) CHECK(eventually([&] { return !log.lines(pids[1]).empty(); }));
  fixture.kill(1, SIGSTOP);
  if (is_inside) fixture.shared().words[kLateMayCome] = 1;
  CHECK(eventually([&] { return log.lines(pids[0]).size() >= 2; }));
  const auto lines = log.lines(pids[0]);
  fixture.kill(1, SIGCONT);
  fixture.shared().words[kLateMayCome] = 1;
  check_all_ok(fixture.collect(30s));
  REQUIRE(lines.size() >= 2);
  CAPTURE(lines[1]);
  CHECK_NOTHROW(require_words(
      lines[1], {"; rank 1 is in ", is_inside ? "; rank 1 is in this call too (stopped, slow, or "
                                                "waits for another rank); hint: "
                                              : "; rank 1 is in no call; hint: "}));
}

TEST_CASE("a report of a rank's last call is refused if truncated or with unknown values",
          "[req:5.3]") {
  using comm::ReportedCall;
  const ReportedCall send{
      .number = 4,
      .state = ReportedCall::State::goes_on,
      .kind = comm::FlightKind::send,
      .call = {.type = DataType::f64, .count = 9, .root = 3},
  };
  const auto same = comm::decode_reported_call(comm::encode(send));
  REQUIRE(same.ok());
  CHECK(comm::text_of(*same) ==
        "has made call 4 last, a send of 9 x f64 to rank 3, in which it is");
  CHECK(comm::text_of(ReportedCall{}) == "has made no call");
  const Bytes good = comm::encode(send);
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK_FALSE(comm::decode_reported_call(ByteView(good).first(size)).ok());
  }
  constexpr std::size_t kState = 8;  // behind the number: state, kind, collective, type, operation
  for (std::size_t field = kState; field < kState + 5; ++field) {
    Bytes wrong = good;
    wrong[field] = std::byte{200};
    CHECK_FALSE(comm::decode_reported_call(wrong).ok());
  }
}

}  // namespace oriel::test
