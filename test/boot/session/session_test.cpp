// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/session.hpp"

#include <atomic>
#include <barrier>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "base/try.hpp"
#include "boot/session/inherited_memory.hpp"
#include "boot/session/root_service.hpp"
#include "boot/support/loopback.hpp"
#include "support/fair_timer.hpp"
#include "support/process_state.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;

Bytes payload(int rank) {
  return Bytes(static_cast<std::size_t>(rank * 100 + 3), static_cast<std::byte>(rank + 1));
}

/// Joins, runs an all-gather on the world, a broadcast on a subgroup of all ranks but the last, and
/// a barrier on the world. Then leaves. A single rank runs only the barrier.
Task<Status> whole_life(EventLoop& loop, UniqueId id, int rank, int size,
                        SessionOptions options = kLoopback) {
  const Deadline deadline = Deadline::after(20s);
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
    ORIEL_CO_TRY(const Bytes reported,
                 co_await group.broadcast(Operation::test, 0, std::move(word)));
    if (reported != payload(size - 2)) co_return Error(ErrorCode::internal, "wrong broadcast");
  }
  ORIEL_CO_CHECK(co_await session->world().barrier(Operation::test));
  co_return Status();
}

Status live(const UniqueId& id, int rank, int size, const SessionOptions& options = kLoopback) {
  ORIEL_TRY(EventLoop loop, EventLoop::create());
  return loop.run(whole_life(loop, id, rank, size, options));
}

/// Votes. Then rank `hasty` leaves at once, and aborts after it has left.
Task<Status> agree_and_leave(EventLoop& loop, Session& session, int hasty) {
  ORIEL_CO_TRY(const auto activity, session.activate(loop, Deadline::after(20s)));
  std::vector<AgreedField> fields;
  Status mine;
  ORIEL_CO_CHECK(
      co_await session.world().agree(Operation::test, std::move(mine), std::move(fields)));
  if (session.rank() == hasty) {
    session.leave();
    session.abort(Error(ErrorCode::internal, "what concerns nobody any more"));
  }
  co_return Status();
}

/// Rank 0 sends a broadcast and dies; rank 1 reads its link only after both.
Task<Status> receive_from_the_dead(EventLoop& loop, Session& session, std::atomic<bool>& listens) {
  ORIEL_CO_TRY(const auto activity, session.activate(loop, Deadline::after(20s)));
  while (session.rank() == 0 && !listens) std::this_thread::sleep_for(1ms);
  listens = true;
  if (session.rank() == 1) std::this_thread::sleep_for(200ms);
  Bytes word = payload(session.rank());
  ORIEL_CO_TRY(const Bytes reported,
               co_await session.world().broadcast(Operation::test, 0, std::move(word)));
  if (session.rank() == 0) ::_exit(0);
  if (reported != payload(0)) co_return Error(ErrorCode::internal, "wrong broadcast");
  const Status after = co_await session.world().barrier(Operation::test);
  if (after.ok()) co_return Error(ErrorCode::internal, "a barrier with the dead");
  co_return Status();
}

/// Runs one of 8 ranks that stops listening after it has joined.
Task<Status> check_no_listeners_left(EventLoop& loop, UniqueId id, int rank) {
  const std::size_t before = test::count_fds();
  const Deadline deadline = Deadline::after(20s);
  SessionOptions options = kLoopback;
  ORIEL_CO_TRY(const auto session,
               co_await Session::join(loop, id, rank, 8, std::move(options), deadline));
  ORIEL_CO_TRY(const auto activity, session->activate(loop, deadline));
  session->stop_listening();
  const std::size_t held = test::count_fds() - before, listeners = listening_addresses().size();
  if (held != 2 + 5 || listeners != 0) {
    co_return Error(ErrorCode::internal,
                    fmt::format("{} descriptors, {} listeners", held, listeners));
  }
  std::vector<int> near = {rank - rank % 2, rank - rank % 2 + 1};
  ORIEL_CO_TRY(Group pair, co_await session->subgroup(std::move(near)));
  ORIEL_CO_CHECK(co_await pair.barrier(Operation::test));
  std::vector<int> far = {rank, (rank + 3) % 8};  // ranks without a link
  const auto none = co_await session->subgroup(std::move(far));
  if (none.ok()) co_return Error(ErrorCode::internal, "a group without links");
  co_return co_await session->world().barrier(Operation::test);
}

}  // namespace

TEST_CASE("a rank of 8 keeps 7 descriptors and no listener once it has stopped listening",
          "[req:1.15]") {
  const ServedId id;
  const auto live_so = [&](int rank) -> Status {
    ORIEL_TRY(EventLoop loop, EventLoop::create());
    return loop.run(check_no_listeners_left(loop, id.value(), rank));
  };
  CHECK(run_forked(8, live_so, 30s) == all_ok(8));
}

