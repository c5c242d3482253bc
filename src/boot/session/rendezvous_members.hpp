// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/deadline.hpp"
#include "boot/auth/socket_address.hpp"

namespace oriel::boot {

/// Ranks that have come to a rendezvous: connection, address, deadline, and whether each is done. A
/// rank is never removed.
class RendezvousMembers {
 public:
  using Connection = std::uint64_t;
  struct Member {
    Connection connection;
    SocketAddress address;
    Deadline timeout;
    bool done = false;
  };

  /// Adds a rank that is not yet a member.
  void add(int rank, const Member& member);
  /// Returns the member with this rank; null if it has not come.
  const Member* find(int rank) const;
  /// Returns the rank that has come on this connection, if any.
  std::optional<int> rank_of(Connection connection) const;
  /// Marks a member as done, which ends its deadline. Requires a member that is not done.
  void finish(int rank);
  /// Extends all deadlines by `grace`. Requires that no member is done.
  void extend(Duration grace);

  int count() const { return static_cast<int>(members_.size()); }
  int done() const { return done_; }
  /// Returns the first deadline of the members that are not done, in constant time.
  Deadline next_deadline() const;
  const std::map<int, Member>& by_rank() const { return members_; }
  const std::map<Connection, int>& by_connection() const { return rank_of_; }

 private:
  std::map<int, Member> members_;
  std::map<Connection, int> rank_of_;
  std::set<std::pair<TimePoint, int>> timeout_;  // deadlines of unfinished members, earliest
                                                 // first
  int done_ = 0;
};

}  // namespace oriel::boot
