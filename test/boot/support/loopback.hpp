// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/socket.h>

#include "base/event_loop.hpp"
#include "base/try.hpp"
#include "boot/auth/unique_id_format.hpp"
#include "boot/link/dialer.hpp"
#include "boot/link/tcp.hpp"
#include "boot/session/forked_ranks.hpp"
#include "boot/session/served_id.hpp"
#include "boot/session/session.hpp"

/// Sessions over the loopback interface, for tests.
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

/// Checks that the result of every rank but `spared` contains all words.
inline void check_all_say(const std::vector<std::string>& results,
                          const std::vector<std::string>& words, int spared = -1) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    for (const std::string& word : words) {
      CAPTURE(rank, results[rank], word);
      CHECK((static_cast<int>(rank) == spared || contains(results[rank], word)));
    }
  }
}

/// Returns the addresses at which this process listens.
inline std::vector<SocketAddress> listening_addresses() {
  std::vector<SocketAddress> found;
  for (int fd = 3; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    if (const auto address = local_address(fd); address.ok()) found.push_back(*address);
  }
  return found;
}

/// Returns the target with which rank `rank` authenticates to the root service.
inline DialTarget target_of(const UniqueId& id, int rank = 0) {
  return {.address = id.root,
          .purpose = KeyPurpose::rendezvous,
          .realm = id.number,
          .key = Key::derive(id.secret, KeyPurpose::rendezvous, id.number),
          .claim = {.from = rank, .to = -1, .tag = 0}};
}

/// Returns the results of `count` successful ranks.
inline std::vector<std::string> all_ok(int count) {
  return std::vector<std::string>(static_cast<std::size_t>(count), "ok");
}

inline Result<std::unique_ptr<Session>> join(EventLoop& loop, const UniqueId& id, int rank,
                                             int size, Duration timeout) {
  return loop.run(Session::join(loop, id, rank, size, kLoopback, Deadline::after(timeout)));
}

inline Task<Status> one_barrier(EventLoop& loop, Session& session, Duration timeout) {
  ORIEL_CO_TRY(const auto activity, session.activate(loop, Deadline::after(timeout)));
  co_return co_await session.world().barrier(Operation::test);
}

/// Joins, runs `body` and leaves.
inline Status in_session(const UniqueId& id, int rank, int size,
                         const std::function<Status(EventLoop&, Session&)>& body,
                         Duration timeout = kJoinTime) {
  ORIEL_TRY(EventLoop loop, EventLoop::create());
  ORIEL_TRY(const auto session, join(loop, id, rank, size, timeout));
  return body(loop, *session);
}

inline Status join_once(const UniqueId& id, int rank, int size, Duration timeout = kJoinTime) {
  return in_session(
      id, rank, size, [](EventLoop&, Session&) { return Status(); }, timeout);
}

inline Status join_and_barrier(const UniqueId& id, int rank, int size) {
  return in_session(id, rank, size, [](EventLoop& loop, Session& session) {
    return loop.run(one_barrier(loop, session, kJoinTime));
  });
}

/// Runs each rank on a thread of its own; returns "ok" or the error of each.
inline std::vector<std::string> run_threads(int size, const std::function<Status(int rank)>& body) {
  std::vector<std::string> results(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  threads.reserve(results.size());
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back(
        [&, rank] { results[static_cast<std::size_t>(rank)] = text_of(body(rank)); });
  }
  threads.clear();  // joins
  return results;
}

/// Runs `body` in the session of each of `size` processes; returns their results.
inline std::vector<std::string> run_sessions(
    int size, const std::function<Status(EventLoop&, Session&)>& body) {
  const ServedId id;
  return run_forked(
      size, [&](int rank) { return in_session(id.value(), rank, size, body); },
      std::chrono::seconds(60));
}

/// Runs `body` in the session of each of `size` threads of this process; returns their results.
inline std::vector<std::string> run_thread_sessions(
    int size, const std::function<Status(EventLoop&, Session&)>& body) {
  const UniqueId id = new_id();
  return run_threads(size, [&](int rank) { return in_session(id, rank, size, body); });
}

}  // namespace oriel::boot