TEST_CASE("ranks as processes, as threads and of one thread run every protocol and leave",
          "[req:1.10]") {
  for (const int size : {1, 2, 3, 5, 8}) {
    CAPTURE(size);
    const ServedId id;
    CHECK(run_forked(
              size, [&](int rank) { return live(id.value(), rank, size); }, 30s) == all_ok(size));
  }
  for (const int size : {1, 2, 4, 7, 16}) {
    CAPTURE(size);
    UniqueId id = new_id();
    CHECK(run_threads(size, [&](int rank) { return live(id, rank, size); }) == all_ok(size));
    id = new_id();
    auto loop = std::move(EventLoop::create()).value();
    std::vector<Task<Status>> tasks;
    for (int rank = 0; rank < size; ++rank) tasks.push_back(whole_life(loop, id, rank, size));
    for (const Status& status : loop.run_all(std::move(tasks))) CHECK(text_of(status) == "ok");
  }
}

TEST_CASE("ranks meet on the default interface and over IPv6", "[req:1.7]") {
  for (const SocketOptions& socket : {SocketOptions{}, SocketOptions{"lo", AF_INET6}}) {
    const auto id = create_unique_id(socket);
    if (!id.ok() && socket.family == AF_INET6) {
      WARN("skipped: " << id.error().to_string());
      continue;
    }
    REQUIRE(id.ok());
    if (socket.family == AF_INET6) CHECK(contains(id->root.to_string(), "[::1]:"));
    CHECK(run_threads(5, [&](int rank) { return live(*id, rank, 5, {socket}); }) == all_ok(5));
  }
}

TEST_CASE("errors of a rank that has left are not reported to ranks in their last call",
          "[req:1.41]") {
  for (int i = 0; i < 24; ++i) {
    const int size = 2 + i % 4;
    const int hasty = i % size;
    CAPTURE(size, hasty);
    CHECK(run_thread_sessions(size, [&](EventLoop& loop, Session& session) {
            return loop.run(agree_and_leave(loop, session, hasty));
          }) == all_ok(size));
  }
}

TEST_CASE("a message that a rank sent before its death is received", "[req:1.38]") {
  const Shared<std::atomic<bool>> listens;
  const auto results = run_sessions(2, [&](EventLoop& loop, Session& session) {
    return loop.run(receive_from_the_dead(loop, session, *listens));
  });
  CHECK(results[1] == "ok");
}

TEST_CASE("if a rank cannot start to join, the other ranks get its reason", "[req:1.38]") {
  constexpr int kSize = 4;
  for (int absent = 0; absent < kSize; ++absent) {
    const UniqueId id = new_id();
    const test::FairTimer timer;
    const auto results = run_threads(kSize, [&](int rank) -> Status {
      if (rank != absent) return live(id, rank, kSize);
      ORIEL_TRY(EventLoop loop, EventLoop::create());
      Error reason = Error(ErrorCode::system, "there is no loop").with_origin(rank);
      return loop.run(Session::decline(loop, id, rank, kSize, std::move(reason), kLoopback,
                                       Deadline::after(10s)));
    });
    CHECK(timer.spent() < 5s);  // the ranks' timeout is 20 s
    CHECK(results[static_cast<std::size_t>(absent)] == "ok");
    check_all_say(results, {fmt::format("rank {}: ", absent), "there is no loop"}, absent);
  }
}

TEST_CASE("a rank that gives up while it is idle learns of it like the others", "[req:1.12]") {
  std::barrier<> joined(2);  // otherwise the other rank's join might see the abort
  const auto results = run_thread_sessions(2, [&](EventLoop&, Session& session) {
    joined.arrive_and_wait();
    if (session.rank() == 1) session.abort(Error(ErrorCode::internal, "this rank gives up"));
    std::vector<PeerEvent> events;
    const bool has_answered = test::eventually([&] {
      events = session.peers().pump_idle();
      return !events.empty();
    });
    if (!has_answered) return Status(Error(ErrorCode::timeout, "no news"));
    const PeerEvent& event = events.front();
    const bool right = event.kind == PeerEvent::Kind::lost && event.error.origin_rank() == 1;
    return right ? Status() : Status(event.error);
  });
  CHECK(results == all_ok(2));
}

TEST_CASE("a rank that has waited long for a link, and has it, is no longer said to wait for it",
          "[req:1.12]") {
  std::barrier<> linked(8), over(8);
  const auto results = run_thread_sessions(8, [&](EventLoop& loop, Session& session) {
    const int rank = session.rank();
    std::optional<Session::Activity> activity;
    const auto act = [&](Duration timeout) {
      activity.reset();
      activity.emplace(session.activate(loop, Deadline::after(timeout)).value());
    };
    Status status;
    if (rank == 0 || rank == 3) {  // 0 and 3 have no link yet
      if (rank == 3) std::this_thread::sleep_for(1200ms);
      act(4s);  // rank 0 announces the missing rank after a quarter
      const auto pair = loop.run(session.subgroup({0, 3}));
      if (!pair.ok()) status = pair.error();
      activity.reset();
    }
    linked.arrive_and_wait();
    if (rank == 1) {
      act(2s);
      status = loop.run(session.world().barrier(Operation::test));
    }
    over.arrive_and_wait();
    return status;
  });
  CHECK(results[0] == "ok");
  CHECK(results[3] == "ok");
  CHECK(contains(results[1], "rank 0 waits for nobody"));
}

