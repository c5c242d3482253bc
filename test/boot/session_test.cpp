// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session.hpp"

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "boot/forked_ranks.hpp"
#include "boot/unique_id.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;

const SessionOptions kLoopback = {.socket = {.ifname = "lo"}};

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

}  // namespace

TEST_CASE("1.10 ranks as processes join, run every protocol and leave") {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    CAPTURE(size);
    auto id = create_unique_id(kLoopback.socket);
    REQUIRE(id.ok());
    const auto verdicts = run_forked(
        size, [&](int rank) { return live(id.value(), rank, size); }, 30s);
    for (const auto& verdict : verdicts) CHECK(verdict == "ok");
  }
}

TEST_CASE("1.10 ranks as threads join, run every protocol and leave") {
  for (const int size : {1, 2, 3, 4, 7, 8}) {
    CAPTURE(size);
    auto id = create_unique_id(kLoopback.socket);
    REQUIRE(id.ok());
    std::vector<std::string> verdicts(static_cast<std::size_t>(size));
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
          const Status status = live(id.value(), rank, size);
          verdicts[static_cast<std::size_t>(rank)] =
              status.ok() ? "ok" : status.error().to_string();
        });
      }
    }
    for (const auto& verdict : verdicts) CHECK(verdict == "ok");
  }
}

TEST_CASE("1.10 several ranks of one thread advance together in one loop") {
  for (const int size : {2, 3, 5, 8, 16}) {
    CAPTURE(size);
    auto id = create_unique_id(kLoopback.socket);
    REQUIRE(id.ok());
    auto loop = std::move(EventLoop::create()).value();
    std::vector<Task<Status>> tasks;
    for (int rank = 0; rank < size; ++rank) {
      tasks.push_back(whole_life(loop, id.value(), rank, size));
    }
    for (const Status& status : loop.run_all(std::move(tasks))) {
      CHECK((status.ok() ? "ok" : status.error().to_string()) == "ok");
    }
  }
}

}  // namespace oriel::boot
