// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/session.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/try.hpp"
#include "boot/auth/unique_id_format.hpp"
#include "boot/session/forked_ranks.hpp"
#include "boot/session/inherited_memory.hpp"
#include "boot/session/root_service.hpp"
#include "boot/session/served_id.hpp"
#include "boot/support/loopback.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;

Bytes payload(int rank) {
  return Bytes(static_cast<std::size_t>(rank * 100 + 3), static_cast<std::byte>(rank + 1));
}

/// Joins, runs every protocol on the world and on a subgroup of all ranks but the last, leaves.
Task<Status> whole_life(EventLoop& loop, UniqueId id, int rank, int size) {
  const Deadline deadline = Deadline::after(20s);
  SessionOptions options = kLoopback;
  ORIEL_CO_TRY(const auto session,
               co_await Session::join(loop, id, rank, size, std::move(options), deadline));
  if (size == 1) {
    ORIEL_CO_CHECK(co_await session->world().barrier(Operation::test));
    co_return Status();
  }
  ORIEL_CO_TRY(const auto activity, session->activate(loop, deadline));
  Bytes mine = payload(rank);
  ORIEL_CO_TRY(const auto all,
               co_await session->world().all_gather(Operation::test, std::move(mine)));
  for (int peer = 0; peer < size; ++peer) {
    if (all[static_cast<std::size_t>(peer)] != payload(peer)) {
      co_return Error(ErrorCode::internal, "wrong bytes of rank " + std::to_string(peer));
    }
  }
  if (rank < size - 1) {
    std::vector<int> members;
    for (int peer = size - 2; peer >= 0; --peer) members.push_back(peer);
    ORIEL_CO_TRY(Group group, co_await session->subgroup(std::move(members)));
    Bytes word = payload(rank);
    ORIEL_CO_TRY(const Bytes told, co_await group.broadcast(Operation::test, 0, std::move(word)));
    if (told != payload(size - 2)) co_return Error(ErrorCode::internal, "wrong broadcast");
  }
  ORIEL_CO_CHECK(co_await session->world().barrier(Operation::finalize));
  co_return Status();
}

Status live(const UniqueId& id, int rank, int size) {
  ORIEL_TRY(EventLoop loop, EventLoop::create());
  return loop.run(whole_life(loop, id, rank, size));
}

/// Joins and agrees; rank `hasty` leaves as soon as it can, and has a failure then.
Task<Status> agree_and_leave(EventLoop& loop, UniqueId id, int rank, int size, int hasty) {
  const Deadline deadline = Deadline::after(20s);
  SessionOptions options = kLoopback;
  ORIEL_CO_TRY(const auto session,
               co_await Session::join(loop, id, rank, size, std::move(options), deadline));
  ORIEL_CO_TRY(const auto activity, session->activate(loop, deadline));
  std::vector<AgreedField> fields;
  Status mine;
  ORIEL_CO_CHECK(
      co_await session->world().agree(Operation::finalize, std::move(mine), std::move(fields)));
  if (rank == hasty) {
    session->leave();
    session->abort(Error(ErrorCode::internal, "what concerns nobody any more"));
  }
  co_return Status();
}

/// Rank 0 says a word and dies; rank 1 looks at its link only after both.
Task<Status> hear_the_dead(EventLoop& loop, UniqueId id, int rank, std::atomic<bool>& listens) {
  const Deadline deadline = Deadline::after(20s);
  SessionOptions options = kLoopback;
  ORIEL_CO_TRY(const auto session,
               co_await Session::join(loop, id, rank, 2, std::move(options), deadline));
  ORIEL_CO_TRY(const auto activity, session->activate(loop, deadline));
  while (rank == 0 && !listens) std::this_thread::sleep_for(1ms);
  listens = true;
  if (rank == 1) std::this_thread::sleep_for(500ms);
  Bytes word = payload(rank);
  ORIEL_CO_TRY(const Bytes told,
               co_await session->world().broadcast(Operation::test, 0, std::move(word)));
  if (rank == 0) ::_exit(0);
  if (told != payload(0)) co_return Error(ErrorCode::internal, "wrong broadcast");
  const Status after = co_await session->world().barrier(Operation::test);
  if (after.ok()) co_return Error(ErrorCode::internal, "a barrier with the dead");
  co_return Status();
}

