// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/monitor/monitor.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "base/try.hpp"
#include "boot/session/forked_ranks.hpp"
#include "boot/session/inherited_memory.hpp"
#include "boot/session/served_id.hpp"
#include "boot/session/session.hpp"
#include "support/fair_timer.hpp"
#include "support/numa_system.hpp"
#include "support/process_state.hpp"
#include "support/sanitized.hpp"

namespace oriel::comm {
namespace {

using namespace std::chrono_literals;
using boot::Operation;
using boot::Session;

const boot::SessionOptions kLoopback = {.socket = {.ifname = "lo"}};

using test::eventually;

bool monitor_runs() {
  return test::has_thread("oriel-monitor");
}

Result<std::unique_ptr<Session>> join(const boot::UniqueId& id, int rank, int size) {
  ORIEL_TRY(EventLoop loop, EventLoop::create());
  return loop.run(Session::join(loop, id, rank, size, kLoopback, Deadline::after(20s)));
}

struct Pair {
  void abort(const char* reason = "over") { b->abort(Error(ErrorCode::aborted, reason)); }

  std::unique_ptr<Session> a, b;
};

Pair join_pair() {
  auto id = boot::create_unique_id(kLoopback.socket);
  REQUIRE(id.ok());
  auto loop = std::move(EventLoop::create()).value();
  std::vector<Task<Result<std::unique_ptr<Session>>>> tasks;
  tasks.reserve(2);
  for (int rank = 0; rank < 2; ++rank) {
    tasks.push_back(Session::join(loop, id.value(), rank, 2, kLoopback, Deadline::after(20s)));
  }
  auto sessions = loop.run_all(std::move(tasks));
  for (auto& session : sessions) REQUIRE(session.ok());
  return {std::move(sessions[0]).value(), std::move(sessions[1]).value()};
}

/// Records the calls of the monitor. Reactions to peer_lost can be chosen.
class Notes final : public Watched {
 public:
  void peer_lost(Error error) override {
    if (losses == 0) {
      lost_rank = error.origin_rank();
      lost_at = std::chrono::steady_clock::now().time_since_epoch().count();
      const std::lock_guard lock(mutex_);
      text_ = error.to_string();
    }
    ++losses;
    if (on_lost) on_lost();
  }
  void peer_left(int) override { ++departures; }
  void tick(TimePoint) override {
    ++ticks;
    if (on_tick) on_tick();
  }

  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

  /// Makes the monitor watch this object.
  void watch(Session& session, std::vector<Watch> processes = {}, std::vector<int> cpus = {}) {
    const Status status =
        Monitor::instance().watch(*this, session, std::move(processes), std::move(cpus));
    REQUIRE(status.ok());
  }
  void unwatch() { Monitor::instance().unwatch(*this); }

  std::function<void()> on_lost;
  std::function<void()> on_tick;
  std::atomic<int> lost_rank{-1};
  std::atomic<std::int64_t> lost_at{0};
  std::atomic<int> losses{0};
  std::atomic<int> departures{0};
  std::atomic<int> ticks{0};

