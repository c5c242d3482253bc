// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that die, stop, disagree or are missing, over real sockets.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/resource.h>

#include "base/try.hpp"
#include "boot/session/forked_ranks.hpp"
#include "boot/session/inherited_memory.hpp"
#include "boot/session/root_service.hpp"
#include "boot/session/served_id.hpp"
#include "boot/support/loopback.hpp"
#include "support/fair_timer.hpp"
#include "support/sanitized.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

/// Joins, then barriers without end; the error it ends with, and when by the clock of the host.
/// `joined` counts who has come so far.
Status barriers_until_failure(const UniqueId& id, int rank, int size, Duration patience,
                              std::atomic<int>* joined = nullptr) {
  ORIEL_TRY(EventLoop loop, EventLoop::create());
  ORIEL_TRY(const auto session, join(loop, id, rank, size, joined == nullptr ? 3s : 20s));
  if (joined != nullptr) ++*joined;
  for (;;) {
    Status status = loop.run(one_barrier(loop, *session, patience));
    if (!status.ok()) {
      return std::move(status).error().with_context(
          fmt::format("@{}", steady_clock::now().time_since_epoch().count()));
    }
  }
}

std::size_t open_fds() {
  const auto begin = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator{}));
}
std::size_t threads() {
  const auto begin = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator{}));
}

struct Finish {
  std::atomic<int> joined{0};
  std::atomic<int> ended{0};
};

