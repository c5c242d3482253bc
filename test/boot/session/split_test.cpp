// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests sessions of a subset of a session's ranks, which link without a rendezvous.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "base/try.hpp"
#include "boot/session/inherited_memory.hpp"
#include "boot/session/session.hpp"
#include "boot/support/loopback.hpp"
#include "support/process_state.hpp"
#include "support/sanitized.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;

/// One way to divide the ranks, in terms of split's color and key.
struct Division {
  const char* name;
  std::optional<std::int32_t> (*color)(int rank);
  std::int32_t (*key)(int rank);
};

constexpr Division kDivisions[] = {
    {"all, keys in order", [](int) { return std::optional(0); }, [](int rank) { return rank; }},
    {"all, keys reversed and negative", [](int) { return std::optional(7); },
     [](int rank) { return -rank; }},
    {"odd and even, equal keys", [](int rank) { return std::optional(rank % 2); },
     [](int) { return 5; }},
    {"each rank alone", [](int rank) { return std::optional(rank * 1000); }, [](int) { return 0; }},
    {"without every third rank",
     [](int rank) { return rank % 3 == 2 ? std::nullopt : std::optional(0x7fffffff); },
     [](int rank) { return rank % 2 == 0 ? 0x7fffffff : -0x7fffffff - 1; }},
    {"no rank", [](int) { return std::optional<std::int32_t>(); }, [](int) { return 0; }},
};

SplitCall call_of(const Division& division, int rank) {
  return {.color = division.color(rank), .key = division.key(rank)};
}

std::vector<int> expected_members(const Division& division, int rank, int size) {
  std::vector<int> members;
  if (!division.color(rank)) return members;
  for (int other = 0; other < size; ++other) {
    if (division.color(other) == division.color(rank)) members.push_back(other);
  }
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return division.key(a) < division.key(b); });
  return members;
}

Task<Result<SplitPart>> split(EventLoop& loop, Session& session, SplitCall call,
                              Duration timeout = kJoinTime) {
  co_return co_await session.split(loop, std::move(call), Deadline::after(timeout));
}

/// Gathers the ranks' numbers in the parent, and checks that they are the members.
Task<Status> check_members(EventLoop& loop, Session& session, int parent_rank,
                           std::vector<int> members) {
  ORIEL_CO_TRY(const auto activity, session.activate(loop, Deadline::after(kJoinTime)));
  Bytes mine = {static_cast<std::byte>(parent_rank)};
  ORIEL_CO_TRY(const auto all,
               co_await session.world().all_gather(Operation::test, std::move(mine)));
  std::vector<int> seen;
  for (const Bytes& bytes : all) seen.push_back(static_cast<int>(bytes.at(0)));
  if (seen != members) {
    co_return Error(ErrorCode::internal,
                    fmt::format("ranks {} are in the session, not {}", fmt::join(seen, ", "),
                                fmt::join(members, ", ")));
  }
  co_return Status();
}

/// Splits the world by every division, and splits each result again; the parents are destroyed
/// first.
Task<Status> split_twice(EventLoop& loop, UniqueId id, int rank, int size) {
  SessionOptions options = kLoopback;
  ORIEL_CO_TRY(auto world, co_await Session::join(loop, id, rank, size, std::move(options),
                                                  Deadline::after(kJoinTime)));
  std::vector<SplitPart> parts;
  for (const Division& division : kDivisions) {
    ORIEL_CO_TRY(SplitPart part, co_await split(loop, *world, call_of(division, rank)));
    if (part.members != expected_members(division, rank, size)) {
      co_return Error(ErrorCode::internal, fmt::format("members of \"{}\"", division.name));
    }
    parts.push_back(std::move(part));
  }
  world.reset();
  for (SplitPart& part : parts) {
    if (part.session == nullptr) continue;
    std::vector<int> members = part.members;
    ORIEL_CO_CHECK(co_await check_members(loop, *part.session, rank, members));
    const int inner = part.session->rank();
    SplitCall call = {.color = inner / 2, .key = -inner};
    ORIEL_CO_TRY(SplitPart pair, co_await split(loop, *part.session, std::move(call)));
    part.session.reset();
    for (int& member : pair.members) member = members.at(static_cast<std::size_t>(member));
    ORIEL_CO_CHECK(co_await check_members(loop, *pair.session, rank, pair.members));
  }
  co_return Status();
}

Status split_alone(const UniqueId& id, int rank, int size) {
  ORIEL_TRY(EventLoop loop, EventLoop::create());
  return loop.run(split_twice(loop, id, rank, size));
}

TEST_CASE("sessions split by any colors and keys, and again, link the ranks in order",
          "[req:5.25]") {
  for (const int size : {1, 2, 3, 8}) {
    CAPTURE(size);
    const ServedId id;
    const auto body = [&](int rank) { return split_alone(id.value(), rank, size); };
    CHECK(run_forked(size, body, 60s) == all_ok(size));
  }
  for (const int size : {2, 5, 7}) {
    CAPTURE(size);
    UniqueId id = new_id();
    CHECK(run_threads(size, [&](int rank) { return split_alone(id, rank, size); }) == all_ok(size));
    id = new_id();
    auto loop = std::move(EventLoop::create()).value();
    std::vector<Task<Status>> tasks;
    for (int rank = 0; rank < size; ++rank) tasks.push_back(split_twice(loop, id, rank, size));
    for (const Status& status : loop.run_all(std::move(tasks))) CHECK(text_of(status) == "ok");
  }
}

