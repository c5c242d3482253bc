// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include "oriel/communicator.hpp"

/// Returns the value of a Result, or prints the error and exits, because these examples have no
/// caller that could handle it.
template <class T>
T must(oriel::Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.error().to_string().c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

/// This process's rank and size from a launcher such as oriel-run; a single rank without a
/// launcher.
struct Launched {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;
  std::string address = "127.0.0.1";
  std::string port = "29500";

  static Launched from_environment() {
    const auto text = [](const char* name, const std::string& otherwise) {
      const char* value = std::getenv(name);
      return value != nullptr ? std::string(value) : otherwise;
    };
    Launched me;
    me.rank = std::atoi(text("RANK", "0").c_str());
    me.ranks = std::atoi(text("WORLD_SIZE", "1").c_str());
    me.local_rank = std::atoi(text("LOCAL_RANK", "0").c_str());
    me.address = text("MASTER_ADDR", me.address);
    me.port = text("MASTER_PORT", me.port);
    return me;
  }
};

namespace detail {

/// Opens a socket at the launcher's address and port: listening on rank 0, connected on the others.
/// Returns -1 on failure, for example before rank 0 listens.
inline int meet(const Launched& me) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(me.address.c_str(), me.port.c_str(), &wanted, &found) != 0) return -1;
  int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool good =
      me.rank == 0 ? bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, me.ranks) == 0
                   : connect(fd, found->ai_addr, found->ai_addrlen) == 0;
  freeaddrinfo(found);
  if (!good) close(std::exchange(fd, -1));
  const timeval timeout{30, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);  // also for accept()
  return fd;
}

}  // namespace detail

/// Shares the unique id of a communicator of all launched ranks: rank 0 creates it and sends it to
/// every connection that names a rank. The id is only as secret as the network of MASTER_ADDR. A
/// program with its own channel should send the id through that channel instead.
inline oriel::UniqueId share_unique_id(const Launched& me) {
  oriel::UniqueId id;
  if (me.rank == 0) id = must(oriel::UniqueId::create());
  int fd = detail::meet(me);
  for (int attempt = 0; fd < 0 && me.rank != 0 && attempt < 600; ++attempt) {
    usleep(50'000);
    fd = detail::meet(me);
  }
  std::vector<bool> served(static_cast<std::size_t>(me.ranks));
  bool good = fd >= 0;
  if (me.rank == 0) {
    for (int left = me.ranks - 1; good && left > 0;) {
      const int peer = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
      std::int32_t rank = 0;
      good = peer >= 0;
      if (good && recv(peer, &rank, sizeof rank, MSG_WAITALL) == sizeof rank && rank > 0 &&
          rank < me.ranks && !served[static_cast<std::size_t>(rank)]) {
        served[static_cast<std::size_t>(rank)] = true;
        send(peer, id.bytes.data(), id.bytes.size(), MSG_NOSIGNAL);
        --left;
      }
      if (good) close(peer);
    }
  } else if (good) {
    const std::int32_t rank = me.rank;
    send(fd, &rank, sizeof rank, MSG_NOSIGNAL);
    const auto bytes = static_cast<ssize_t>(id.bytes.size());
    good = recv(fd, id.bytes.data(), id.bytes.size(), MSG_WAITALL) == bytes;
  }
  if (!good) {
    std::fprintf(stderr, "rank %d: the ranks did not meet at %s:%s\n", me.rank, me.address.c_str(),
                 me.port.c_str());
    std::exit(1);
  }
  close(fd);
  return id;
}
