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
#include "base/shared_memory.hpp"
#include "base/task.hpp"
#include "boot/auth/cut_off.hpp"
#include "boot/link/rank_group.hpp"
#include "comm/network/rank_network.hpp"
#include "comm/network/silence_judge.hpp"
#include "comm/paths/path_pairs.hpp"
#include "net/copy/mover_share.hpp"
#include "net/fabric/fabric_sleeper.hpp"
#include "net/fabric/wire_fabric.hpp"
#include "net/failover/failover_channel.hpp"
#include "net/failover/failover_queue.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/soft/nic_thread.hpp"
#include "net/soft/soft_send_queue.hpp"
#include "net/wire/wire_ring.hpp"
#include "window/exchange/fd_exchange.hpp"

namespace oriel::comm {

/// A software NIC as windows need it. The NIC outlives it.
class SoftWindowNic final : public WindowNic {
 public:
  SoftWindowNic(net::NicSoft& nic, std::uint32_t domain) : nic_(nic), domain_(domain) {}
  Result<Keys> register_memory(const net::MemoryRange& range) override;
  void deregister_memory(std::uint32_t local_key) noexcept override;
  Status map_peer_memory(std::uint64_t peer, std::uint32_t key,
                         const net::MemoryRange& range) override;
  void unmap_peer_memory(std::uint64_t peer, std::uint32_t key) noexcept override;
  void set_reached(std::uint64_t peer, std::uint32_t key) noexcept override;

 private:
  net::NicSoft& nic_;
  const std::uint32_t domain_;
};

/// The network of a rank with a software NIC and its thread. Processes of one machine, network
/// namespace and user are joined by rings in shared memory, all others, and all where ORIEL_WIRE
/// says so, by libfabric; one NIC may have both wires.
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
/// Thread safety: progress() by any thread too.
class SoftNetwork final : public Network {
 public:
  static Task<Result<std::unique_ptr<Network>>> make(EventLoop& loop, NetworkOptions options,
                                                     Deadline deadline);
  ~SoftNetwork() override;

  /// A peer that is silent is not named before it is told whether it is this rank's own host that
  /// is cut off, for which those of other hosts are asked (boot/auth/cut_off.hpp): up to a quarter
  /// of silence() longer, and where some of these answer late up to all of it. Where memory has run
  /// out in a NIC, or in whoever drives it, all of them have ended by then.
  std::optional<Error> failure(TimePoint now, const std::uint32_t* abort) override;
  /// A queue has fallen silent, and failure() will name whom it is for.
  bool is_in_doubt() const override { return judge_.is_in_doubt(); }
  /// Has each peer's NIC answer something, unless it has yet to answer, so that one that does not
  /// is found out by silence() from now.
  void probe(TimePoint now, const std::uint32_t* abort) override;
  bool is_idle() const override;
  /// Works for the NIC, and wakes whoever may wait for what it has done. Whether there was work.
  /// Throws nothing: failure() tells what this could not.
  bool progress();

  bool wakes_waiters() const override { return true; }
  void add_doorbell(device::Doorbell& bell) override;
  void remove_doorbell(device::Doorbell& bell) override;
  void wake_waiters();

  void abort() override;
  void leave() override;

  /// Tests have it make faults.
  net::NicSoft& nic(std::size_t at = 0) { return nics_[at]->nic; }
  /// For tests: null where no peer is reached by libfabric.
  const net::WireFabric* fabric(std::size_t at = 0) const { return nics_[at]->fabric; }
  /// For tests: null where this rank is reached by one path.
  const net::FailoverQueue* failover(int rank) const;
  /// For tests: by which interfaces a rank is reached, in the order of paths.
  std::vector<std::string> interfaces_to(int rank) const;

  static constexpr std::uint32_t kFabricPieceBytes = std::uint32_t{256} << 10;
  static constexpr std::uint32_t kFabricReceives = 64;
  /// How many messages a wire to so many peers has room for, each way; no fewer than `least`.
  static std::uint32_t fabric_buffers(std::size_t peers, std::uint32_t least);
  static constexpr Duration kLastAnswers = std::chrono::milliseconds(200);

