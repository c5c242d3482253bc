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
#include "boot/link/retries.hpp"
#include "boot/link/tcp.hpp"

namespace oriel::boot {

/// A connection whose initiator has proved the key.
struct AuthenticatedConnection {
  OwnedFd fd;
  AuthClaim claim;
  std::uint64_t realm = 0;
};

/// System calls for one kind of socket; TCP by default. For message sockets, each read or write is
/// one message.
struct SocketCalls {
  /// Accepts one connection if one is waiting; see accept_one().
  Result<OwnedFd> (*accept)(int listener_fd);
  Result<IoOutcome> (*read)(int fd, std::span<std::byte> out);
  Result<IoOutcome> (*write)(int fd, std::span<const ByteView> buffers);
  /// Returns whether an accepted connection may prove the key; null: each may.
  Result<bool> (*may_authenticate)(const OwnedFd& socket) = nullptr;
  /// Initiators understand kAuthRefused.
  bool sends_refusal = false;
};
inline constexpr SocketCalls kTcpCalls = {accept_one, read_some, write_some, nullptr, true};

struct AcceptorOptions {
  static constexpr Duration kLimit = std::chrono::seconds(2);
  static constexpr Duration kTurn = std::chrono::milliseconds(100);
  SocketCalls calls = kTcpCalls;
  Duration limit = kLimit;  ///< an unauthenticated connection is closed after this
  Duration turn = kTurn;    ///< an unauthenticated connection is closed after this if others wait
  /// Called when a system call fails for a local reason, except accept() for lack of descriptors.
  /// If the call belongs to a connection, that connection is closed.
  std::function<void(Error)> on_failure{};
};

/// Accepts connections and hands over those that prove the key. If a connection has not proved the
/// key within the limit, it is closed. If the limit of unauthenticated connections is reached, new
/// ones wait in the kernel's queue. Once the oldest unauthenticated connection has had its turn, it
/// is closed to make room. So silent callers delay others only briefly, and many honest callers do
/// not displace each other.
///
/// The application has the first claim to descriptors. Therefore all acceptors of a process share a
/// budget of RLIMIT_NOFILE / 8 unauthenticated connections (1,024 at most). Each acceptor may
/// always have kLeastPending. If no descriptor is left, the soft limit is raised.
///
/// Runs in the poller's thread or under the lock of the owner, like the poller. The poller must
/// outlive the acceptor.
class Acceptor {
 public:
  static constexpr std::size_t kMaxPending = 256;
  static constexpr std::size_t kLeastPending = 16;

  Acceptor(Poller& poller, const Clock& clock, KeyPurpose purpose, AuthResponder::KeyLookup lookup,
           std::function<void(AuthenticatedConnection)> on_authenticated,
           AcceptorOptions options = {});
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  /// Adds a listener; returns its address with the port that the kernel chose.
  Result<SocketAddress> listen(const SocketAddress& local);
  /// Adds a listener of any kind.
  Status listen_on(OwnedFd listener);

  /// Closes connections whose limit has passed, and resumes accepting after a pause.
  void expire();
  /// Returns the time of the next expire() call.
  Deadline next_expiry() const;
  std::size_t pending() const { return pending_.size(); }
  /// Returns whether the accept queue has been found empty since the last listen.
  bool queue_was_empty() const { return queue_was_empty_; }
  /// Closes the listeners and all unauthenticated connections.
  void stop();

  /// Duration after which a shortage of descriptors or memory counts as permanent.
  static constexpr Duration kShortageGrace = std::chrono::seconds(1);
  /// Returns the error that has prevented accepts for kShortageGrace, if any. Connections may be
  /// waiting.
  const std::optional<Error>& shortage() const { return shortage_; }

 private:
  struct Pending {
    OwnedFd fd;
    Poller::Token token = 0;
    Deadline turn;  // from then on it may be closed to make room for others
    Deadline deadline;
    AuthResponder responder;
    AuthResponse received{};
    std::size_t have = 0;
  };
  using PendingIt = std::list<Pending>::iterator;
  struct Listening {
    OwnedFd fd;
    Poller::Token token = 0;
  };

  void accept_from(int listener_fd);
  Result<OwnedFd> accept_despite_limit(int listener_fd);
  bool may_authenticate(const OwnedFd& socket) const;
  void note_failure(const Error& error) const;
  bool evict_oldest();
  void admit(OwnedFd fd);
  void read_response(PendingIt it);
  bool full() const;
  void close(PendingIt it);
  void forget(PendingIt it);
  void pause();
  void resume();

  Poller* poller_;
  const Clock* clock_;
  KeyPurpose purpose_;
  AuthResponder::KeyLookup lookup_;
  std::function<void(AuthenticatedConnection)> on_authenticated_;
  AcceptorOptions options_;
  std::vector<Listening> listeners_;
  std::size_t budget_ = kLeastPending;   // shared by all acceptors of the process
  std::list<Pending> pending_;           // oldest first
  Deadline resume_ = Deadline::never();  // never: not paused
  bool queue_was_empty_ = false;
  Retries accepts_{{.local = kShortageGrace, .lasting = kShortageGrace}};
  std::optional<Error> shortage_;
};

}  // namespace oriel::boot