/// How many descriptors this process has; `listeners` counts those that listen.
int count_fds(int& listeners) {
  int count = 0;
  listeners = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) ++count;
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0) listeners += listens;
  }
  return count;
}

/// One of 8 ranks, that stops listening once it has joined.
Task<Status> live_behind_closed_doors(EventLoop& loop, UniqueId id, int rank) {
  int listeners = 0;
  const int before = count_fds(listeners);
  const Deadline deadline = Deadline::after(20s);
  SessionOptions options = kLoopback;
  ORIEL_CO_TRY(const auto session,
               co_await Session::join(loop, id, rank, 8, std::move(options), deadline));
  ORIEL_CO_TRY(const auto activity, session->activate(loop, deadline));
  session->stop_listening();
  const int held = count_fds(listeners) - before;
  if (held != 2 + 5 || listeners != 0) {
    co_return Error(ErrorCode::internal, fmt::format("{} descriptors, {} doors", held, listeners));
  }
  std::vector<int> near = {rank - rank % 2, rank - rank % 2 + 1};
  ORIEL_CO_TRY(Group pair, co_await session->subgroup(std::move(near)));
  ORIEL_CO_CHECK(co_await pair.barrier(Operation::test));
  std::vector<int> far = {rank, (rank + 3) % 8};  // no link
  const auto none = co_await session->subgroup(std::move(far));
  if (none.ok()) co_return Error(ErrorCode::internal, "a group without links");
  co_return co_await session->world().barrier(Operation::test);
}

}  // namespace

TEST_CASE("a rank of 8 keeps 7 descriptors and no door once it has stopped listening",
          "[req:1.15]") {
  const ServedId id;
  const auto verdicts = run_forked(
      8,
      [&](int rank) -> Status {
        ORIEL_TRY(EventLoop loop, EventLoop::create());
        return loop.run(live_behind_closed_doors(loop, id.value(), rank));
      },
      30s);
  for (const auto& verdict : verdicts) CHECK(verdict == "ok");
}

TEST_CASE("ranks as processes join, run every protocol and leave", "[req:1.10]") {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    CAPTURE(size);
    const ServedId id;
    const auto verdicts = run_forked(
        size, [&](int rank) { return live(id.value(), rank, size); }, 30s);
    for (const auto& verdict : verdicts) CHECK(verdict == "ok");
  }
}

TEST_CASE("ranks as threads join, run every protocol and leave", "[req:1.10]") {
  for (const int size : {1, 2, 3, 4, 7, 8}) {
    CAPTURE(size);
    auto id = create_unique_id(kLoopback.socket);
    REQUIRE(id.ok());
    const auto verdicts = run_threads(size, [&](int rank) { return live(id.value(), rank, size); });
    for (const auto& verdict : verdicts) CHECK(verdict == "ok");
  }
}

TEST_CASE("what fails on a rank that has left is not told to ranks in their last call",
          "[req:1.41]") {
  for (int i = 0; i < 24; ++i) {
    const int size = 2 + i % 4;
    const int hasty = i % size;
    CAPTURE(size, hasty);
    auto id = create_unique_id(kLoopback.socket);
    REQUIRE(id.ok());
    const auto verdicts = run_threads(size, [&](int rank) -> Status {
      ORIEL_TRY(EventLoop loop, EventLoop::create());
      return loop.run(agree_and_leave(loop, id.value(), rank, size, hasty));
    });
    for (const auto& verdict : verdicts) CHECK(verdict == "ok");
  }
}

