// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests processes that may open only a few files.
#include <array>
#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/try.hpp"
#include "boot/support/loopback.hpp"
#include "support/fair_timer.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr int kRanks = 3;

/// Limits the process to `extra` more open files.
Status allow_more_files(int extra) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return system_error("getrlimit");
  int highest = 2;
  for (int fd = 3; fd < 1024; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) highest = fd;
  }
  // RLIMIT_NOFILE limits numbers, so free numbers below the highest are filled until the process
  // ends.
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) {
    if (fd < highest) continue;
    ::close(fd);
    break;
  }
  files.rlim_cur = files.rlim_max = static_cast<rlim_t>(highest + 1 + extra);
  return ::setrlimit(RLIMIT_NOFILE, &files) == 0 ? Status() : system_error("setrlimit");
}

}  // namespace

TEST_CASE("a rank that may open too few files says so, and the others learn it", "[req:1.15]") {
  struct Trial {
    int victim = 0, extra = 0;
    ServedId id;
    std::unique_ptr<ForkedRanks> ranks;
  };
  constexpr int kMostExtra = 7;
  const test::FairTimer timer;
  std::list<Trial> trials;
  for (int victim = 0; victim < kRanks; ++victim) {
    for (int extra = 0; extra <= kMostExtra; ++extra) {
      trials.emplace_back();
      Trial& trial = trials.back();
      trial.victim = victim;
      trial.extra = extra;
      trial.ranks = std::make_unique<ForkedRanks>(kRanks, [&](int rank) -> Status {
        ORIEL_TRY(EventLoop loop, EventLoop::create());
        if (rank == victim) ORIEL_CHECK(allow_more_files(extra));
        const auto begin = steady_clock::now();
        // Without any descriptor the victim cannot notify the others, so the timeout is short.
        const auto session = join(loop, trial.id.value(), rank, kRanks, extra == 0 ? 2s : 8s);
        if (session.ok()) return {};
        const bool late =
            steady_clock::now() - begin > 4s + timer.withheld() && (rank == victim || extra > 0);
        return late ? Error(session.error()).with_context("late") : session.error();
      });
    }
  }
  std::array<int, kRanks> joined{};
  for (Trial& trial : trials) {
    const auto [victim, extra] = std::pair(static_cast<std::size_t>(trial.victim), trial.extra);
    CAPTURE(victim, extra);
    const auto results = trial.ranks->collect(40s);
    if (results[victim] == "ok") {
      ++joined[victim];
      CHECK(results == all_ok(kRanks));
      continue;
    }
    CHECK(joined[victim] == 0);  // more room must not fail after less succeeded
    const std::vector<std::string> words = {"RLIMIT_NOFILE", fmt::format("rank {}: ", victim)};
    for (const std::string& result : results) CHECK_FALSE(contains(result, "late"));
    check_all_say(extra > 0 ? results : std::vector{results[victim]}, words);
  }
  for (const int times : joined) CHECK((times > 0 && times <= kMostExtra));
}

TEST_CASE("the process that made the id says so when it may open too few files", "[req:1.15]") {
  const ServedId id([]() -> Result<UniqueId> {
    ORIEL_TRY(const UniqueId made, create_unique_id(kLoopback.socket));
    ORIEL_CHECK(allow_more_files(kRanks - 1));
    return made;
  });
  check_all_say(run_forked(
                    kRanks, [&](int rank) { return join_once(id.value(), rank, kRanks, 8s); }, 20s),
                {"RLIMIT_NOFILE", "in the process that made the unique id"});
}

}  // namespace oriel::boot