 private:
  /// One of the rank's NICs. Without backups the first one reaches all peers; else which peers by
  /// which path depends on the interfaces of both (path_pairs.hpp).
  struct Nic {
    std::string interface;  // of its fabric wire; empty: what ORIEL_SOCKET_IFNAME asks for
    std::optional<net::MoverShare> mover;  // of a GPU's NIC that is one of several
    net::NicSoft nic;
    std::uint32_t domain = 0;
    std::optional<SoftWindowNic> windows;
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
    std::vector<PathPair> paths{};               // the NICs of both ends
    std::unique_ptr<net::KeyAliases> aliases{};  // of single, if one of the NICs is not a first one
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

  explicit SoftNetwork(NetworkOptions options);
  // The steps of make(). Local but for those that suspend.
  Task<Status> await_nic_process(EventLoop& loop, Deadline deadline);
  NetworkPlace own_place();
  Result<PathInterface> look_at(const std::string& interface) const;
  void join_places(const std::vector<NetworkPlace>& places);
  void number_hosts(const std::vector<NetworkPlace>& places);
  Status prepare();
  void make_nics();
  Status open_fabric();
  Status open_fabric(std::size_t at);
  Status check_backup_provider(std::size_t at) const;
  Status listen_for_rings();
  std::uint32_t first_queue() const;
  static net::WireAddress address_on_rings(int rank) {
    return {static_cast<std::uint64_t>(rank) + 1};
  }
  Status make_queues();
  Status make_queue(Peer& peer, net::SendQueue::Options queue);
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
  Status start_fabric_thread(std::size_t at);
  Status start_keeper();
  void tell_paths() const;
  void end_threads();
  void refuse_posts();
  bool on_gpu() const { return nic_memory_.mover != nullptr; }

  bool has_backups() const { return nics_.size() > 1; }
  bool work();
  bool progress_nic(Nic& nic);
  bool progress_backups();
  bool progress_failover();
  bool keep();
  void run_out_of_memory();
  bool has_run_out_of_memory() const;
  bool is_in_use(std::size_t nic) const {
    return (nics_in_use_.load(std::memory_order_relaxed) >> nic & 1) != 0;
  }
  bool is_done_with(const Peer& peer, const net::FailoverQueue::Pace& pace) const;
  bool has_left(const Peer& peer) const { return Network::has_left(peer.rank); }
  void send_probes();
  void probe_backed(Peer& peer, const std::uint32_t* abort) const;
  bool is_of_probe(const Peer& peer, const device::queue::QueueError& error) const;
  static std::optional<device::queue::QueueError> first_error(const Peer& peer);
  PeerSight sight_of(const Peer& peer) const;
  Error queue_failure(const Peer& peer, const device::queue::QueueError& error,
                      boot::CutOff who) const;
  std::size_t own_host() const { return host_of_[static_cast<std::size_t>(options_.rank)]; }
  void ask_all(TimePoint now, Duration interval, const std::uint32_t* abort);
  std::string wires_say(const Peer& peer) const;

  std::vector<bool> by_fabric_;                  // of all ranks, how this one reaches them
  std::vector<std::vector<PathPair>> paths_to_;  // and by which paths
  std::vector<std::size_t> host_of_;             // the number of each one's host
  std::vector<std::string> interfaces_{""};      // by NIC, the best one first
  std::optional<Error> no_interfaces_;           // why they are not known
  NetworkHello hello_;
  bool others_failed_ = false;  // a rank has said so in its hello

  std::shared_ptr<net::NicProcess> nic_process_;  // while it starts
  NicMemory nic_memory_;
  std::mutex mover_mutex_;                  // of nic_memory_.mover, where several NICs share it
  std::vector<std::unique_ptr<Nic>> nics_;  // the first is always there
  net::RingWire* rings_ = nullptr;          // the first NIC's; null where no peer is reached by it
  std::uint32_t ring_wire_ = 0;
  std::optional<net::RingBell> bell_;
  OwnedFd bell_fd_;  // until the peers have it
  std::vector<Peer> peers_;
  std::unique_ptr<window::FdExchange> exchange_;  // between those whom rings join
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
  std::atomic<net::PathMask> nics_in_use_{1};
  std::atomic<bool> aborted_{false};
  const Error no_memory_;  // made while there is some
  std::atomic<bool> has_no_memory_{false};
  std::atomic<bool> refusal_is_due_{false};  // of a GPU's queues, by the NIC's thread
  std::optional<net::NicThread> keeper_;     // looks at them when nobody else does
  std::optional<net::NicThread> thread_;
};

}  // namespace oriel::comm