TEST_CASE("what a rank said before it died is heard", "[req:1.38]") {
  const ServedId id;
  const Shared<std::atomic<bool>> listens;
  const auto verdicts = run_forked(
      2,
      [&](int rank) -> Status {
        ORIEL_TRY(EventLoop loop, EventLoop::create());
        return loop.run(hear_the_dead(loop, id.value(), rank, *listens));
      },
      30s);
  CHECK(verdicts[1] == "ok");
}

TEST_CASE("a rank that cannot begin to join tells the others why", "[req:1.38]") {
  constexpr int kSize = 4;
  for (int absent = 0; absent < kSize; ++absent) {
    CAPTURE(absent);
    auto id = create_unique_id(kLoopback.socket);
    REQUIRE(id.ok());
    const auto begin = std::chrono::steady_clock::now();
    const auto verdicts = run_threads(kSize, [&](int rank) -> Status {
      ORIEL_TRY(EventLoop loop, EventLoop::create());
      if (rank != absent) return loop.run(whole_life(loop, id.value(), rank, kSize));
      Error reason = Error(ErrorCode::system, "there is no loop").with_origin(rank);
      return loop.run(Session::decline(loop, id.value(), rank, kSize, std::move(reason), kLoopback,
                                       Deadline::after(10s)));
    });
    CHECK(std::chrono::steady_clock::now() - begin < 10s);  // the ranks' patience is 20 s
    for (int rank = 0; rank < kSize; ++rank) {
      const std::string& verdict = verdicts[static_cast<std::size_t>(rank)];
      CAPTURE(rank, verdict);
      if (rank == absent) {
        CHECK(verdict == "ok");
        continue;
      }
      CHECK(verdict.find("rank " + std::to_string(absent) + ": ") != std::string::npos);
      CHECK(verdict.find("there is no loop") != std::string::npos);
    }
  }
}

TEST_CASE("a rank that gives up while it is idle learns of it like the others", "[req:1.12]") {
  auto id = create_unique_id(kLoopback.socket);
  REQUIRE(id.ok());
  std::atomic<int> joined{0};
  const auto verdicts = run_threads(2, [&](int rank) -> Status {
    const Deadline end = Deadline::after(10s);
    ORIEL_TRY(EventLoop loop, EventLoop::create());
    ORIEL_TRY(const auto session,
              loop.run(Session::join(loop, id.value(), rank, 2, kLoopback, Deadline::after(20s))));
    // Otherwise the other rank might learn of it in its join.
    ++joined;
    while (joined < 2 && !end.expired(SteadyClock::instance().now())) std::this_thread::yield();
    if (rank == 1) session->abort(Error(ErrorCode::internal, "this rank gives up"));
    while (!end.expired(SteadyClock::instance().now())) {
      for (const PeerEvent& event : session->peers().pump_idle()) {
        if (event.kind != PeerEvent::Kind::lost) continue;
        return event.error.origin_rank() == 1 ? Status() : Status(event.error);
      }
      std::this_thread::sleep_for(1ms);
    }
    return Error(ErrorCode::timeout, "no news");
  });
  for (const auto& verdict : verdicts) CHECK(verdict == "ok");
}

TEST_CASE("several ranks of one thread advance together in one loop", "[req:1.10]") {
  for (const int size : {2, 3, 5, 8, 16}) {
    CAPTURE(size);
    auto id = create_unique_id(kLoopback.socket);
    REQUIRE(id.ok());
    auto loop = std::move(EventLoop::create()).value();
    std::vector<Task<Status>> tasks;
    tasks.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      tasks.push_back(whole_life(loop, id.value(), rank, size));
    }
    for (const Status& status : loop.run_all(std::move(tasks))) {
      CHECK((status.ok() ? "ok" : status.error().to_string()) == "ok");
    }
  }
}

