// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "oriel/device/doorbell.hpp"
#include "oriel/device/network.hpp"
#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "base/shared_memory.hpp"
#include "base/task.hpp"
#include "boot/group.hpp"
#include "boot/secret.hpp"
#include "comm/network_message.hpp"
#include "comm/network_windows.hpp"
#include "comm/topology.hpp"
#include "net/nic_soft.hpp"
#include "net/nic_thread.hpp"
#include "net/send_queue.hpp"
#include "net/wire_ring.hpp"
#include "window/fd_exchange.hpp"

namespace oriel::comm {

struct NetworkOptions {
  boot::Group* world = nullptr;
  int rank = 0;
  const Topology* topology = nullptr;
  boot::Key key;                      ///< of the communicator, for the exchange of descriptors
  std::uint64_t communicator = 0;     ///< its number
  std::vector<int> cpus;              ///< near the rank; may be empty
  NetworkWindows* windows = nullptr;  ///< told of the NIC, until the network is destroyed
};

/// What one CPU rank needs to reach the ranks of other LSA teams: a software NIC with its thread
/// and one queue for each of those ranks, joined by rings in shared memory. All of them are made at
/// once. A peer costs some 40 KiB, 512 KiB of shared memory more once its rings have been filled,
/// and, while they are joined, five descriptors.
///
/// So far the ranks have to be processes of one machine, network namespace and user, on the CPU;
/// ORIEL_HOSTID makes several nodes of it.
///
/// Destroying it is local and does not wait: the thread ends, requests of peers that have come are
/// still answered, keys are given back, queues and rings go. Members are destroyed from the
/// last to the first, so that the thread goes first and the NIC last.
/// Thread safety: failure(), progress() and the doorbells by any thread.
class Network {
 public:
  /// Collective over the world: on all ranks or on none, which then all have the same error.
  static Task<Result<std::unique_ptr<Network>>> make(EventLoop& loop, NetworkOptions options,
                                                     Deadline deadline);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// Valid as long as this.
  const device::NetworkView& view() const { return view_; }
  /// What has gone wrong in a queue or on a wire, if anything has.
  std::optional<Error> failure() const;
  /// Works for the NIC, and wakes whoever may wait for what it has done. Whether there was work.
  bool progress();

  /// Rings a doorbell of this rank's whenever the NIC has done something, until it is removed.
  void add_doorbell(device::Doorbell& bell);
  void remove_doorbell(device::Doorbell& bell);
  void wake_waiters();

 private:
  /// A rank of another LSA team.
  struct Peer {
    int rank;
    net::SendQueue queue;
    std::uint32_t far_queue = 0;
  };

  explicit Network(NetworkOptions options);
  // The steps of make(). Local but for those that suspend.
  Status check_paths() const;
  Status prepare();
  Status take_hellos(const std::vector<Bytes>& messages);
  Task<Status> join_rings(EventLoop& loop, Deadline deadline);
  Status make_rings(std::vector<std::vector<OwnedFd>>& outgoing,
                    std::vector<net::RingReader>& readers);
  Status take_rings(std::vector<std::vector<OwnedFd>> arrived,
                    std::vector<net::RingReader> readers);
  Status start();
  std::optional<Error> queue_failure(const Peer& peer) const;

  const NetworkOptions options_;
  std::vector<int> peers_of_rank_;  // world ranks of the other teams
  NetworkHello hello_;
  bool others_failed_ = false;  // a rank has said so in its hello

  net::NicSoft nic_;
  net::RingWire* wire_ = nullptr;  // the NIC's
  std::uint32_t domain_ = 0;
  std::optional<net::RingBell> bell_;
  OwnedFd bell_fd_;  // until the peers have it
  std::vector<Peer> peers_;
  std::unique_ptr<window::FdExchange> exchange_;  // until the rings are joined
  std::vector<device::queue::QueueView> queues_;  // by world rank
  device::NetworkView view_;
  std::mutex doorbells_mutex_;
  std::vector<device::Doorbell*> doorbells_;
  std::optional<net::NicThread> thread_;
};

}  // namespace oriel::comm
