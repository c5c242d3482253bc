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
  std::uint64_t communicator = 0;     ///< its number, not 0
  std::vector<int> cpus;              ///< near the rank; may be empty
  Device* device = nullptr;           ///< the rank's
  NetworkWindows* windows = nullptr;  ///< told of the NIC, until the network is destroyed

  int rank() const { return session->rank(); }
  int size() const { return session->size(); }
  /// Whether a rank has ended its use of the communicator. Any thread.
  bool has_left(int other) const { return session->has_left(other); }
};

/// What one rank needs to reach the ranks of other LSA teams: one queue for each of those ranks,
/// which the rank's threads fill, or the kernels of its GPU, and a NIC that executes them. All of
/// them are made at once. ORIEL_NIC says what the NIC is: SoftNetwork or Mlx5Network.
///
/// Destroying it is local.
/// Thread safety: failure(), probe(), abort(), is_idle() and the doorbells by any thread.
class Network {
 public:
  /// Collective over the world: on all ranks or on none, which then all have the same error.
  static Task<Result<std::unique_ptr<Network>>> make(EventLoop& loop, NetworkOptions options,
                                                     Deadline deadline);
  virtual ~Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// For threads of this process; valid as long as this.
  const device::NetworkView& view() const { return view_; }
  /// The same where the kernels of the rank's device read it.
  const device::NetworkView* kernel_view() const {
    return kernel_view_ != nullptr ? static_cast<const device::NetworkView*>(kernel_view_) : &view_;
  }
  /// What has gone wrong in a queue or on a wire, if anything has. Does not wait. `abort` as of
  /// probe().
  virtual std::optional<Error> failure(TimePoint now, const std::uint32_t* abort) = 0;
  /// Something has gone wrong, and failure() will name whom it is for.
  virtual bool is_in_doubt() const { return false; }
  /// For a rank that has waited for long, on a CPU or a GPU: asks each peer's NIC whether it is
  /// there, so that one that is not is found out though this rank asks nothing of it. Once a second
  /// at most, and does not wait. `abort` is the communicator's word, which ends it.
  virtual void probe(TimePoint now, const std::uint32_t* abort) = 0;
  /// How long a software NIC may owe an answer before its rank is given up: half a minute, or a
  /// third of ORIEL_COLLECTIVE_TIMEOUT, so that who does not answer is named before those who wait
  /// for it, but 0.3 s at least.
  static Duration silence(const Settings& settings);
  /// Ranks that share the processors of this one's machine, itself included, whatever their nodes.
  int ranks_on_machine() const { return ranks_on_machine_; }
  /// Whether all that kernels of the rank's device have posted has been executed.
  virtual bool is_idle() const = 0;

  /// Whether whoever sleeps on a doorbell of this rank's is woken when something has come. Where
  /// not, waits must not sleep on one but look again and again.
  virtual bool wakes_waiters() const = 0;
  /// Rings a doorbell of this rank's whenever the NIC has done something, until it is removed.
  virtual void add_doorbell(device::Doorbell& /*bell*/) {}
  virtual void remove_doorbell(device::Doorbell& /*bell*/) {}

  /// The communicator is of no more use: what is posted from now on is refused as aborted, by its
  /// queue or, where a kernel has not yet learnt of it, by the NIC, and reaches no peer. Peers are
  /// still answered, so that they do not take this rank for the cause. Does not wait. Any thread.
  virtual void abort() = 0;

  /// This rank has left: what peers ask of it from now on has no answer. Before its windows go,
  /// whose keys they would be refused, as if they had asked for what they may not. What they have
  /// asked for before is done. Local. Once nobody posts any more.
  virtual void leave() = 0;

 protected:
  explicit Network(NetworkOptions options);

  /// Gathers where all ranks are. The same outcome on all.
  Task<Result<std::vector<NetworkPlace>>> gather_places(NetworkPlace own);
  /// Fills in the view, of which `nic`, `drive` and `bell` are left out, and shows it to kernels.
  void fill_view(std::vector<device::queue::QueueView> queues_by_rank);
  Status show_to_kernels();
  /// Once nothing reads it any more.
  void hide_from_kernels();
  boot::Group& world() const { return options_.session->world(); }

  const NetworkOptions options_;
  std::vector<int> peers_of_rank_;  // world ranks of the other teams
  int ranks_on_machine_ = 1;
  device::NetworkView view_;

 private:
  std::vector<device::queue::QueueView> queues_;   // by world rank
  std::shared_ptr<shadow::ShadowPool> view_pool_;  // on a GPU
  void* kernel_view_ = nullptr;                    // of view_pool_
};

}  // namespace oriel::comm