TEST_CASE(
    "a refused split gives all ranks the reason, leaves no descriptor, and the next one works",
    "[req:5.25]") {
  const auto results = run_sessions(4, [](EventLoop& loop, Session& session) -> Status {
    ORIEL_CHECK(loop.run(one_barrier(loop, session, kJoinTime)));
    const std::size_t before = test::count_fds();
    SplitCall call = {.color = session.rank() % 2};
    if (session.rank() == 2) call.refused = Error(ErrorCode::invalid_argument, "no such color");
    const auto refused = loop.run(split(loop, session, std::move(call)));
    const bool is_reported = !refused.ok() && refused.error().message() == "no such color" &&
                             refused.error().origin_rank() == 2;
    if (!is_reported) return Error(ErrorCode::internal, "rank 2 was not named");
    if (test::count_fds() != before) return Error(ErrorCode::internal, "descriptors are left");
    ORIEL_TRY(const SplitPart part, loop.run(split(loop, session, {.color = 1})));
    return loop.run(check_members(loop, *part.session, session.rank(), part.members));
  });
  CHECK(results == all_ok(4));
}

/// Counts the ranks that are about to link, and waits until there are `count`.
std::function<void(Session*)> meet(std::atomic<int>& linking, int count, bool dies) {
  return [&linking, count, dies](Session* made) {
    if (made == nullptr) return;
    ++linking;
    static_cast<void>(test::eventually([&] { return linking >= count; }, 20s));
    if (dies) ::_exit(9);
  };
}

TEST_CASE("a rank that dies while a split links is named to the ranks of its color at once",
          "[req:5.25]") {
  const Shared<std::atomic<int>> linking;
  const auto results = run_sessions(5, [&](EventLoop& loop, Session& session) -> Status {
    // Members: ranks 4, 2 and 0, in this order. Rank 2 dies when all members have all addresses.
    SplitCall call = {.color = session.rank() % 2, .key = -session.rank()};
    call.on_session = meet(*linking, 5, session.rank() == 2);
    const auto part = loop.run(split(loop, session, std::move(call)));
    if (session.rank() % 2 == 1) return part.ok() ? Status() : part.error();
    if (part.ok()) return Error(ErrorCode::internal, "linked with the dead");
    const bool is_late = part.error().code() == ErrorCode::timeout;
    return part.error().origin_rank() == 2 && !is_late ? Status() : part.error();
  });
  CHECK(results[2].front() == '<');
  for (const int rank : {0, 1, 3, 4}) CHECK(results[static_cast<std::size_t>(rank)] == "ok");
}

TEST_CASE("a rank that dies when it has the last message of an exchange keeps no rank waiting",
          "[req:5.25]") {
  for (int i = 0; i < test::repeats(20); ++i) {
    const auto results = run_sessions(5, [](EventLoop& loop, Session& session) -> Status {
      SplitCall call = {.color = session.rank() % 2};
      const bool dies = session.rank() == 2;
      if (dies) call.on_session = [](Session*) { ::_exit(9); };
      const auto part = loop.run(split(loop, session, std::move(call)));
      // Ranks 1 and 3 may have linked; the others cannot.
      if (part.ok() && session.rank() % 2 == 1) return {};
      if (part.ok()) return Error(ErrorCode::internal, "linked with the dead");
      const bool is_right = part.error().code() == ErrorCode::remote &&
                            contains(part.error().to_string(), "rank 2 has died");
      return is_right ? Status() : part.error();
    });
    for (const int rank : {0, 1, 3, 4}) CHECK(results[static_cast<std::size_t>(rank)] == "ok");
  }
}

TEST_CASE("a rank without a color that dies behind the exchange of a split does not harm it",
          "[req:5.25]") {
  const Shared<std::atomic<int>> linking;
  const auto results = run_sessions(3, [&](EventLoop& loop, Session& session) -> Status {
    SplitCall call;
    if (session.rank() != 1) {
      call.color = 3;
      call.on_session = [&, meets = meet(*linking, 2, false)](Session* made) {
        meets(made);
        // After this wait the links of the dead rank have closed.
        if (made != nullptr && made->rank() == 1) std::this_thread::sleep_for(300ms);
      };
    }
    ORIEL_TRY(const SplitPart part, loop.run(split(loop, session, std::move(call))));
    if (session.rank() == 1) {
      static_cast<void>(test::eventually([&] { return *linking == 2; }, 20s));
      ::_exit(0);
    }
    return loop.run(check_members(loop, *part.session, session.rank(), {0, 2}));
  });
  CHECK(results[0] == "ok");
  CHECK(results[2] == "ok");
}

