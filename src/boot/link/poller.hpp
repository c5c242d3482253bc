// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <sys/epoll.h>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/fd.hpp"

namespace oriel::boot {

/// An epoll set whose members have handlers. Its descriptor is readable whenever a member is ready,
/// so other pollers and event loops see a whole session as one descriptor.
///
/// Not thread-safe, except that wait() may run while another thread adds or removes members.
/// Dispatch the events of wait() under the lock of the owner; events of removed members are
/// ignored. Remove a member before its descriptor is closed.
class Poller {
 public:
  using Handler = std::function<void(std::uint32_t events)>;
  using Token = std::uint64_t;  ///< never reused; 0 means none
  using Events = std::vector<epoll_event>;

  static Result<Poller> create();

  int fd() const { return epoll_.get(); }

  Result<Token> add(int fd, std::uint32_t events, Handler handler);
  /// Returns a token for a descriptor that the caller itself adds to fd(), and takes out before
  /// remove().
  Token add_foreign(Handler handler);
  /// Changes the watched events of a member; errors and hang-ups are always reported.
  Status watch(Token token, std::uint32_t events);
  void remove(Token token);

  /// Waits for at least one event, until `deadline` at the latest (rounded up to milliseconds).
  Result<Events> wait(Deadline deadline, const Clock& clock) const;
  void dispatch(std::span<const epoll_event> events);
  /// Handles up to 128 ready members without waiting; others stay ready. Allocates no memory
  /// itself.
  Status poll_once();

  /// In a forked child: closes the copy of the parent's epoll set without changing the set.
  void disown() { epoll_.reset(); }

 private:
  struct Member {
    int fd;
    std::uint32_t events;
    std::shared_ptr<Handler> handler;  // kept alive while it runs, even if it removes itself
  };
  explicit Poller(OwnedFd epoll) : epoll_(std::move(epoll)) {}

  OwnedFd epoll_;
  std::unordered_map<Token, Member> handlers_;
  Token next_ = 1;
};

}  // namespace oriel::boot