 private:
  std::mutex mutex_;
  std::string text_;
};

struct SharedState {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::atomic<std::int64_t> killed_at{0};
  std::array<std::atomic<pid_t>, 64> pids{};
};

/// Joins and watches the other ranks. Returns what it saw of `victim`, as an error.
Status watch_one_die(const boot::UniqueId& id, int rank, int size, int victim, bool with_pidfds,
                     SharedState& shared) {
  ORIEL_TRY(const auto session, join(id, rank, size));
  shared.pids[static_cast<std::size_t>(rank)] = ::getpid();
  ++shared.ready;
  if (!eventually([&] { return shared.ready == size; })) {
    return Error(ErrorCode::internal, "not all joined");
  }
  std::vector<Watch> processes;
  for (int peer = 0; peer < size && with_pidfds; ++peer) {
    if (peer != rank) processes.push_back({peer, shared.pids[static_cast<std::size_t>(peer)]});
  }
  Notes notes;
  ORIEL_CHECK(Monitor::instance().watch(notes, *session, std::move(processes)));
  shared.go = true;
  const bool seen = eventually([&] { return notes.losses > 0; });
  notes.unwatch();
  if (rank == victim) return Error(ErrorCode::internal, "the victim lives");
  if (!seen) return Error(ErrorCode::internal, "the death was not seen");
  if (notes.lost_rank != victim) {
    return Error(ErrorCode::internal, "wrong rank: " + notes.text());
  }
  const auto spent = std::chrono::nanoseconds(notes.lost_at - shared.killed_at);
  return Error(ErrorCode::aborted, fmt::format("{}", spent.count()));  // time, for the test
}

}  // namespace

TEST_CASE("the death of an idle rank is reported to every rank within a second", "[req:1.12]") {
  test::FairTimer timer;
  for (const int size : {2, 3, 5, 8}) {
    for (const bool with_pidfds : {true, false}) {
      const int victim = size / 2;
      CAPTURE(size, with_pidfds);
      const Shared<SharedState> shared;
      const ServedId id;
      ForkedRanks ranks(size, [&](int rank) {
        return watch_one_die(id.value(), rank, size, victim, with_pidfds, *shared);
      });
      REQUIRE(eventually([&] { return shared->ready == size && shared->go; }));
      std::this_thread::sleep_for(50ms);
      timer.restart();
      shared->killed_at = std::chrono::steady_clock::now().time_since_epoch().count();
      ranks.kill(victim, SIGKILL);
      std::int64_t slowest = 0;
      const auto results = ranks.collect(60s);
      const std::chrono::nanoseconds most = 1s + timer.withheld();
      for (int rank = 0; rank < size; ++rank) {
        if (rank == victim) continue;
        const std::string& result = results[static_cast<std::size_t>(rank)];
        CAPTURE(rank, result);
        REQUIRE(result.find_first_not_of("0123456789") == std::string::npos);
        CHECK(std::stoll(result) <= most.count());
        slowest = std::max<std::int64_t>(slowest, std::stoll(result));
      }
      WARN("size " << size << (with_pidfds ? ", links and pidfds" : ", links only")
                   << ": SIGKILL to the last callback " << slowest / 1000 << " us");
    }
  }
}

TEST_CASE("the monitor ticks while something is watched and ends its thread with the last",
          "[req:1.12]") {
  const std::size_t threads_before = test::count_threads();
  const std::size_t fds_before = test::count_fds();
  {
    const Pair pair = join_pair();
    Notes one, two;
    one.watch(*pair.a);
    two.watch(*pair.b);
    CHECK(eventually([&] { return one.ticks >= 5 && two.ticks >= 5; }));
    one.unwatch();
    const int ticks = one.ticks;
    CHECK(monitor_runs());
    const int others = two.ticks;
    CHECK(eventually([&] { return two.ticks >= others + 2; }));
    CHECK(one.ticks == ticks);
    two.unwatch();
    two.unwatch();  // no effect if it is not watched
    CHECK_FALSE(monitor_runs());
  }
  // The thread sanitizer starts its own thread with the first thread of the process.
  if (!test::kThreadSanitized)
    CHECK(eventually([&] { return test::count_threads() <= threads_before; }));
  // The thread that served the ids ends in the background.
  CHECK(eventually([&] { return test::count_fds() == fds_before; }));
}

TEST_CASE("departure, abort and an unannounced end are distinguished", "[req:1.12]") {
  struct Ending {
    const char* name;
    bool leaves, aborts, in_process;
  };
  for (const Ending& ending : {Ending{"left", true, false, false},
                               {"aborted", false, true, false},
                               {"a process that has ended and has not left", false, false, true},
                               {"a process that has ended after it left", true, false, true}}) {
    INFO(ending.name);
    Notes notes;
    Pair pair = join_pair();
    std::optional<ForkedRanks> other;
    std::vector<Watch> processes;
    if (ending.in_process) {
      other.emplace(1, [](int) -> Status { return {}; });
      processes.push_back({1, other->pid(0)});
      if (ending.leaves) pair.b.reset();
    }
    notes.watch(*pair.a, processes);
    if (ending.leaves) pair.b.reset();
    if (ending.aborts) pair.abort("the user has had enough");
    CHECK(eventually([&] { return (ending.leaves ? notes.departures : notes.losses) == 1; }));
    if (ending.leaves && ending.in_process) std::this_thread::sleep_for(Monitor::kGrace + 100ms);
    CHECK(notes.losses == (ending.leaves ? 0 : 1));
    CHECK(pair.a->has_left(1) == ending.leaves);
    // A rank that ended without a goodbye counts as dead.
    CHECK(pair.a->failure().has_value() == !ending.leaves);
    if (!ending.leaves) {
      CHECK(notes.lost_rank == 1);
      const std::string reason =
          ending.aborts ? "the user has had enough" : std::to_string(other->pid(0));
      CHECK(notes.text().find(reason) != std::string::npos);
    }
    notes.unwatch();
  }
}

TEST_CASE("a monitor that runs out of memory ends what it watches, with a reason, and goes on",
          "[req:1.12]") {
  Pair pair = join_pair();
  Pair other = join_pair();
  Notes starved, peer, bystander;
  std::atomic<bool> out_of_memory{false};
  starved.on_tick = [&] {
    if (out_of_memory) throw std::bad_alloc();
  };
  starved.on_lost = [&] { out_of_memory = false; };
  starved.watch(*pair.a);
  peer.watch(*pair.b);
  bystander.watch(*other.a);
  out_of_memory = true;
  CHECK(eventually([&] { return starved.losses > 0 && peer.losses > 0 && bystander.losses > 0; }));
  for (Notes* notes : {&starved, &peer, &bystander}) {
    CHECK(notes->text().find("the thread that watches the other ranks") != std::string::npos);
  }
  CHECK(pair.a->failure());
  CHECK(pair.b->failure());
  CHECK(other.a->failure());
  for (Notes* notes : {&starved, &peer, &bystander}) notes->unwatch();
  CHECK_FALSE(monitor_runs());

  Pair next = join_pair();
  Notes notes;
  notes.watch(*next.a);
  next.abort();
  CHECK(eventually([&] { return notes.losses == 1; }));
  notes.unwatch();
}

TEST_CASE("unwatch waits for a callback, and may be called from one", "[req:1.12]") {
  SECTION("waits") {
    Pair pair = join_pair();
    Notes notes;
    std::atomic<bool> inside{false}, after{false};
    notes.on_lost = [&] {
      inside = true;
      std::this_thread::sleep_for(100ms);
      after = true;
    };
    notes.watch(*pair.a);
    pair.abort();
    REQUIRE(eventually([&] { return inside.load(); }));
    notes.unwatch();
    CHECK(after);
  }
  SECTION("from the callback, also of the last") {
    Pair pair = join_pair();
    Notes notes;
    notes.on_lost = [&] { notes.unwatch(); };
    notes.watch(*pair.a);
    pair.abort();
    REQUIRE(eventually([&] { return notes.losses == 1; }));
    CHECK(eventually([&] { return !monitor_runs(); }));
    // A new session can be watched at once, and gets ticks.
    Pair other = join_pair();
    Notes more;
    more.watch(*other.a);
    CHECK(eventually([&] { return more.ticks > 0; }));
    more.unwatch();
    CHECK_FALSE(monitor_runs());
  }
}

namespace {

// Runs barriers of both ranks. In the pauses, the monitor has the links.
Task<Status> barriers(EventLoop& loop, Session& session, int count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < count; ++i) {
    const Deadline pause = Deadline::after(std::chrono::microseconds(random() % 300));
    ORIEL_CO_CHECK(co_await loop.sleep_until(pause));
    ORIEL_CO_TRY(const auto activity, session.activate(loop, Deadline::after(20s)));
    ORIEL_CO_CHECK(co_await session.world().barrier(Operation::test));
  }
  co_return Status();
}

}  // namespace

