// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "base/event_loop.hpp"
#include "base/try.hpp"
#include "boot/auth/unique_id_format.hpp"
#include "boot/session/session.hpp"

/// Sessions over the loopback interface, as the tests of sessions make them.
namespace oriel::boot {

inline const SessionOptions kLoopback = {.socket = {.ifname = "lo"}};
inline const SocketAddress kAnyPort = SocketAddress::ipv4({127, 0, 0, 1}, 0);
inline constexpr Duration kJoinTime = std::chrono::seconds(20);

inline UniqueId new_id() {
  auto id = create_unique_id(kLoopback.socket);
  REQUIRE(id.ok());
  return std::move(id).value();
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::string text_of(const Status& status) {
  return status.ok() ? "ok" : status.error().to_string();
}

/// The verdicts of `count` ranks that all went well.
inline std::vector<std::string> all_ok(int count) {
  return std::vector<std::string>(static_cast<std::size_t>(count), "ok");
}

inline Result<std::unique_ptr<Session>> join(EventLoop& loop, const UniqueId& id, int rank,
                                             int size, Duration patience) {
  return loop.run(Session::join(loop, id, rank, size, kLoopback, Deadline::after(patience)));
}

inline Task<Status> one_barrier(EventLoop& loop, Session& session, Duration patience) {
  ORIEL_CO_TRY(const auto activity, session.activate(loop, Deadline::after(patience)));
  co_return co_await session.world().barrier(Operation::test);
}

/// Joins, does `body` and leaves.
inline Status in_session(const UniqueId& id, int rank, int size,
                         const std::function<Status(EventLoop&, Session&)>& body,
                         Duration patience = kJoinTime) {
  ORIEL_TRY(EventLoop loop, EventLoop::create());
  ORIEL_TRY(const auto session, join(loop, id, rank, size, patience));
  return body(loop, *session);
}

inline Status join_once(const UniqueId& id, int rank, int size, Duration patience = kJoinTime) {
  return in_session(
      id, rank, size, [](EventLoop&, Session&) { return Status(); }, patience);
}

inline Status join_and_barrier(const UniqueId& id, int rank, int size) {
  return in_session(id, rank, size, [](EventLoop& loop, Session& session) {
    return loop.run(one_barrier(loop, session, kJoinTime));
  });
}

/// Runs each rank on a thread of its own: "ok" or the error of each.
inline std::vector<std::string> run_threads(int size, const std::function<Status(int rank)>& body) {
  std::vector<std::string> verdicts(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  threads.reserve(verdicts.size());
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back(
        [&, rank] { verdicts[static_cast<std::size_t>(rank)] = text_of(body(rank)); });
  }
  threads.clear();  // joins
  return verdicts;
}

}  // namespace oriel::boot
