// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "oriel/device/doorbell.hpp"
#include "oriel/device/network.hpp"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/settings.hpp"
#include "base/shared_memory.hpp"
#include "base/task.hpp"
#include "boot/cut_off.hpp"
#include "boot/group.hpp"
#include "boot/secret.hpp"
#include "comm/device.hpp"
#include "comm/network_message.hpp"
#include "comm/network_windows.hpp"
#include "comm/silence_judge.hpp"
#include "comm/topology.hpp"
#include "net/fabric_sleeper.hpp"
#include "net/failover_channel.hpp"
#include "net/failover_queue.hpp"
#include "net/nic_soft.hpp"
#include "net/nic_thread.hpp"
#include "net/send_queue.hpp"
#include "net/wire_fabric.hpp"
#include "net/wire_ring.hpp"
#include "window/fd_exchange.hpp"

namespace oriel::comm {

struct NetworkOptions {
  boot::Group* world = nullptr;
  int rank = 0;
  const Topology* topology = nullptr;
  boot::Key key;       ///< of the communicator, for the exchange of descriptors
  boot::Key wire_key;  ///< and for the messages of fabric wires
  const Settings* settings = nullptr;
  /// Whether a rank has ended its use of the communicator. Any thread.
  std::function<bool(int rank)> has_left;
  /// By which the ends of a queue with backup paths agree; of no NIC's. Outlives the network.
  std::function<std::unique_ptr<net::FailoverChannel>(int rank)> make_channel;
  std::uint64_t communicator = 0;     ///< its number, not 0
  std::vector<int> cpus;              ///< near the rank; may be empty
  Device* device = nullptr;           ///< the rank's
  NetworkWindows* windows = nullptr;  ///< told of the NIC, until the network is destroyed
};

/// What one rank needs to reach the ranks of other LSA teams: a software NIC with its thread and
/// one queue for each of those ranks, which the rank's threads fill, or the kernels of its GPU. All
/// of them are made at once. Processes of one machine, network namespace and user are joined by
/// rings in shared memory, all others, and all where ORIEL_WIRE says so, by libfabric; one NIC may
/// have both wires.
///
/// With ORIEL_PATHS ranks that are joined by libfabric are joined over several network interfaces:
/// each has a NIC of its own, and the queue goes on by the next one when its own fails
/// (docs/failover.md). Those that are joined by rings share a machine, which fails as a whole.
///
/// A peer costs some 40 KiB; by rings 512 KiB of shared memory more once they have been filled,
/// a descriptor, and, while they are joined, five; by libfabric what its provider takes (tcp: a
/// connection). A fabric wire has a thread of its own and buffers that cost memory once used:
/// kFabricReceives of kFabricPieceBytes, or 8 for each peer if those are more. Each further path
/// costs another such wire with its thread, and all of them together one thread more.
///
/// Of a GPU the queues lie in pinned memory and in its own, 6 MiB are pinned besides for what goes
/// by a wire, and its kernels can wake nobody, so the NIC's thread looks for work all the time,
/// with naps of 50 us where there is none.
///
/// Destroying it is local: the threads end, requests of peers that have come are still answered,
/// for which answers on a fabric wire have kLastAnswers to leave, keys are given back, queues and
/// wires go. Members are destroyed from the last to the first, so that the threads go first and the
/// NIC last.
/// Thread safety: failure(), progress(), probe(), abort() and the doorbells by any thread.
class Network {
 public:
  /// Collective over the world: on all ranks or on none, which then all have the same error.
  static Task<Result<std::unique_ptr<Network>>> make(EventLoop& loop, NetworkOptions options,
                                                     Deadline deadline);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// For threads of this process; valid as long as this.
  const device::NetworkView& view() const { return view_; }
  /// The same where the kernels of the rank's device read it.
  const device::NetworkView* kernel_view() const {
    return kernel_view_ != nullptr ? static_cast<const device::NetworkView*>(kernel_view_) : &view_;
  }
  /// What has gone wrong in a queue or on a wire, if anything has. A peer that is silent is not
  /// named before it is told whether it is this rank's own host that is cut off, for which those of
  /// other hosts are asked (boot/cut_off.hpp): up to a quarter of silence() longer. Does not wait.
  /// `abort` as of probe().
  std::optional<Error> failure(TimePoint now, const std::uint32_t* abort);
  /// A queue has fallen silent, and failure() will name whom it is for.
  bool is_in_doubt() const { return judge_.is_in_doubt(); }
  /// For a rank that has waited for long, on a CPU or a GPU: has each peer's NIC answer something,
  /// unless it has yet to answer, so that one that does not is found out by silence() from now,
  /// also where this rank asks nothing of it. Once a second at most, and does not wait. `abort` is
  /// the communicator's word, which ends it.
  void probe(TimePoint now, const std::uint32_t* abort);
  /// How long a NIC may owe an answer before its rank is given up: half a minute, or a third of
  /// ORIEL_COLLECTIVE_TIMEOUT, so that who does not answer is named before those who wait for it.
  static Duration silence(const Settings& settings);
  /// Ranks that share the processors of this one's machine, itself included, whatever their nodes.
  int ranks_on_machine() const { return ranks_on_machine_; }
  /// Works for the NIC, and wakes whoever may wait for what it has done. Whether there was work.
  bool progress();

