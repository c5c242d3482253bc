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

/// Serves the rendezvous of every unique id that this process has made, in one thread that starts
/// with the first id and ends, closing all its descriptors, once no id is left. Never destroyed. If
/// it cannot go on, it closes every connection, which ends the ranks' waits. A forked child has no
/// part in its parent's service and gets its own. Any thread may call.
class RootService {
 public:
  static RootService& instance();

  Result<UniqueId> create_id(const SocketOptions& options, Duration expiry);
  /// Ends an id whose rendezvous nobody needs, as in a communicator of one rank.
  void retire(std::uint64_t number);
  /// An error if this process knows that the id has served its communicator, or has expired. It
  /// knows of its own ids and of those that it has retired, the last few thousand of them.
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
    bool greeted = false;
  };
  /// What exists while the thread runs. Destroyed from the last member to the first.
  struct Running {
    explicit Running(Poller p) : poller(std::move(p)) {}
    Poller poller;
    OwnedFd wake;
    std::map<Rendezvous::Connection, Client> clients;
    // In the order of their time for it, since all have as long. Whoever has said it or gone is
    // taken off once it is the first.
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
  void on_proven(ProvenConnection connection);
  void on_client(Rendezvous::Connection id);
  /// Whether the client's last word is complete.
  static bool on_last_word(Rendezvous::Connection id, const Client& client, Rendezvous& rendezvous);
  void drop(Rendezvous::Connection id);
  void deliver(std::uint64_t number);
  void remove_finished();
  void remember(std::uint64_t number, bool expired);
  void on_time(TimePoint now);
  Client* next_without_hello();
  void leave_to_parent();

  const pid_t owner_;
  RootService* inherited_ = nullptr;  // the parent's, kept so that it does not count as lost
  std::mutex mutex_;                  // guards all below
  std::map<std::uint64_t, Served> served_;
  std::map<std::uint64_t, bool> ended_;  // whether it has expired
  std::deque<std::uint64_t> ended_in_order_;
  std::unique_ptr<Running> running_;
  Rendezvous::Connection next_client_ = 1;
  bool stop_ = false;
  OwnedThread thread_;
};

}  // namespace oriel::boot