TEST_CASE("if a rank cannot link, the others get its error over the parent, which goes on",
          "[req:5.25]") {
  // The last rank dials all others and has no link yet, so no link could report its end.
  const auto results = run_sessions(2, [](EventLoop& loop, Session& session) -> Status {
    SplitCall call = {.color = 0};
    if (session.rank() == 1) {
      call.on_session = [](Session* made) {
        if (made != nullptr) made->abort(Error(ErrorCode::system, "no way out"));
      };
    }
    const auto part = loop.run(split(loop, session, std::move(call)));
    if (part.ok()) return Error(ErrorCode::internal, "linked");
    if (part.error().origin_rank() != 1 || part.error().message() != "no way out") {
      return part.error();
    }
    ORIEL_TRY(const SplitPart next, loop.run(split(loop, session, {.color = 0})));
    ORIEL_CHECK(loop.run(check_members(loop, *next.session, session.rank(), {0, 1})));
    return loop.run(one_barrier(loop, session, kJoinTime));
  });
  CHECK(results == all_ok(2));
}

TEST_CASE("a rank that never calls a split is named when the deadline has passed", "[req:5.25]") {
  const Shared<std::atomic<int>> given_up;
  const auto results = run_sessions(3, [&](EventLoop& loop, Session& session) -> Status {
    if (session.rank() == 1) {
      return test::eventually([&] { return *given_up == 2; }, 20s)
                 ? Status()
                 : Error(ErrorCode::timeout, "no rank gave up");
    }
    const auto part = loop.run(split(loop, session, {.color = 0}, 500ms));
    ++*given_up;
    return part.ok() ? Status() : part.error();
  });
  check_all_say(results, {"split", "rank 1"}, 1);
  CHECK(results[1] == "ok");
}

/// Tries to link as rank 1 to every listener of this process until `over` is set. Returns the
/// number of refusals; adds accepted links to `accepted`.
int intrude(std::uint64_t realm, const Key& key, const std::atomic<bool>& over,
            std::atomic<int>& accepted) {
  int refused = 0;
  auto loop = std::move(EventLoop::create()).value();
  while (!over) {
    for (const SocketAddress& address : listening_addresses()) {
      const DialTarget target = {.address = address,
                                 .purpose = KeyPurpose::link,
                                 .realm = realm,
                                 .key = key,
                                 .claim = {.from = 1, .to = 0, .tag = 0}};
      const auto made = loop.run(dial(loop, target, {.refused = 10ms}, Deadline::after(50ms)));
      if (made.ok()) ++accepted;
      if (!made.ok()) ++refused;
    }
    std::this_thread::sleep_for(1ms);
  }
  return refused;
}

TEST_CASE("a peer without the secret cannot link to the ranks of a split", "[req:5.25]") {
  const auto link_as = [](bool is_old_member) {
    const UniqueId id = new_id();
    std::atomic<std::uint64_t> number{0};
    std::atomic<bool> over{false};
    std::atomic<int> accepted{0}, refused{0};
    std::jthread unauthenticated([&] {
      while (number == 0 && !over) std::this_thread::sleep_for(1ms);
      // The number is right. The key is random, or derived from the parent's id.
      const Key made_up = Key::random();
      const Key parents = Key::derive(id.secret, KeyPurpose::link, id.number);
      refused = intrude(number, is_old_member ? parents : made_up, over, accepted);
    });
    const auto results = run_threads(2, [&](int rank) {
      return in_session(id, rank, 2, [&](EventLoop& loop, Session& session) -> Status {
        SplitCall call = {.color = 0};
        // Delays rank 1, so that rank 0 waits for its link meanwhile.
        call.on_session = [&](Session* made) {
          if (made == nullptr || made->rank() != 1) return;
          number = made->number();
          std::this_thread::sleep_for(300ms);
        };
        ORIEL_TRY(const SplitPart part, loop.run(split(loop, session, std::move(call))));
        return loop.run(check_members(loop, *part.session, session.rank(), {0, 1}));
      });
    });
    over = true;
    unauthenticated.join();
    CHECK(results == all_ok(2));
    CHECK(refused > 0);
    CHECK(accepted == 0);
  };
  SECTION("with a key made up") {
    link_as(false);
  }
  SECTION("with the parent's key for links") {
    link_as(true);
  }
}

TEST_CASE("the secrets of the children of a split differ from each other and from the parent's",
          "[req:5.25]") {
  const Key parent = Key::random(), other = Key::random();
  const auto text = [](const Key& key) {
    return std::vector<std::byte>(key.bytes().begin(), key.bytes().end());
  };
  const auto child = text(Key::derive_child(parent, 1, 2));
  CHECK(child == text(Key::derive_child(parent, 1, 2)));
  CHECK(child != text(Key::derive_child(parent, 2, 2)));
  CHECK(child != text(Key::derive_child(parent, 1, 1)));
  CHECK(child != text(Key::derive_child(other, 1, 2)));
  CHECK(child != text(parent));
}

}  // namespace
}  // namespace oriel::boot