  /// Rings a doorbell of this rank's whenever the NIC has done something, until it is removed.
  void add_doorbell(device::Doorbell& bell);
  void remove_doorbell(device::Doorbell& bell);
  void wake_waiters();

  /// The communicator is of no more use: what is posted from now on is refused as aborted, by its
  /// queue or, where a kernel has not yet learnt of it, by the NIC, and reaches no peer. Peers are
  /// still answered, so that they do not take this rank for the cause. Does not wait. Any thread.
  void abort();

  /// Tests have it make faults.
  net::NicSoft& nic(std::size_t path = 0) { return nics_[path]->nic; }
  /// For tests: null where no peer is reached by libfabric.
  const net::WireFabric* fabric(std::size_t path = 0) const { return nics_[path]->fabric; }
  /// For tests: null where this rank is reached by one path.
  const net::FailoverQueue* failover(int rank) const;

  static constexpr std::uint32_t kFabricPieceBytes = std::uint32_t{256} << 10;
  static constexpr std::uint32_t kFabricReceives = 64;
  /// How many messages a wire to so many peers has room for, each way; no fewer than `least`.
  static std::uint32_t fabric_buffers(std::size_t peers, std::uint32_t least);
  static constexpr Duration kLastAnswers = std::chrono::milliseconds(200);

 private:
  /// One of the rank's NICs: that of path 0, by which all peers are reached, or a backup's.
  struct Nic {
    std::string interface;  // of its fabric wire; empty: what ORIEL_SOCKET_IFNAME asks for
    net::NicSoft nic;
    std::uint32_t domain = 0;
    net::WireFabric* fabric = nullptr;  // the NIC's; null where no peer is reached by it
    std::uint32_t fabric_wire = 0;
    std::uint64_t turns_seen = 0;  // by its thread
    std::optional<net::FabricSleeper> sleeper;
    std::optional<net::NicThread> thread;
  };

  /// A rank of another LSA team.
  struct Peer {
    int rank = -1;
    bool by_fabric = false;
    std::size_t paths = 1;
    // One of these two, the second where there are several paths.
    std::optional<net::SendQueue> single{};
    std::unique_ptr<net::FailoverChannel> channel{};
    std::unique_ptr<net::FailoverQueue> failover{};
    std::vector<net::FailoverQueue::End> far{};  // of each path
    std::optional<std::uint64_t> probe{};  // with backups: index of the last entry that is one

    const device::queue::QueueView& view() const {
      return failover != nullptr ? failover->view() : single->view();
    }
    std::uint32_t number() const { return view().number; }
    TimePoint answered() const {
      return failover != nullptr ? failover->answered() : single->answered();
    }
  };