void wait_until_root_ends() {
  const auto end = steady_clock::now() + 10s;
  while (RootService::instance().running() && steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace

TEST_CASE("1,000 joins of two threads leave no descriptor and no thread", "[req:1.38]") {
  const auto cycle = [] {
    const UniqueId id = new_id();
    const auto verdicts = run_threads(2, [&](int rank) { return join_and_barrier(id, rank, 2); });
    REQUIRE(verdicts == std::vector<std::string>{"ok", "ok"});
  };
  cycle();
  wait_until_root_ends();
  // A thread that has ended stays in the list for a moment, so the first count may be one too high.
  const std::size_t fds = open_fds();
  const std::size_t tasks = threads();
  for (int i = 0; i < test::repeats(1000); ++i) cycle();
  wait_until_root_ends();
  const auto end = steady_clock::now() + 5s;
  while (threads() > tasks && steady_clock::now() < end) std::this_thread::sleep_for(1ms);
  CHECK(open_fds() == fds);
  CHECK(threads() <= tasks);
}

TEST_CASE("64 ranks as processes join and meet in a barrier", "[req:1.11]") {
  const std::chrono::milliseconds most = test::kSanitized ? 20s : 2s;
  test::FairTimer timer;
  auto fastest = std::chrono::milliseconds::max();
  // Others may have the machine for a while; that they have it thrice is another matter.
  for (int attempt = 0; attempt < 3 && fastest >= most; ++attempt) {
    const ServedId served;
    const UniqueId& id = served.value();
    timer.restart();
    const auto verdicts = run_forked(
        64, [&](int rank) { return join_and_barrier(id, rank, 64); }, 60s);
    fastest = std::min(fastest, timer.spent());
    for (const auto& verdict : verdicts) CHECK(verdict == "ok");
  }
  WARN("64 processes, fork to reaped: " << fastest.count() << " ms");
  CHECK(fastest < most);
}

TEST_CASE("ranks meet over IPv6", "[req:1.7]") {
  const SocketOptions six = {.ifname = "lo", .family = AF_INET6};
  std::optional<ServedId> id;
  try {
    id.emplace(six);
  } catch (const std::runtime_error& error) {
    WARN("skipped: " << error.what());
    return;
  }
  CHECK(contains(id->value().root.to_string(), "[::1]:"));
  const auto verdicts = run_forked(
      5, [&](int rank) { return join_and_barrier(id->value(), rank, 5); }, 30s);
  for (const auto& verdict : verdicts) CHECK(verdict == "ok");
}

TEST_CASE("ranks meet on the default interface", "[req:1.7]") {
  const ServedId served{SocketOptions()};
  const UniqueId& id = served.value();
  const auto verdicts = run_forked(
      3,
      [&](int rank) -> Status {
        ORIEL_TRY(EventLoop loop, EventLoop::create());
        ORIEL_TRY(const auto session,
                  loop.run(Session::join(loop, id, rank, 3, {}, Deadline::after(20s))));
        return loop.run(one_barrier(loop, *session, 20s));
      },
      30s);
  for (const auto& verdict : verdicts) CHECK(verdict == "ok");
}

TEST_CASE("a rank killed at a random moment: every survivor names it within a second",
          "[req:1.12]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  test::FairTimer timer;
  std::chrono::milliseconds slowest{0};
  for (int round = 0; round < test::repeats(40, 4); ++round) {
    const int size = 2 + static_cast<int>(random() % 7);
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
    // From the first moments of join to the midst of the barriers.
    const auto delay = std::chrono::microseconds(random() % 20000);
    CAPTURE(round, size, victim, delay.count());
    const ServedId served;
    const UniqueId& id = served.value();
    ForkedRanks ranks(size, [&](int rank) { return barriers_until_failure(id, rank, size, 20s); });
    std::this_thread::sleep_for(delay);
    timer.restart();
    ranks.kill(victim, SIGKILL);
    const auto verdicts = ranks.collect(20s);
    const auto spent = timer.spent();
    bool all_came = true;
    // A victim that had not come to the rendezvous yet cannot be known to be dead; only then do the
    // others wait for it, and are told so.
    for (int rank = 0; rank < size; ++rank) {
      if (rank == victim) continue;
      const std::string& verdict = verdicts[static_cast<std::size_t>(rank)];
      CAPTURE(rank, verdict);
      const bool named =
          contains(verdict, fmt::format("rank {} has died", victim)) ||
          contains(verdict, fmt::format("rank {} of {} has not joined", victim, size));
      CHECK(named);
      all_came = all_came && !contains(verdict, "has not joined");
    }
    if (!all_came) continue;
    CHECK(spent < 1s);
    slowest = std::max(slowest, spent);
  }
  WARN("SIGKILL to the last survivor's end, at worst: " << slowest.count() << " ms");
}

TEST_CASE("a rank that is stopped: every other rank ends at the deadline and names it",
          "[req:1.12]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  test::FairTimer timer;
  const std::chrono::milliseconds patience = test::kSanitized ? 3s : 1s;
  for (const int size : {2, 3, 5, 8}) {
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
    CAPTURE(size, victim);
    const ServedId served;
    const UniqueId& id = served.value();
    const Shared<Finish> finish;
    ForkedRanks ranks(size, [&](int rank) {
      Status status = barriers_until_failure(id, rank, size, patience, &finish->joined);
      ++finish->ended;
      return status;
    });
    const auto limit = steady_clock::now() + 20s;
    while (finish->joined < size && steady_clock::now() < limit) {
      std::this_thread::sleep_for(1ms);
    }
    std::this_thread::sleep_for(50ms);
    const auto begin = steady_clock::now();
    timer.restart();
    ranks.kill(victim, SIGSTOP);
    while (finish->ended < size - 1 && steady_clock::now() < begin + 20s) {
      std::this_thread::sleep_for(1ms);
    }
    const auto spent = timer.spent();
    CHECK(steady_clock::now() - begin >= patience * 9 / 10);
    CHECK(spent <
          patience * 19 / 10);  // those that time out one after the other take twice as long
    ranks.kill(victim, SIGKILL);
    const auto verdicts = ranks.collect(20s);
    for (int rank = 0; rank < size; ++rank) {
      if (rank == victim) continue;
      const std::string& verdict = verdicts[static_cast<std::size_t>(rank)];
      CAPTURE(rank, verdict);
      CHECK(contains(verdict, "in vain"));
      CHECK(contains(verdict, fmt::format("rank {} waits for nobody", victim)));
      CHECK(verdict.starts_with(fmt::format("rank {}: ", victim)));
    }
  }
}

TEST_CASE("a rank that stops for a while and goes on harms nobody", "[req:1.12]") {
  const ServedId served;
  const UniqueId& id = served.value();
  ForkedRanks ranks(4, [&](int rank) -> Status {
    ORIEL_TRY(EventLoop loop, EventLoop::create());
    ORIEL_TRY(const auto session, join(loop, id, rank, 4, 20s));
    for (int i = 0; i < 60; ++i) {
      ORIEL_CHECK(loop.run(one_barrier(loop, *session, 20s)));
      std::this_thread::sleep_for(10ms);
    }
    return {};
  });
  std::this_thread::sleep_for(200ms);
  ranks.kill(2, SIGSTOP);
  std::this_thread::sleep_for(1s);  // the others have begun to say for whom they wait
  ranks.kill(2, SIGCONT);
  for (const auto& verdict : ranks.collect(20s)) CHECK(verdict == "ok");
}

TEST_CASE("ranks that are missing are named at the deadline, to all that came", "[req:1.38]") {
  const ServedId served;
  const UniqueId& id = served.value();
  const test::FairTimer timer;
  const auto verdicts = run_forked(
      3,
      [&](int rank) -> Status {
        ORIEL_TRY(EventLoop loop, EventLoop::create());
        // Ranks 1 and 3 of 5 never come.
        const auto session = join(loop, id, rank * 2, 5, 500ms);
        return session.ok() ? Status() : session.error();
      },
      10s);
  CHECK(timer.spent() < 3s);
  for (const auto& verdict : verdicts) {
    CAPTURE(verdict);
    CHECK(contains(verdict, "ranks 1, 3 of 5 have not joined in time"));
  }
}

TEST_CASE("sizes that differ and equal numbers are named to both", "[req:1.38]") {
  const auto outcome = [](std::array<std::pair<int, int>, 2> callers) {
    const ServedId served;
    const UniqueId& id = served.value();
    return run_forked(
        2,
        [&](int caller) -> Status {
          ORIEL_TRY(EventLoop loop, EventLoop::create());
          const auto [rank, size] = callers[static_cast<std::size_t>(caller)];
          const auto session = join(loop, id, rank, size, 5s);
          return session.ok() ? Status() : session.error();
        },
        10s);
  };
  for (const auto& verdict : outcome({{{0, 3}, {1, 4}}})) {
    CAPTURE(verdict);
    CHECK(contains(verdict, "joined with size"));
    CHECK((contains(verdict, "size 3") && contains(verdict, "size 4")));
  }
  for (const auto& verdict : outcome({{{1, 3}, {1, 3}}})) {
    CAPTURE(verdict);
    CHECK(contains(verdict, "two callers joined as rank 1"));
  }
}

TEST_CASE("ranks that come late to a failed rendezvous learn the same error", "[req:1.16]") {
  const ServedId served;
  const auto verdicts = run_forked(
      4,
      [&](int rank) -> Status {
        ORIEL_TRY(EventLoop loop, EventLoop::create());
        if (rank >= 2) std::this_thread::sleep_for(rank * 300ms);
        const auto session = join(loop, served.value(), rank, rank == 0 ? 2 : 4, 5s);
        return session.ok() ? Status() : session.error();
      },
      10s);
  for (const auto& verdict : verdicts) {
    CAPTURE(verdict);
    CHECK(contains(verdict, "joined with size"));
    CHECK((contains(verdict, "size 2") && contains(verdict, "size 4")));
  }
}

TEST_CASE("a wrong secret is refused, and the communicator forms without it", "[req:1.8]") {
  const ServedId served;
  const UniqueId& id = served.value();
  UniqueId forged = id;
  forged.secret = Key::random();
  const auto begin = steady_clock::now();
  const Shared<Finish> refused;
  const auto verdicts = run_forked(
      4,
      [&](int rank) -> Status {
        if (rank == 3) {
          Status status = join_and_barrier(forged, 0, 3);
          ++refused->ended;
          return status;
        }
        // Once all three have joined, nobody listens there any more.
        while (rank == 0 && refused->ended == 0) std::this_thread::sleep_for(1ms);
        return join_and_barrier(id, rank, 3);
      },
      20s);
  for (int rank = 0; rank < 3; ++rank) CHECK(verdicts[static_cast<std::size_t>(rank)] == "ok");
  CAPTURE(verdicts[3]);
  CHECK(contains(verdicts[3], "closed the connection during the handshake"));
  CHECK(steady_clock::now() - begin < 15s);  // the ranks' patience is 20 s
}

TEST_CASE("an abort ends the other ranks' operations at once", "[req:1.12]") {
  const ServedId served;
  const UniqueId& id = served.value();
  const auto begin = steady_clock::now();
  const auto verdicts = run_forked(
      6,
      [&](int rank) -> Status {
        ORIEL_TRY(EventLoop loop, EventLoop::create());
        ORIEL_TRY(const auto session, join(loop, id, rank, 6, 20s));
        if (rank == 4) {
          std::this_thread::sleep_for(50ms);
          session->abort(Error(ErrorCode::aborted, "enough of this"));
          std::this_thread::sleep_for(50ms);
          return {};
        }
        const Status status = loop.run(one_barrier(loop, *session, 20s));
        // And it stays so.
        const Status again = loop.run(one_barrier(loop, *session, 20s));
        if (again.ok()) return {};
        return status;
      },
      10s);
  CHECK(steady_clock::now() - begin < 10s);  // the ranks' patience is 20 s
  for (int rank = 0; rank < 6; ++rank) {
    const std::string& verdict = verdicts[static_cast<std::size_t>(rank)];
    CAPTURE(rank, verdict);
    CHECK((rank == 4 ? verdict == "ok" : contains(verdict, "rank 4: ")));
    if (rank != 4) CHECK(contains(verdict, "enough of this"));
  }
}

TEST_CASE("another thread can stop an operation by aborting its session", "[req:1.12]") {
  const UniqueId id = new_id();
  auto loop = std::move(EventLoop::create()).value();
  std::vector<Task<Result<std::unique_ptr<Session>>>> joins;
  for (int rank = 0; rank < 2; ++rank) {
    joins.push_back(Session::join(loop, id, rank, 2, kLoopback, Deadline::after(20s)));
  }
  auto sessions = loop.run_all(std::move(joins));
  REQUIRE(sessions[0].ok());
  REQUIRE(sessions[1].ok());
  Session& first = *sessions[0].value();
  const auto begin = steady_clock::now();
  const std::jthread aborter([&] {
    std::this_thread::sleep_for(30ms);
    first.abort(Error(ErrorCode::aborted, "stopped by a thread"));
  });
  const Status status = loop.run(one_barrier(loop, first, 20s));
  REQUIRE_FALSE(status.ok());
  CHECK(contains(status.error().to_string(), "stopped by a thread"));
  CHECK(steady_clock::now() - begin < 10s);  // its patience is 20 s
}

namespace {

Task<Status> gather_large(EventLoop& loop, Session& session, std::size_t bytes) {
  ORIEL_CO_TRY(const auto activity, session.activate(loop, Deadline::after(30s)));
  Bytes mine(bytes, static_cast<std::byte>(session.rank() + 1));
  ORIEL_CO_TRY(const auto all,
               co_await session.world().all_gather(Operation::test, std::move(mine)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const bool right = all[rank].size() == bytes &&
                       all[rank].front() == static_cast<std::byte>(rank + 1) &&
                       all[rank].back() == static_cast<std::byte>(rank + 1);
    if (!right) co_return Error(ErrorCode::internal, fmt::format("wrong bytes of {}", rank));
  }
  co_return Status();
}

}  // namespace

TEST_CASE("messages larger than any socket buffer pass", "[req:1.9]") {
  const ServedId served;
  const UniqueId& id = served.value();
  const auto verdicts = run_forked(
      3,
      [&](int rank) -> Status {
        ORIEL_TRY(EventLoop loop, EventLoop::create());
        ORIEL_TRY(const auto session, join(loop, id, rank, 3, 20s));
        for (int i = 0; i < 3; ++i) {
          ORIEL_CHECK(loop.run(gather_large(loop, *session, 12U << 20)));
        }
        return {};
      },
      60s);
  for (const auto& verdict : verdicts) CHECK(verdict == "ok");
}

}  // namespace oriel::boot
