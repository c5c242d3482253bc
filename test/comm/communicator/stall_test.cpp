// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "nccl.h"

#include "comm/support/stall_log.hpp"
#include "support/process_state.hpp"
#include "support/ranks.hpp"

/// A job that stalls says so by itself.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr std::size_t kWaiting = 0, kLateMayCome = 1;  // words of the board

/// All ranks come to one call; to the next, with other arguments, at first only rank 0.
void be_late_once(Players& players) {
  auto comms = players.init();
  std::vector<float> data(5000, 1.0f);
  require(ncclAllReduce(data.data(), data.data(), 7, ncclFloat, ncclSum, comms[0], nullptr),
          "the first call");
  players.barrier();
  if (players.first() == 0) players.word(kWaiting) = 1;
  if (players.first() != 0) players.await(kLateMayCome);
  require(ncclAllReduce(data.data(), data.data(), 5000, ncclFloat, ncclMax, comms[0], nullptr),
          "the call that stalls");
  players.destroy(comms);
}

}  // namespace

TEST_CASE("a stalled all-reduce says so at the default log level, and again, with call and ranks",
          "[req:1.12][D7]") {
  CHECK(comm::StallTimes().first == 10s);
  CHECK(comm::StallTimes().again == 1min);
  const StallLog log;
  Stage stage(Cast::processes, 3, be_late_once);
  REQUIRE(stage.wait_for_word(kWaiting, 1, 30s));
  const auto begin = steady_clock::now();
  const pid_t pid = stage.pid(0);
  CHECK(eventually([&] { return !log.lines(pid).empty(); }));
  CHECK(steady_clock::now() - begin > StallLog::kFirst - 300ms);
  CHECK(eventually([&] { return log.lines(pid).size() >= 3; }));
  stage.board().words[kLateMayCome] = 1;
  const auto lines = log.lines(pid);
  CHECK(log.lines(stage.pid(1)).empty());
  check_all_ok(stage.collect(30s));
  REQUIRE(lines.size() >= 3);
  for (const std::string& line : lines) {
    CAPTURE(line);
    CHECK_NOTHROW(require_words(
        line, {" [0] ORIEL WARN stalled: ", "for ranks 1 and 2 (",
               " in an all-reduce (max) of 5000 x f32 (call 2 of",
               "; rank 1 is in no call; the last collective of rank 1 is call 1, an all-reduce "
               "(sum) of 7 x f32; ORIEL_"}));
  }
  CHECK(lines.front().find("waited for 1 s") != std::string::npos);
  CHECK(lines.back().find("waited for 1 s") == std::string::npos);
}

}  // namespace oriel::test
