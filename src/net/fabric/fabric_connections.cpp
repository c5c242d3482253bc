// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/fabric_connections.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/read_file.hpp"
#include "base/system_table.hpp"

namespace oriel::net {
namespace {

constexpr int kDepthMost = 4;  // nesting of epoll descriptors
constexpr std::size_t kTextBytesMost = std::size_t{4} << 20;

struct Watched {
  int descriptor = -1;
  ino_t inode = 0;
};

// Returns the descriptors that `epoll` watches: an empty list if it is no epoll descriptor. Returns
// nothing if /proc does not say.
std::optional<std::vector<Watched>> watched_by(int epoll) {
  ReadLimits limits;
  limits.bytes = kTextBytesMost;
  const auto text = read_file(fmt::format("/proc/self/fdinfo/{}", epoll), limits);
  if (!text.ok()) return std::nullopt;
  std::vector<Watched> found;
  std::istringstream lines(text.value());
  // Parses lines such as "tfd: 5 events: 19 data: 55b92d pos:0 ino:e8065e sdev:9".
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("tfd:")) continue;
    const std::size_t inode = line.find(" ino:");
    if (inode == std::string::npos) return std::nullopt;
    found.push_back({static_cast<int>(std::strtol(line.c_str() + 4, nullptr, 10)),
                     static_cast<ino_t>(std::strtoull(line.c_str() + inode + 5, nullptr, 16))});
  }
  return found;
}

int socket_option(int descriptor, int name) {
  int value = 0;
  socklen_t bytes = sizeof value;
  return sys().getsockopt(descriptor, SOL_SOCKET, name, &value, &bytes) == 0 ? value : -1;
}

bool is_tcp(int descriptor) {
  const int domain = socket_option(descriptor, SO_DOMAIN);
  return (domain == AF_INET || domain == AF_INET6) &&
         socket_option(descriptor, SO_TYPE) == SOCK_STREAM;
}

bool end_below(int epoll, bool all, int depth, std::set<ino_t>& ended) {
  const auto watched = watched_by(epoll);
  if (!watched.has_value()) return false;
  for (const Watched& one : *watched) {
    struct stat status {};
    if (sys().fstat(one.descriptor, &status) != 0) {
      if (errno != EBADF) return false;
      continue;
    }
    // A child of fork() can keep a closed descriptor watched; its number may be another file's by
    // now.
    if (status.st_ino != one.inode) continue;
    if (!S_ISSOCK(status.st_mode)) {
      if (depth < kDepthMost && !end_below(one.descriptor, all, depth + 1, ended)) return false;
    } else if (is_tcp(one.descriptor)) {
      const bool listens = socket_option(one.descriptor, SO_ACCEPTCONN) != 0;
      if (listens && !all) continue;
      // The call fails for a connection that has ended. It still wakes its reader
      // then.
      static_cast<void>(sys().shutdown(one.descriptor, SHUT_RDWR));
      if (!listens) ended.insert(one.inode);
    }
  }
  return true;
}

}  // namespace

std::optional<std::set<ino_t>> end_connections(int epoll, bool all) {
  // Catches: destructors call this function.
  try {
    std::set<ino_t> ended;
    if (end_below(epoll, all, 1, ended)) return ended;
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace oriel::net
