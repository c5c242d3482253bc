// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Processes that may open few files.
#include <array>
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
#include "boot/link/dialer.hpp"
#include "boot/link/frame.hpp"
#include "boot/link/tcp.hpp"
#include "boot/session/forked_ranks.hpp"
#include "boot/session/inherited_memory.hpp"
#include "boot/session/rendezvous.hpp"
#include "boot/session/served_id.hpp"
#include "boot/support/loopback.hpp"
#include "support/fair_timer.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr int kRanks = 3;

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
  files.rlim_cur = files.rlim_max = static_cast<rlim_t>(highest + 1 + extra);
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

namespace {

/// Introduces itself as one of `size` ranks and waits for the addresses of its neighbours.
Task<Status> introduce(EventLoop& loop, UniqueId id, int rank, int size) {
  const Deadline deadline = Deadline::after(60s);
  DialTarget target = {.address = id.root,
                       .purpose = KeyPurpose::rendezvous,
                       .realm = id.number,
                       .key = Key::derive(id.secret, KeyPurpose::rendezvous, id.number),
                       .claim = {.from = rank, .to = -1, .tag = 0}};
  ORIEL_CO_TRY(const OwnedFd fd,
               co_await dial(loop, std::move(target), {.refused = 1s, .rejected = 1s}, deadline));
  const RootHello hello = {
      .rank = rank, .size = size, .patience_ms = 60'000, .process = 1, .address = id.root};
  const Bytes bytes = hello.encode();
  const ByteView view = bytes;
  ORIEL_CO_CHECK(write_some(fd.get(), std::span(&view, 1)));
  FrameReader reader;
  std::vector<Frame> frames;
  std::array<std::byte, 4096> buffer;
  while (frames.empty()) {
    ORIEL_CO_CHECK(co_await loop.readable(fd.get(), deadline));
    ORIEL_CO_TRY(const IoOutcome got, read_some(fd.get(), buffer));
    if (got.closed) co_return Error(ErrorCode::remote, "the root service has closed");
    ORIEL_CO_CHECK(reader.feed(ByteView(buffer).first(got.bytes), frames));
  }
  if (frames[0].kind != FrameKind::root_peers) co_return Error(ErrorCode::remote, "no addresses");
  co_return Status();
}

}  // namespace

TEST_CASE("a root service with a soft limit of 256 files serves 1,024 ranks", "[req:3.22]") {
  constexpr int kMany = 1024;
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  const rlimit enough = {files.rlim_max, files.rlim_max};
  if (files.rlim_max < kMany + 256 || ::setrlimit(RLIMIT_NOFILE, &enough) != 0) {
    WARN("skipped: this machine does not allow as many files");
    return;
  }
  struct Scene {
    std::atomic<int> made{0};
    UniqueId id;
  };
  const Shared<Scene> scene;
  const ForkedRanks root(1, [&](int) -> Status {
    const rlimit few = {256, enough.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return system_error("setrlimit");
    ORIEL_TRY(scene->id, create_unique_id(kLoopback.socket));
    scene->made = 1;
    for (;;) std::this_thread::sleep_for(1s);
  });
  while (scene->made == 0) std::this_thread::sleep_for(1ms);
  auto loop = std::move(EventLoop::create()).value();
  std::vector<Task<Status>> ranks;
  for (int rank = 0; rank < kMany; ++rank) {
    ranks.push_back(introduce(loop, scene->id, rank, kMany));
  }
  int served = 0;
  std::string first;
  for (const Status& status : loop.run_all(std::move(ranks))) {
    if (status.ok()) ++served;
    if (!status.ok() && first.empty()) first = status.error().to_string();
  }
  CAPTURE(first);
  CHECK(served == kMany);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
}

}  // namespace oriel::boot
