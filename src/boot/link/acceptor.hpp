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
struct ProvenConnection {
  OwnedFd fd;
  AuthClaim claim;
  std::uint64_t realm = 0;
};

/// The system calls of a kind of socket; those of TCP unless told otherwise. With sockets that
/// carry messages a read or write is one message.
struct SocketCalls {
  /// Accepts one connection if there is one; see accept_one().
  Result<OwnedFd> (*accept)(int listener_fd);
  Result<IoOutcome> (*read)(int fd, std::span<std::byte> out);
  Result<IoOutcome> (*write)(int fd, std::span<const ByteView> buffers);
  /// Returns whether an accepted connection may prove the key; null: each may.
  Result<bool> (*may_prove)(const OwnedFd& socket) = nullptr;
  /// Whether initiators know kProofRefused.
  bool tells_refusal = false;
};
inline constexpr SocketCalls kTcpCalls = {accept_one, read_some, write_some, nullptr, true};

struct AcceptorOptions {
  static constexpr Duration kLimit = std::chrono::seconds(2);
  static constexpr Duration kTurn = std::chrono::milliseconds(100);
  SocketCalls calls = kTcpCalls;
  Duration limit = kLimit;  ///< an unproven connection is closed after this
  Duration turn = kTurn;    ///< an unproven connection is closed after this if others wait
  /// Called when a system call fails for a reason of this process, unless it is accept for want of
  /// descriptors. The connection is closed.
  std::function<void(Error)> on_failure{};
};

/// Accepts connections and hands on those that prove the key. A connection that has not proved it
/// within the limit is closed. While there are as many unproven connections as may be,
/// others wait in the kernel's queue until the oldest has had its turn, which is then closed:
/// silent callers hold up nobody for long, and a crowd of honest ones does not drive itself out.
///
/// Descriptors are the application's first of all: the unproven connections of all acceptors of a
/// process together take an eighth of RLIMIT_NOFILE at most, beyond kLeastPending for each. Where
/// no descriptor is left, the soft limit is raised.
///
/// Lives in the poller's thread or under its owner's lock, as the poller does; the poller must
/// outlive it.
class Acceptor {
 public:
  static constexpr std::size_t kMaxPending = 256;
  static constexpr std::size_t kLeastPending = 16;

  Acceptor(Poller& poller, const Clock& clock, KeyPurpose purpose, AuthResponder::KeyLookup lookup,
           std::function<void(ProvenConnection)> on_proven, AcceptorOptions options = {});
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  /// Adds a listener; its address with the port that the system chose.
  Result<SocketAddress> listen(const SocketAddress& local);
  /// Adds a listener of any kind.
  Status listen_on(OwnedFd listener);

  /// Closes what has had its time, and accepts again after a pause.
  void expire();
  /// When expire() is to be called next.
  Deadline next_expiry() const;
  std::size_t pending() const { return pending_.size(); }
  /// Returns whether the queue of connections has been found empty at some time since the last
  /// listen.
  bool queue_was_empty() const { return queue_was_empty_; }
  /// Closes the listeners and whoever has not proved the key.
  void stop();

  /// Time after which a shortage of descriptors or memory counts as one that stays.
  static constexpr Duration kShortageGrace = std::chrono::seconds(1);
  /// Returns the error that has kept connections from being accepted for kShortageGrace. Some may
  /// be waiting.
  const std::optional<Error>& shortage() const { return shortage_; }

 private:
  struct Pending {
    OwnedFd fd;
    Poller::Token token = 0;
    Deadline turn;  // may be closed for others after this
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
  bool may_prove(const OwnedFd& socket) const;
  void note_failure(const Error& error) const;
  bool make_room();
  void admit(OwnedFd fd);
  void read_proof(PendingIt it);
  bool full() const;
  void close(PendingIt it);
  void forget(PendingIt it);
  void pause();
  void resume();

  Poller* poller_;
  const Clock* clock_;
  KeyPurpose purpose_;
  AuthResponder::KeyLookup lookup_;
  std::function<void(ProvenConnection)> on_proven_;
  AcceptorOptions options_;
  std::vector<Listening> listeners_;
  std::size_t budget_ = kLeastPending;   // of the process
  std::list<Pending> pending_;           // oldest first
  Deadline resume_ = Deadline::never();  // never: not paused
  bool queue_was_empty_ = false;
  Retries accepts_{{.local = kShortageGrace, .lasting = kShortageGrace}};
  std::optional<Error> shortage_;
};

}  // namespace oriel::boot
