// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oriel/device/doorbell.hpp"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "comm/network/doorbell_list.hpp"
#include "comm/network/failover_driver.hpp"
#include "comm/network/failure_detector.hpp"
#include "comm/network/peer_queue.hpp"
#include "comm/network/rank_network.hpp"
#include "comm/network/rank_rings.hpp"
#include "comm/network/rank_routes.hpp"
#include "comm/network/soft_ports.hpp"
#include "net/soft/nic_thread.hpp"

namespace oriel::test {
class NetworkInside;
}

namespace oriel::comm {

/// Network of a rank with a software NIC and its thread. Processes of one machine, network
/// namespace and user are joined by rings in shared memory. All others are joined by libfabric;
/// ORIEL_WIRE can require libfabric for all. One NIC may have both wires.
///
/// With ORIEL_PATHS, ranks joined by libfabric are joined over several network interfaces, each
/// with its own NIC. When a queue's path fails, the queue moves to the next path
/// (docs/failover.md). Ranks joined by rings need no backup: they share a machine, which fails as a
/// whole.
///
/// Costs per peer: some 40 KiB. Rings add 512 KiB of shared memory once filled, and one descriptor,
/// five during set-up. libfabric adds the provider's cost (tcp: a connection). A fabric wire adds
/// one thread (SoftPort) per NIC. Backup paths add one more such wire and thread each, and one
/// further thread in all.
///
/// On a GPU the queues are in pinned memory and in GPU memory. 6 MiB more are pinned for data that
/// goes over a wire. Kernels of a GPU cannot wake a host thread. So the NIC's thread polls all the
/// time, with naps of 50 us when idle.
///
/// Destruction is local. The threads end, then received requests are still answered. Answers on a
/// fabric wire have 200 ms to leave. Then keys are deregistered, and queues and wires are
/// destroyed. Members are destroyed from the last to the first: the threads first, the NIC last.
/// Thread safety: like Network; any thread may also call the view's `drive`.
class SoftNetwork final : public Network {
 public:
  static Task<Result<std::unique_ptr<Network>>> make(EventLoop& loop, NetworkOptions options,
                                                     Deadline deadline);
  ~SoftNetwork() override;

  /// Names a silent peer only after deciding whether this rank's own host is cut off. For this the
  /// ranks of other hosts are probed (boot/auth/cut_off.hpp). The decision takes up to
  /// SilentPeerDetector::late_after() longer; if some ranks answer late, up to peer_timeout().
  std::optional<Error> failure(TimePoint now, const std::uint32_t* abort) override;
  /// Returns whether a queue is silent or refused and failure() will name the rank at fault later.
  bool is_in_doubt() const override { return detector_.is_in_doubt(); }
  /// Sends a probe to each peer's NIC, unless an answer is outstanding. So a peer that does not
  /// answer is detected by peer_timeout() from now.
  void probe(TimePoint now, const std::uint32_t* abort) override {
    detector_.probe(now, *view_.doorbell, abort);
  }
  bool is_idle() const override;

  bool wakes_waiters() const override { return true; }
  void add_doorbell(device::Doorbell& doorbell) override { doorbells_.add(doorbell); }
  void remove_doorbell(device::Doorbell& doorbell) override { doorbells_.remove(doorbell); }

  void abort() override;
  void leave() override;

 private:
  friend class oriel::test::NetworkInside;
  explicit SoftNetwork(NetworkOptions options);
  // Steps of make(), all local.
  Status prepare();
  Status take_hellos(const std::vector<Bytes>& messages, std::vector<window::FdSocketName>& names);
  Status connect();
  Status start();

  /// Drives the first NIC and those of backup paths. Returns whether there was anything to do.
  bool work();
  /// Calls `work` in contexts that cannot propagate an exception: threads of NICs, and waits of
  /// kernels on CPUs. Rings the doorbells if it did anything.
  template <typename Work>
  bool attempt(Work work) noexcept;
  void refuse_posts();

  RankRoutes routes_;
  SoftPorts ports_;
  QueueParts parts_;
  NetworkHello hello_;
  RankRings rings_;
  std::vector<PeerQueue> queues_;
  DoorbellList doorbells_;
  FailureDetector detector_;
  FailoverDriver failover_;
  std::atomic<std::uint64_t> turns_of_waiters_{0};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> is_out_of_memory_{false};
  std::atomic<bool> refusal_is_due_{false};  // the NIC's thread must refuse posts of a GPU's queues
  std::optional<net::NicThread> thread_;
};

}  // namespace oriel::comm