namespace {

Status join_once(const UniqueId& id, int rank, int size) {
  ORIEL_TRY(EventLoop loop, EventLoop::create());
  const auto session =
      loop.run(Session::join(loop, id, rank, size, kLoopback, Deadline::after(10s)));
  return session.ok() ? Status() : session.error();
}

/// That `again` is the error of an id that is of no use, with `word`.
Status expect_useless(const Status& again, const std::string& word) {
  if (again.ok()) return Error(ErrorCode::internal, "it joined");
  const std::string text = again.error().to_string();
  const bool named = again.error().code() == ErrorCode::invalid_usage &&
                     text.find(word) != std::string::npos &&
                     text.find("10 minutes") != std::string::npos;
  return named ? Status() : again;
}

/// In the process that has made the ids.
Status use_ids_again() {
  ORIEL_TRY(const UniqueId alone, create_unique_id(kLoopback.socket));
  ORIEL_CHECK(join_once(alone, 0, 1));
  ORIEL_CHECK(expect_useless(join_once(alone, 0, 1), "has been used"));
  ORIEL_CHECK(expect_useless(join_once(alone, 0, 2), "has been used"));
  ORIEL_TRY(const UniqueId shared, create_unique_id(kLoopback.socket));
  const auto joined = run_threads(2, [&](int rank) { return join_once(shared, rank, 2); });
  if (joined != std::vector<std::string>{"ok", "ok"}) return Error(ErrorCode::internal, joined[0]);
  const auto end = std::chrono::steady_clock::now() + 5s;
  while (RootService::instance().running() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
  ORIEL_CHECK(expect_useless(join_once(shared, 1, 2), "has been used"));
  ORIEL_TRY(const UniqueId old, create_unique_id(kLoopback.socket, 1ms));
  while (RootService::instance().running() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
  return expect_useless(join_once(old, 0, 2), "has expired");
}

}  // namespace

TEST_CASE("an id that is used again, or has expired, is named in its own process",
          "[req:1.7][req:1.38]") {
  CHECK(run_forked(
            1, [](int) { return use_ids_again(); }, 20s) == std::vector<std::string>{"ok"});
}

TEST_CASE("an id that is used again is named in other processes as far as can be known",
          "[req:1.7][req:1.38]") {
  struct Scene {
    std::atomic<int> step{0};
    UniqueId used;
    Status reach(int wanted) const {
      const auto end = std::chrono::steady_clock::now() + 10s;
      while (step < wanted && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(1ms);
      }
      return step < wanted ? Status(Error(ErrorCode::timeout, "the other process")) : Status();
    }
  };
  const Shared<Scene> scene;
  ForkedRanks processes(2, [&](int process) -> Status {
    RootService& service = RootService::instance();
    if (process == 1) {
      ORIEL_TRY(scene->used, create_unique_id(kLoopback.socket));
      ORIEL_TRY(const UniqueId other, create_unique_id(kLoopback.socket));
      service.retire(scene->used.number);
      scene->step = 1;
      ORIEL_CHECK(scene->reach(2));
      service.retire(other.number);  // with which the service ends
      while (service.running()) std::this_thread::sleep_for(1ms);
      scene->step = 3;
      return scene->reach(4);
    }
    ORIEL_CHECK(scene->reach(1));
    ORIEL_CHECK(expect_useless(join_once(scene->used, 0, 2), "does not know"));
    scene->step = 2;
    ORIEL_CHECK(scene->reach(3));
    const Status refused = join_once(scene->used, 0, 2);
    scene->step = 4;
    if (refused.ok()) return Error(ErrorCode::internal, "it joined");
    const std::string& hint = refused.error().hint();
    const bool both =
        hint.find("firewall") != std::string::npos && hint.find("used before") != std::string::npos;
    return both ? Status() : refused;
  });
  CHECK(processes.collect(20s) == std::vector<std::string>{"ok", "ok"});
}

}  // namespace oriel::boot
