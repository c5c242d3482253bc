// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <list>
#include <optional>
#include <vector>

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "boot/auth/auth.hpp"
#include "boot/link/poller.hpp"
#include "boot/link/tcp.hpp"

namespace oriel::boot {

/// A connection whose initiator has proved the key.
struct ProvenConnection {
  OwnedFd fd;
  AuthClaim claim;
  std::uint64_t realm = 0;
};

/// Accepts connections and hands on those that prove the key. A connection that has not proved it
/// within kProofTime is closed, and so is the oldest one when more than kMaxPending are unproven:
/// whoever connects and stays silent, or sends anything but a proof, holds up nobody. Honest
/// clients that are closed in the crush try again.
///
/// Descriptors are the application's first of all: the unproven connections of all acceptors of a
/// process together take an eighth of RLIMIT_NOFILE at most, beyond kLeastPending for each.
///
/// Lives in the poller's thread or under its owner's lock, as the poller does; the poller must
/// outlive it.
class Acceptor {
 public:
  static constexpr std::size_t kMaxPending = 256;
  static constexpr std::size_t kLeastPending = 16;
  static constexpr Duration kProofTime = std::chrono::seconds(2);

  Acceptor(Poller& poller, const Clock& clock, KeyPurpose purpose, AuthResponder::KeyLookup lookup,
           std::function<void(ProvenConnection)> on_proven);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  /// Adds a listener; its address with the port that the system chose.
  Result<SocketAddress> listen(const SocketAddress& local);

  /// Closes what has had its time, and listens again after a shortage of descriptors.
  void expire();
  /// When expire() is to be called next.
  Deadline next_expiry() const;
  std::size_t pending() const { return pending_.size(); }
  /// Closes the listeners and whoever has not proved the key.
  void stop();

  /// How long a shortage of descriptors or memory may last before it counts as one that stays.
  static constexpr Duration kShortageGrace = std::chrono::seconds(1);
  /// Why connections have not been accepted for kShortageGrace, although some may be waiting.
  std::optional<Error> shortage() const;

 private:
  struct Pending {
    OwnedFd fd;
    Poller::Token token = 0;
    Deadline deadline;
    AuthResponder responder;
    AuthResponse received{};
    std::size_t have = 0;
  };
  using PendingIt = std::list<Pending>::iterator;
  struct Listening {
    Listener listener;
    Poller::Token token = 0;
  };

  void accept_from(int listener_fd);
  void note_shortage(Error error);
  void admit(OwnedFd fd);
  void read_proof(PendingIt it);
  bool full() const;
  void close(PendingIt it);
  void forget(PendingIt it);
  void pause(bool paused);

  Poller* poller_;
  const Clock* clock_;
  KeyPurpose purpose_;
  AuthResponder::KeyLookup lookup_;
  std::function<void(ProvenConnection)> on_proven_;
  std::vector<Listening> listeners_;
  std::size_t budget_ = kLeastPending;  // of the process
  std::list<Pending> pending_;          // oldest first
  Deadline resume_ = Deadline::never();
  std::optional<Error> refused_by_system_;  // since short_since_
  TimePoint short_since_;
};

}  // namespace oriel::boot
