// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Processes that may open few files.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fd.hpp"
#include "base/try.hpp"
#include "boot/session/forked_ranks.hpp"
#include "boot/session/inherited_memory.hpp"
#include "boot/session/served_id.hpp"
#include "boot/session/session.hpp"
#include "support/fair_timer.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

const SessionOptions kLoopback = {.socket = {.ifname = "lo"}};
constexpr int kRanks = 3;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Leaves room for `extra` files more than the process has.
Status allow_more_files(int extra) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return system_error("getrlimit");
  int highest = 2;
  for (int fd = 3; fd < 1024; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) highest = fd;
  }
  // The limit is on numbers, so those below the highest one are filled, until the process ends.
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) {
    if (fd < highest) continue;
    ::close(fd);
    break;
  }
  files.rlim_cur = static_cast<rlim_t>(highest + 1 + extra);
  return ::setrlimit(RLIMIT_NOFILE, &files) == 0 ? Status() : system_error("setrlimit");
}

}  // namespace

TEST_CASE("a rank that may open too few files says so, and the others learn it", "[req:1.15]") {
  test::FairTimer timer;
  for (int victim = 0; victim < kRanks; ++victim) {
    timer.restart();
    std::vector<std::unique_ptr<ServedId>> served;
    std::vector<std::unique_ptr<ForkedRanks>> groups;
    constexpr int kMostExtra = 7;
    for (int extra = 0; extra <= kMostExtra; ++extra) {
      served.push_back(std::make_unique<ServedId>());
      const UniqueId& id = served.back()->value();
      groups.push_back(
          std::make_unique<ForkedRanks>(kRanks, [&, victim, extra](int rank) -> Status {
            ORIEL_TRY(EventLoop loop, EventLoop::create());
            if (rank == victim) ORIEL_CHECK(allow_more_files(extra));
            const auto begin = steady_clock::now();
            const auto session = loop.run(Session::join(loop, id, rank, kRanks, kLoopback,
                                                        Deadline::after(extra == 0 ? 2s : 8s)));
            if (session.ok()) return {};
            // With no descriptor at all there is no way to tell the others.
            const bool late = steady_clock::now() - begin > 4s + timer.withheld() &&
                              (rank == victim || extra > 0);
            return late ? Error(session.error()).with_context("late") : session.error();
          }));
    }
    int joined = 0;
    for (int extra = 0; extra <= kMostExtra; ++extra) {
      CAPTURE(victim, extra);
      const auto verdicts = groups[static_cast<std::size_t>(extra)]->collect(40s);
      if (verdicts[static_cast<std::size_t>(victim)] == "ok") {
        ++joined;
        for (const auto& verdict : verdicts) CHECK(verdict == "ok");
        continue;
      }
      CHECK(joined == 0);  // more room cannot make it worse
      for (int rank = 0; rank < kRanks; ++rank) {
        const std::string& verdict = verdicts[static_cast<std::size_t>(rank)];
        CAPTURE(rank, verdict);
        CHECK_FALSE(contains(verdict, "late"));
        if (rank != victim && extra == 0) continue;
        CHECK(contains(verdict, "RLIMIT_NOFILE"));
        CHECK(contains(verdict, fmt::format("rank {}: ", victim)));
      }
    }
    CHECK(joined > 0);
    CHECK(joined <= kMostExtra);
  }
}

TEST_CASE("the process that made the id says so when it may open too few files", "[req:1.15]") {
  struct Scene {
    std::atomic<bool> made{false};
    UniqueId id;
  };
  const Shared<Scene> scene;
  ForkedRanks processes(1 + kRanks, [&](int process) -> Status {
    if (process == kRanks) {
      ORIEL_TRY(scene->id, create_unique_id(kLoopback.socket));
      ORIEL_CHECK(allow_more_files(kRanks - 1));
      scene->made = true;
      std::this_thread::sleep_for(4s);
      return {};
    }
    while (!scene->made) std::this_thread::sleep_for(1ms);
    ORIEL_TRY(EventLoop loop, EventLoop::create());
    const auto session =
        loop.run(Session::join(loop, scene->id, process, kRanks, kLoopback, Deadline::after(8s)));
    return session.ok() ? Status() : session.error();
  });
  const auto verdicts = processes.collect(12s);
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string& verdict = verdicts[static_cast<std::size_t>(rank)];
    CAPTURE(rank, verdict);
    CHECK(contains(verdict, "RLIMIT_NOFILE"));
    CHECK(contains(verdict, "in the process that made the unique id"));
  }
}

}  // namespace oriel::boot