TEST_CASE("barriers over links that the monitor watches succeed, and it reports no loss",
          "[req:1.9]") {
  Pair pair = join_pair();
  Notes notes_a, notes_b;
  notes_a.watch(*pair.a);
  notes_b.watch(*pair.b);
  std::array<std::string, 2> results;
  {
    const auto run = [&](Session& session, int rank) {
      auto loop = std::move(EventLoop::create()).value();
      const Status status =
          loop.run(barriers(loop, session, 500, static_cast<std::uint64_t>(rank)));
      results[static_cast<std::size_t>(rank)] = status.ok() ? "ok" : status.error().to_string();
    };
    const std::jthread first([&] { run(*pair.a, 0); });
    const std::jthread second([&] { run(*pair.b, 1); });
  }
  CHECK(results[0] == "ok");
  CHECK(results[1] == "ok");
  CHECK(notes_a.losses == 0);
  notes_a.unwatch();
  notes_b.unwatch();
}

TEST_CASE("the monitor runs near the devices of all whom it watches; user threads stay",
          "[req:2.5]") {
  const test::NumaSystem system;
  using Numbers = std::vector<int>;
  const auto last_cpus = [&] {
    const auto placements = system.seen_placements();
    return placements.empty() ? Numbers() : placements.back().cpus;
  };
  Pair pair = join_pair();
  Pair other = join_pair();
  Notes first, second, indifferent;
  indifferent.watch(*other.a);
  CHECK(eventually([&] { return indifferent.ticks > 0; }));
  CHECK(system.seen_placements().empty());
  first.watch(*pair.a, {}, {0, 1, 2});
  CHECK(eventually([&] { return last_cpus() == Numbers{0, 1, 2}; }));
  second.watch(*pair.b, {}, {2, 7});
  CHECK(eventually([&] { return last_cpus() == Numbers{0, 1, 2, 7}; }));
  first.unwatch();
  CHECK(eventually([&] { return last_cpus() == Numbers{2, 7}; }));
  second.unwatch();
  const int ticks = indifferent.ticks;
  CHECK(eventually([&] { return indifferent.ticks > ticks + 1; }));
  CHECK(last_cpus() == Numbers{2, 7});
  CHECK(system.seen_placements().size() == 3);
  for (const auto& placement : system.seen_placements()) {
    CHECK(placement.thread != static_cast<pid_t>(::syscall(SYS_gettid)));
  }
  indifferent.unwatch();
}

TEST_CASE("a monitor that may not move watches from where it is", "[req:2.5]") {
  test::NumaSystem system;
  system.cpu_status = GENERATE(EPERM, EINVAL);
  Pair pair = join_pair();
  Notes notes;
  notes.watch(*pair.a, {}, {3});
  CHECK(eventually([&] { return system.seen_placements().size() == 1; }));
  pair.abort();
  CHECK(eventually([&] { return notes.losses == 1; }));
  notes.unwatch();
}

}  // namespace oriel::comm
