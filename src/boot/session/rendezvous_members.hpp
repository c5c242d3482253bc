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

/// The ranks that have come to a rendezvous: by which connection, from where, until when each waits
/// and whether it is done. Owns nothing but these facts; a rank that has come stays.
class RendezvousMembers {
 public:
  using Connection = std::uint64_t;
  struct Member {
    Connection connection;
    SocketAddress address;
    Deadline patience;
    bool done = false;
  };

  /// Adds a rank that has not come before.
  void add(int rank, const Member& member);
  /// Null if the rank has not come.
  const Member* find(int rank) const;
  /// Returns the rank that has come by this connection, if any.
  std::optional<int> rank_of(Connection connection) const;
  /// Ends the wait of a rank that has come and is not done.
  void finish(int rank);
  /// Lets all ranks wait for so much longer. None is done yet.
  void extend(Duration grace);

  int count() const { return static_cast<int>(members_.size()); }
  int done() const { return done_; }
  /// Returns the first deadline of those that are not done. Takes no longer the more ranks there
  /// are.
  Deadline next_deadline() const;
  const std::map<int, Member>& by_rank() const { return members_; }
  const std::map<Connection, int>& by_connection() const { return rank_of_; }

 private:
  std::map<int, Member> members_;
  std::map<Connection, int> rank_of_;
  std::set<std::pair<TimePoint, int>> patience_;  // of those that are not done, the shortest first
  int done_ = 0;
};

}  // namespace oriel::boot
