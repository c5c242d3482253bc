// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <sys/types.h>

#include "base/deadline.hpp"
#include "base/owned_thread.hpp"
#include "boot/auth/unique_id_format.hpp"
#include "boot/link/acceptor.hpp"
#include "boot/link/poller.hpp"
#include "boot/session/rendezvous.hpp"

namespace oriel::boot {

/// Serves the rendezvous of every unique id that this process has made, in one thread. The thread
/// starts with the first id. Once no id is left, it ends and closes all its descriptors. If the
/// service cannot continue, it closes every connection, which ends the ranks' waits. A forked child
/// leaves its parent's service alone and gets its own. Never destroyed. Thread-safe.
class RootService {
 public:
  static RootService& instance();

  Result<UniqueId> create_id(const SocketOptions& options, Duration expiry);
  /// Ends an id whose rendezvous is not needed, such as in a communicator of one rank.
  void retire(std::uint64_t number);
  /// Returns an error if this process knows that the id has been used or has expired. Remembers its
  /// own and its retired ids, the last 4,096 of them.
  Status check_unused(std::uint64_t number);

 private:
  struct Served {
    Key key;  // for KeyPurpose::rendezvous
    Rendezvous rendezvous;
  };
  /// A rank that has proved the secret.
  struct Client {
    OwnedFd fd;
    Poller::Token token = 0;
    std::uint64_t number = 0;
    Deadline hello_deadline;
    Bytes received;
    bool has_hello = false;
  };
  /// State of the running thread. Members are destroyed from the last to the first.
  struct Running {
    explicit Running(Poller p) : poller(std::move(p)) {}
    Poller poller;
    OwnedFd wake;
    std::map<Rendezvous::Connection, Client> clients;
    // Clients by hello deadline: all have the same timeout, so the order of arrival. A client that
    // has sent its hello or has gone is removed once it is the first.
    std::deque<Rendezvous::Connection> before_hello;
    std::map<std::string, SocketAddress> listeners;  // by interface address without port
    std::unique_ptr<Acceptor> acceptor;
  };
  RootService();
  Status ensure_running();
  Result<SocketAddress> listener_for(const SocketAddress& interface);
  void serve();
  void end();
  Deadline next_timer();
  void wake();
  void on_authenticated(AuthenticatedConnection connection);
  void on_client(Rendezvous::Connection id);
  /// Returns whether the client's last message is complete.
  static bool on_last_word(Rendezvous::Connection id, const Client& client, Rendezvous& rendezvous);
  void drop(Rendezvous::Connection id);
  void deliver(std::uint64_t number);
  void remove_finished();
  void remember(std::uint64_t number, bool expired);
  void on_time(TimePoint now);
  Client* next_without_hello();
  void leave_to_parent();

  const pid_t owner_;
  RootService* inherited_ = nullptr;  // the parent's service, kept visible to leak checkers
  std::mutex mutex_;                  // guards all below
  std::map<std::uint64_t, Served> served_;
  std::map<std::uint64_t, bool> ended_;  // value: the id has expired
  std::deque<std::uint64_t> ended_in_order_;
  std::unique_ptr<Running> running_;
  Rendezvous::Connection next_client_ = 1;
  bool stop_ = false;
  OwnedThread thread_;
};

}  // namespace oriel::boot
