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

/// The network of a rank whose queues an mlx5 adapter executes: the port that topology chooses for
/// the rank, a queue pair for each rank of another LSA team, and keys for windows. It has no thread
/// unless a processor has to ring the doorbells. Not run on hardware: docs/mlx5.md.
///
/// A peer that is silent is found out by the adapter's retries, some half a minute after something
/// was asked of it; CPU ranks that wait for long ask (probe()), those on GPUs, whose queues the
/// host cannot fill, do not.
///
/// What a GPU's kernels post lies in pinned memory, where the host can see how the adapter gets on.
///
/// Destroying it gives back the keys, then queue by queue, then memory and adapter. Peers' adapters
/// are answered until then, or until leave().
class Mlx5Network final : public Network {
 public:
  /// Blocks as calls of the kernel do; waits for peers by suspending only, until the world's own
  /// deadline.
  static Task<Result<std::unique_ptr<Network>>> make(NetworkOptions options);
  ~Mlx5Network() override;

  /// Names peer, opcode and syndrome. An adapter may have kept no cause but that the queue had
  /// failed before: then it is put down to the peer.
  std::optional<Error> failure(TimePoint now, const std::uint32_t* abort) override;
  /// A peer has refused something, and may have left (comm/network/queue_failure.hpp).
  bool is_in_doubt() const override { return is_in_doubt_; }
  void probe(TimePoint now, const std::uint32_t* abort) override;
  bool is_idle() const override;
  /// An adapter rings no doorbell of memory's.
  bool wakes_waiters() const override { return false; }
  /// Of CPU ranks the queues refuse what is posted; what the adapter was told of before, it does.
  /// Those of GPUs end with an error, so that it begins nothing more; it answers no peer by them
  /// then, which these notice by their retries only.
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
  std::vector<std::vector<net::Mlx5Queue>> queues_;  // by world rank, one for each peer
  QueueProbes probes_;
  LeavingDoubt leaving_;
  std::atomic<bool> is_in_doubt_{false};
  std::atomic<bool> aborted_{false};
};

}  // namespace oriel::comm