  explicit Network(NetworkOptions options);
  // The steps of make(). Local but for those that suspend.
  Status check_paths() const;
  Task<Status> await_nic_process(EventLoop& loop, Deadline deadline);
  NetworkPlace own_place();
  Status take_places(const std::vector<Bytes>& messages);
  void join_places(const std::vector<NetworkPlace>& places);
  void number_hosts(const std::vector<NetworkPlace>& places);
  Status prepare();
  Status open_fabric();
  Status open_fabric(std::size_t path);
  Status check_backup_provider(std::size_t path) const;
  Status listen_for_rings();
  std::uint32_t first_queue() const;
  static net::WireAddress address_on_rings(int rank) {
    return {static_cast<std::uint64_t>(rank) + 1};
  }
  Status make_queues();
  Status make_failover_queue(Peer& peer, const net::SendQueue::Options& queue);
  WindowNics window_nics() const;
  Status take_hellos(const std::vector<Bytes>& messages);
  Status take_ends(Peer& peer, const NetworkHello& hello);
  /// Whose number the queue has by which paths to this rank are probed.
  int probe_of(int rank) const { return options_.world->size() + rank; }
  Task<Status> join_rings(EventLoop& loop, Deadline deadline);
  Status make_rings(std::vector<std::vector<OwnedFd>>& outgoing,
                    std::vector<net::RingReader>& readers);
  Status connect_queues();
  void join_windows();
  Status take_rings(std::vector<std::vector<OwnedFd>> arrived,
                    std::vector<net::RingReader> readers);
  Status start();
  Status show_to_kernels();
  Status start_fabric_thread(std::size_t path);
  Status start_keeper();
  void tell_paths() const;
  void end_threads();
  void refuse_posts();
  bool on_gpu() const { return nic_memory_.mover != nullptr; }

  bool has_backups() const { return nics_.size() > 1; }
  bool progress_nic(Nic& nic);
  bool progress_backups();
  bool progress_failover();
  bool is_in_use(std::size_t path) const {
    return (paths_in_use_.load(std::memory_order_relaxed) >> path & 1) != 0;
  }
  bool is_done_with(const Peer& peer, const net::FailoverQueue::Pace& pace) const;
  bool has_left(const Peer& peer) const;
  void send_probes();
  static void probe_by_entry(Peer& peer, const std::uint32_t* abort);
  bool is_of_probe(const Peer& peer, const device::queue::QueueError& error) const;
  static std::optional<device::queue::QueueError> first_error(const Peer& peer);
  PeerSight sight_of(const Peer& peer) const;
  Error queue_failure(const Peer& peer, const device::queue::QueueError& error,
                      boot::CutOff who) const;
  std::size_t own_host() const { return host_of_[static_cast<std::size_t>(options_.rank)]; }
  void ask_all(TimePoint now, Duration interval, const std::uint32_t* abort);
  std::string wires_say(const Peer& peer) const;

  const NetworkOptions options_;
  std::vector<int> peers_of_rank_;           // world ranks of the other teams
  std::vector<bool> by_fabric_;              // of all ranks, how this one reaches them
  std::vector<std::size_t> paths_to_;        // and by how many paths
  std::vector<std::size_t> host_of_;         // the number of each one's host
  std::vector<std::string> interfaces_{""};  // by path
  std::optional<Error> no_interfaces_;       // why they are not known
  int ranks_on_machine_ = 1;
  NetworkHello hello_;
  bool others_failed_ = false;  // a rank has said so in its hello

  std::shared_ptr<net::NicProcess> nic_process_;  // while it starts
  NicMemory nic_memory_;
  std::vector<std::unique_ptr<Nic>> nics_;  // by path; the first is always there
  net::RingWire* rings_ = nullptr;          // the first NIC's; null where no peer is reached by it
  std::uint32_t ring_wire_ = 0;
  std::optional<net::RingBell> bell_;
  OwnedFd bell_fd_;  // until the peers have it
  std::vector<Peer> peers_;
  std::unique_ptr<window::FdExchange> exchange_;  // between those whom rings join
  std::vector<device::queue::QueueView> queues_;  // by world rank
  device::NetworkView view_;
  std::shared_ptr<shadow::ShadowPool> view_pool_;  // on a GPU
  void* kernel_view_ = nullptr;                    // of view_pool_
  std::mutex doorbells_mutex_;
  std::vector<device::Doorbell*> doorbells_;
  mutable std::mutex probe_mutex_;  // of the peers' probes, and below
  TimePoint probed_{};
  SilenceJudge judge_;
  std::atomic<bool> probes_are_due_{false};  // of queues without backups, by who drives the NIC
  std::atomic<std::uint64_t> turns_of_waiters_{0};

  // Of queues with backup paths.
  std::mutex failover_mutex_;           // held by whoever looks at them
  std::atomic<TimePoint> next_look_{};  // when they are to be looked at
  std::atomic<bool> is_settled_{true};  // no ends are about to agree
  std::atomic<net::PathMask> paths_in_use_{1};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> refusal_is_due_{false};  // of a GPU's queues, by the NIC's thread
  std::optional<net::NicThread> keeper_;     // looks at them when nobody else does
  std::optional<net::NicThread> thread_;
};

}  // namespace oriel::comm