TEST_CASE("a set-up call times out on a rank that waits for its own kernel, and says so", "[D9]") {
  std::barrier<> over(2);
  const auto results = run_thread_sessions(2, [&](EventLoop& loop, Session& session) {
    Status status;
    if (session.rank() == 0) {
      session.peers().send_waiting(0);
    } else {
      const auto activity = session.activate(loop, Deadline::after(1s)).value();
      status = loop.run(session.world().barrier(Operation::test));
    }
    over.arrive_and_wait();
    return status;
  });
  CHECK(contains(results[1], "rank 1 timed out waiting for a message from rank 0"));
  CHECK(contains(results[1], "; rank 0 waits for its own kernel"));
}

namespace {

/// Returns an error unless `again` reports an unusable id, with `word` in its text.
Status expect_useless(const Status& again, const std::string& word) {
  if (again.ok()) return Error(ErrorCode::internal, "it joined");
  const std::string text = again.error().to_string();
  const bool named = again.error().code() == ErrorCode::invalid_usage && contains(text, word) &&
                     contains(text, "10 minutes");
  return named ? Status() : again;
}

/// Runs in the process that made the ids.
Status use_ids_again() {
  ORIEL_TRY(const UniqueId alone, create_unique_id(kLoopback.socket));
  ORIEL_CHECK(join_once(alone, 0, 1));
  ORIEL_CHECK(expect_useless(join_once(alone, 0, 1), "has been used"));
  ORIEL_CHECK(expect_useless(join_once(alone, 0, 2), "has been used"));
  ORIEL_TRY(const UniqueId shared, create_unique_id(kLoopback.socket));
  const auto joined = run_threads(2, [&](int rank) { return join_once(shared, rank, 2); });
  if (joined != all_ok(2)) return Error(ErrorCode::internal, joined[0]);
  const auto is_known_as_used = [](const UniqueId& id) {
    return test::eventually([&] { return !RootService::instance().check_unused(id.number).ok(); });
  };
  if (!is_known_as_used(shared)) return Error(ErrorCode::timeout, "the rendezvous goes on");
  ORIEL_CHECK(expect_useless(join_once(shared, 1, 2), "has been used"));
  ORIEL_TRY(const UniqueId old, create_unique_id(kLoopback.socket, 1ms));
  if (!is_known_as_used(old)) return Error(ErrorCode::timeout, "the id does not expire");
  return expect_useless(join_once(old, 0, 2), "has expired");
}

}  // namespace

TEST_CASE("an id that is used again, or has expired, is named in its own process",
          "[req:1.7][req:1.38]") {
  CHECK(run_forked(
            1, [](int) { return use_ids_again(); }, 20s) == all_ok(1));
}

TEST_CASE("an id that is used again is named in other processes as far as can be known",
          "[req:1.7][req:1.38]") {
  struct Progress {
    std::atomic<int> step{0};
    UniqueId used;
    Status reach(int wanted) const {
      return test::eventually([&] { return step >= wanted; })
                 ? Status()
                 : Error(ErrorCode::timeout, "the other process");
    }
  };
  const Shared<Progress> progress;
  ForkedRanks processes(2, [&](int process) -> Status {
    RootService& service = RootService::instance();
    if (process == 1) {
      ORIEL_TRY(progress->used, create_unique_id(kLoopback.socket));
      ORIEL_TRY(const UniqueId other, create_unique_id(kLoopback.socket));
      service.retire(progress->used.number);
      progress->step = 1;
      ORIEL_CHECK(progress->reach(2));
      service.retire(other.number);  // ends the service
      if (!test::eventually([] { return !test::has_thread("oriel-root"); })) {
        return Error(ErrorCode::timeout, "the service goes on");
      }
      progress->step = 3;
      return progress->reach(4);
    }
    ORIEL_CHECK(progress->reach(1));
    ORIEL_CHECK(expect_useless(join_once(progress->used, 0, 2), "does not know"));
    progress->step = 2;
    ORIEL_CHECK(progress->reach(3));
    const Status refused = join_once(progress->used, 0, 2);
    progress->step = 4;
    if (refused.ok()) return Error(ErrorCode::internal, "it joined");
    const std::string& hint = refused.error().hint();
    return contains(hint, "firewall") && contains(hint, "used before") ? Status() : refused;
  });
  CHECK(processes.collect(20s) == all_ok(2));
}

}  // namespace oriel::boot
