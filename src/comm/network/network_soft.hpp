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
/// connection), and a wire with a thread (SoftPort). Each further path costs another such wire with
/// its thread, and all of them together one thread more.
///
/// Of a GPU the queues lie in pinned memory and in its own, 6 MiB are pinned besides for what goes
/// by a wire, and its kernels can wake nobody, so the NIC's thread looks for work all the time,
/// with naps of 50 us where there is none.
///
/// Destroying it is local: the threads end, requests of peers that have come are still answered,
/// for which answers on a fabric wire have 200 ms to leave, keys are given back, queues and
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
  /// of silence() longer, and where some of these answer late up to all of it.
  std::optional<Error> failure(TimePoint now, const std::uint32_t* abort) override;
  /// A queue has fallen silent, and failure() will name whom it is for.
  bool is_in_doubt() const override { return detector_.is_in_doubt(); }
  /// Has each peer's NIC answer something, unless it has yet to answer, so that one that does not
  /// is found out by silence() from now.
  void probe(TimePoint now, const std::uint32_t* abort) override {
    detector_.probe(now, *view_.bell, abort);
  }
  bool is_idle() const override;

  bool wakes_waiters() const override { return true; }
  void add_doorbell(device::Doorbell& bell) override { bells_.add(bell); }
  void remove_doorbell(device::Doorbell& bell) override { bells_.remove(bell); }

  void abort() override;
  void leave() override;

 private:
  friend class oriel::test::NetworkInside;
  explicit SoftNetwork(NetworkOptions options);
  // The steps of make(), all local.
  Status prepare();
  Status take_hellos(const std::vector<Bytes>& messages, std::vector<window::FdSocketName>& names);
  Status connect();
  Status start();

  /// Works for the first NIC and for those of backup paths. Whether there was anything to do.
  bool work();
  /// Calls a function that does so where nobody could tell of an exception: in NICs' threads, and
  /// in waits of kernels on CPUs. Wakes who may wait for what was done.
  template <typename Work>
  bool attempt(Work work) noexcept;
  void refuse_posts();

  RankRoutes routes_;
  SoftPorts ports_;
  QueueParts parts_;
  NetworkHello hello_;
  RankRings rings_;
  std::vector<PeerQueue> queues_;
  DoorbellList bells_;
  FailureDetector detector_;
  FailoverDriver failover_;
  std::atomic<std::uint64_t> turns_of_waiters_{0};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> is_out_of_memory_{false};
  std::atomic<bool> refusal_is_due_{false};  // of a GPU's queues, by the NIC's thread
  std::optional<net::NicThread> thread_;
};

}  // namespace oriel::comm
