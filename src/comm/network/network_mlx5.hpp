// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "oriel/device/queue.hpp"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/task.hpp"
#include "comm/keys/keys_message.hpp"
#include "comm/keys/network_windows.hpp"
#include "comm/keys/window_nic_mlx5.hpp"
#include "comm/network/queue_failure.hpp"
#include "comm/network/rank_network.hpp"
#include "net/mlx5/mlx5_memory.hpp"
#include "net/mlx5/nic_mlx5.hpp"

namespace oriel::comm {

/// Network of a rank whose queues an mlx5 adapter executes. It has the port that the topology
/// selects for the rank, one queue pair per rank of another LSA team, and keys for windows. It has
/// no thread unless the processor has to ring the doorbells. Not run on hardware: docs/mlx5.md.
///
/// A silent peer is detected by the adapter's retries, about half a minute after a request. CPU
/// ranks that wait for long send probes (probe()). GPU ranks do not, since the host cannot fill
/// their queues.
///
/// WQEs of a GPU's kernels are in pinned memory, where the host can see the adapter's progress.
///
/// Destruction deregisters the keys, then destroys the queues, the adapter and the memory. Peers'
/// requests are served until then, or until leave().
class Mlx5Network final : public Network {
 public:
  /// Blocks only in system calls. Waits for peers by suspending, until the world's own deadline.
  static Task<Result<std::unique_ptr<Network>>> make(NetworkOptions options);
  ~Mlx5Network() override;

  /// Names peer, opcode and syndrome. If the adapter reports only that the queue was flushed, the
  /// peer counts as the origin.
  std::optional<Error> failure(TimePoint now, const std::uint32_t* abort) override;
  /// Returns whether a peer has refused a request and may be leaving
  /// (comm/network/queue_failure.hpp).
  bool is_in_doubt() const override { return is_in_doubt_; }
  void probe(TimePoint now, const std::uint32_t* abort) override;
  bool is_idle() const override;
  /// Returns false: an adapter rings no doorbell in memory.
  bool wakes_waiters() const override { return false; }
  /// CPU ranks: the queues refuse new posts; the adapter still executes WQEs whose doorbell was
  /// rung. GPU ranks: moves the queues to the error state, so that the adapter starts no new WQE.
  /// The adapter then serves no peer's requests on them; peers notice by their retries only.
  void abort() override;
  void leave() override;

 private:
  explicit Mlx5Network(NetworkOptions options);
  // The steps of make(), all local.
  Status prepare(KeysMessage& keys);
  Status make_queues();
  Status learn_windows(const std::vector<Bytes>& messages);
  Status start();

  const net::Mlx5Queue& queue_to(int rank) const {
    return queues_[static_cast<std::size_t>(rank)].front();
  }
  std::optional<device::queue::QueueError> error_of(int peer) const;
  bool is_of_probe(int peer, const device::queue::QueueError& error) const;
  Error queue_failure(int peer, const device::queue::QueueError& error) const;

  const bool on_gpu_;
  std::unique_ptr<net::Mlx5Memory> memory_;
  std::optional<net::NicMlx5> nic_;
  std::optional<Mlx5WindowNic> windows_;
  std::vector<std::vector<net::Mlx5Queue>> queues_;  // by world rank, one queue per peer
  QueueProbes probes_;
  LeavingDoubt leaving_;
  std::atomic<bool> is_in_doubt_{false};
  std::atomic<bool> aborted_{false};
};

}  // namespace oriel::comm
