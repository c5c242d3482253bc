// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "base/task.hpp"
#include "boot/auth/auth.hpp"
#include "boot/auth/secret.hpp"
#include "boot/link/frame.hpp"
#include "boot/link/rank_group.hpp"
#include "boot/session/rendezvous.hpp"
#include "scale/modelled_network.hpp"

namespace oriel::scale {

/// Maximum number of messages that the root service takes at a time: as many as a Poller returns.
inline constexpr int kTurnMost = 128;

/// Models how all ranks of a communicator find each other, over a modelled network. Includes the
/// root service's Rendezvous, the authentication of every connection, frames, links and the
/// all-gather of addresses. The library's socket code (RootService, Acceptor, Dialer, Links,
/// Session) does not run. The model passes the same messages to the same state machines in the same
/// order.
class ModelledStart {
 public:
  /// `gathers`: run the final all-gather of addresses. This machine then needs the memory of all
  /// ranks together.
  /// `turn`: number of messages that the root service takes at a time.
  ModelledStart(int size, Model model, bool gathers, int turn);

  /// Returns false if not all ranks finish.
  bool run();

  ModelledNetwork& network() { return network_; }
  int root() const { return size_; }
  Duration linked() const { return linked_; }  ///< time until the last rank had its last link
  std::size_t most_links() const;
  std::size_t root_connections() const { return most_clients_; }
  /// Returns the time that the rendezvous takes on this machine. Includes the timer checks that the
  /// root service makes once per turn.
  std::chrono::duration<double> root_processor() const { return root_processor_; }

 private:
  /// Root's side of a connection.
  struct Client {
    boot::AuthResponder responder{boot::KeyPurpose::rendezvous};
    bool is_authenticated = false;
    bool has_hello = false;
  };
  struct Rank {
    std::optional<boot::AuthInitiator> to_root;  // null once authenticated
    bool has_responded = false;
    boot::FrameReader reader;
    std::map<int, std::pair<boot::AuthInitiator, bool>> dials;  // bool: has responded
    std::map<int, boot::AuthResponder> callers;
    std::vector<int> links;
    std::optional<boot::Group> world;
    std::optional<Task<Status>> last_part;
    bool failed = false;
  };

  void connect(int from, int to);
  void at_root(int from, const Bytes& message);
  void take_turn();
  void from_root(int rank, const Bytes& message);
  void on_frame(int rank, const boot::Frame& frame);
  void from_rank(int rank, int peer, const Bytes& message);
  void answer(int rank, int peer, const Bytes& message);
  void add_link(int rank, int peer);
  Task<Status> end(int rank);
  TimePoint time_at(int node) const { return TimePoint(network_.clock(node)); }
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  int size_;
  bool gathers_;
  int turn_;
  std::size_t links_wanted_;
  ModelledNetwork network_;
  boot::Key root_key_;
  boot::Key link_key_;
  boot::Rendezvous rendezvous_;
  std::shared_ptr<std::vector<int>> members_;
  std::vector<Rank> ranks_;
  std::map<int, Client> clients_;
  std::size_t most_clients_ = 0;
  int in_turn_ = 0;
  Duration linked_{};
  std::chrono::duration<double> root_processor_{};
};

}  // namespace oriel::scale
