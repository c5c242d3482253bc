// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "oriel/device/queue.hpp"
#include "oriel/error.hpp"

#include "base/settings.hpp"
#include "net/mlx5/mlx5_device.hpp"
#include "net/mlx5/mlx5_doorbell.hpp"
#include "net/mlx5/mlx5_handle.hpp"
#include "net/mlx5/mlx5_memory.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {

/// Queue pair of an mlx5 adapter that device code fills, with all that it needs. That is ring,
/// completion queue, doorbell records, doorbell, indexes, marks and slots for old values. If the
/// options ask for receives, it also has a receive ring, whose WQEs have no buffers, and its
/// completion queue.
///
/// Destruction order: the queue pair, its completion queues, the doorbell's service and mapping,
/// the UAR (unless other queues share it). Then the umems, the slots' key, the memory. Nobody may
/// use the view any more. Move-only. The memory's source outlives it, and the device stays open as
/// long.
///
/// Thread safety: one queue needs external synchronization. Different queues are independent, so
/// that some can be made while others are used.
class Mlx5Queue {
 public:
  struct Options {
    std::uint32_t depth = 1024;  ///< WQEBBs: power of two, 128 to 32768, within adapter's limits
    std::uint32_t fetch_slots = 64;  ///< a power of two, at most depth
    std::int32_t peer = -1;          ///< world rank at the other end
    bool ring_on_host = false;       ///< rings, records and completions in host memory
    /// Receives for immediates of the peer: a power of two from 4 up to the largest `depth`. 0: a
    /// write with an immediate to this queue fails at its sender.
    std::uint32_t receives = 0;
    /// Selects who rings the doorbell: the queue's users, or a CPU thread for them.
    /// DoorbellChoice::gpu is an error if the users cannot reach the register.
    DoorbellChoice doorbell = DoorbellChoice::automatic;
    /// PSN of the first packet. Use another PSN for each connection, so that packets of an earlier
    /// connection are not taken for new ones.
    std::uint32_t psn = 0;
  };

  static Result<Mlx5Queue> create(std::shared_ptr<const Mlx5Device> device, Mlx5Memory& memory,
                                  Mlx5Doorbells& doorbells, const Options& options);
  Mlx5Queue(Mlx5Queue&&) noexcept;
  Mlx5Queue& operator=(Mlx5Queue&&) noexcept;
  ~Mlx5Queue();

  std::uint32_t number() const;
  /// Returns the connection data for the peer.
  Mlx5QueueHandle handle() const;
  /// Takes the queue through all states to ready-to-send, connected to the queue that `peer` names.
  /// The peer's owner does the same. Posts all receives on the way. After a failure the queue can
  /// only be destroyed.
  Status connect(const Mlx5QueueHandle& peer);
  /// Moves the queue to the error state, from any state. Incomplete requests are flushed, and the
  /// queue takes no more requests from the peer.
  Status to_error();
  /// Returns the error in the completion, if there is one; the last one of several. Requires rings
  /// in host memory: Mlx5HostMemory or ring_on_host. Local; any thread.
  std::optional<device::queue::QueueError> error() const;
  /// Returns whether the adapter has executed all requests up to the doorbell record, or executes
  /// no more. Requires rings in host memory: Mlx5HostMemory or ring_on_host. Local; any thread.
  bool is_idle() const;
  /// Returns whether a CPU thread rings the doorbell, because the users cannot or the options say
  /// so.
  bool is_rung_by_processor() const;
  /// Returns the queue as device code sees it. Valid as long as this queue.
  const device::queue::QueueView& view() const;
  /// Returns the receives for the functions of oriel/device/queue/immediates.hpp. Options::receives
  /// elements, all of them posted by connect(). Valid as long as this queue.
  const device::queue::ReceiveView& receives() const;

 private:
  struct State;
  explicit Mlx5Queue(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace oriel::net
