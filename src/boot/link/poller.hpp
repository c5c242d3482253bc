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

/// An epoll set whose members have handlers. Its own descriptor is readable whenever a member is
/// ready, so a whole session counts as one descriptor in an event loop or in another poller.
///
/// Not thread-safe, except that wait() may run while another thread adds or removes members; the
/// events it yields are dispatched under the owner's lock, and those of members that have gone in
/// the meantime are ignored. A member is removed before its descriptor is closed.
class Poller {
 public:
  using Handler = std::function<void(std::uint32_t events)>;
  using Token = std::uint64_t;  ///< never used twice; 0 is none
  using Events = std::vector<epoll_event>;

  static Result<Poller> create();

  int fd() const { return epoll_.get(); }

  Result<Token> add(int fd, std::uint32_t events, Handler handler);
  /// A token whose descriptor somebody else adds to fd() and takes out before remove().
  Token add_foreign(Handler handler);
  /// Changes what the member is watched for; errors and hang-ups are always reported.
  Status watch(Token token, std::uint32_t events);
  void remove(Token token);

  /// Waits at most until `deadline` (rounded up to milliseconds) for at least one event.
  Result<Events> wait(Deadline deadline, const Clock& clock) const;
  void dispatch(std::span<const epoll_event> events);
  /// Handles whatever is ready now, without waiting; needs no memory itself.
  Status poll_once();

  /// In a forked child: lets go of the parent's set without changing it.
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
