// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "oriel/device/doorbell.hpp"
#include "oriel/device/network.hpp"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/settings.hpp"
#include "base/task.hpp"
#include "boot/session/session.hpp"
#include "comm/device/device.hpp"
#include "comm/device/topology.hpp"
#include "comm/keys/network_windows.hpp"
#include "comm/network/network_message.hpp"
#include "shadow/shadow_pool.hpp"

namespace oriel::comm {

struct NetworkOptions {
  boot::Session* session = nullptr;  ///< outlives the network
  const Topology* topology = nullptr;
  const Settings* settings = nullptr;
  std::uint64_t communicator = 0;     ///< number of the communicator, not 0
  std::vector<int> cpus;              ///< processors near the rank; may be empty
  Device* device = nullptr;           ///< device of the rank
  NetworkWindows* windows = nullptr;  ///< attached to the NIC until the network is destroyed

  int rank() const { return session->rank(); }
  int size() const { return session->size(); }
  /// Returns whether a rank has left the communicator. Any thread.
  bool has_left(int other) const { return session->has_left(other); }
};

/// Connects one rank to the ranks of other LSA teams: one queue per such rank, and a NIC that
/// executes the queues. The rank's threads, or the kernels of its GPU, fill the queues. All queues
/// are created at once. ORIEL_NIC selects the kind of NIC: SoftNetwork or Mlx5Network.
///
/// Destruction is local.
/// Thread safety: any thread may call failure(), probe(), abort(), is_idle() and the doorbell
/// functions.
class Network {
 public:
  /// Creates the network on all ranks or on none; on failure all ranks have the same error.
  /// Collective over the world.
  static Task<Result<std::unique_ptr<Network>>> make(EventLoop& loop, NetworkOptions options,
                                                     Deadline deadline);
  virtual ~Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// Returns the view for threads of this process; valid as long as this object.
  const device::NetworkView& view() const { return view_; }
  /// Returns the view for kernels of the rank's device.
  const device::NetworkView* kernel_view() const {
    return kernel_view_ != nullptr ? static_cast<const device::NetworkView*>(kernel_view_) : &view_;
  }
  /// Returns the failure of a queue or wire, if any. Does not block. `abort` as in probe().
  virtual std::optional<Error> failure(TimePoint now, const std::uint32_t* abort) = 0;
  /// Returns whether something has failed and failure() will later name the rank at fault.
  virtual bool is_in_doubt() const { return false; }
  /// Asks each peer's NIC whether it is alive, at most once a second. For a rank that has waited
  /// for long, on a CPU or GPU: so a dead peer is detected although no request is pending. Does not
  /// block. `abort` is the communicator's abort word, which ends it.
  virtual void probe(TimePoint now, const std::uint32_t* abort) = 0;
  /// Returns how long a software NIC may owe an answer before its rank is given up. The time is
  /// half a minute, or a third of ORIEL_COLLECTIVE_TIMEOUT if less, but at least 0.3 s. So a silent
  /// rank is named before the ranks that wait for it.
  static Duration peer_timeout(const Settings& settings);
  /// Returns the number of ranks on this rank's machine, itself included, whatever their nodes.
  int ranks_on_machine() const { return ranks_on_machine_; }
  /// Returns whether all WQEs posted by the rank's device have been executed.
  virtual bool is_idle() const = 0;

  /// Returns whether the NIC rings the doorbells of this rank after progress. If not, waits must
  /// poll instead of sleeping on a doorbell.
  virtual bool wakes_waiters() const = 0;
  /// Adds a doorbell of this rank, which is rung whenever the NIC has made progress, until it is
  /// removed.
  virtual void add_doorbell(device::Doorbell& /*doorbell*/) {}
  virtual void remove_doorbell(device::Doorbell& /*doorbell*/) {}

  /// Aborts the communicator. New posts are refused as aborted and reach no peer. The queue refuses
  /// them; the NIC does so for a kernel that has not yet noticed. Peers' requests are still served,
  /// so that they do not take this rank for the origin. Does not block. Any thread.
  virtual void abort() = 0;

  /// Ends the service for peers: later requests get no answer, and earlier ones are still executed.
  /// Call it before windows are deregistered; otherwise late requests are refused like access
  /// errors. Local. Call it once nobody posts any more.
  virtual void leave() = 0;

 protected:
  explicit Network(NetworkOptions options);

  /// Gathers the locations of all ranks. The outcome is the same on all ranks.
  Task<Result<std::vector<NetworkPlace>>> gather_places(NetworkPlace own);
  /// Fills in the view except `nic`, `drive` and `doorbell`.
  void fill_view(std::vector<device::queue::QueueView> queues_by_rank);
  Status show_to_kernels();
  /// Frees the view for kernels; call it once nothing reads the view any more.
  void hide_from_kernels();
  boot::Group& world() const { return options_.session->world(); }

  const NetworkOptions options_;
  std::vector<int> peers_of_rank_;  // world ranks of the other teams
  int ranks_on_machine_ = 1;
  device::NetworkView view_;

 private:
  std::vector<device::queue::QueueView> queues_;   // by world rank
  std::shared_ptr<shadow::ShadowPool> view_pool_;  // on a GPU
  void* kernel_view_ = nullptr;                    // allocated from view_pool_
};

}  // namespace oriel::comm
