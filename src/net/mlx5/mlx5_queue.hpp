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

/// A queue pair of an mlx5 adapter that device code fills, with all it needs: ring, completion
/// queue, records, doorbell, indexes, marks and slots for old values; and where the options ask for
/// receives, a ring of them, with room for no bytes, and its completion queue.
///
/// Destruction: first the queue pair, then its completion queues, the doorbell's service and
/// mapping, the UAR (where no other queue shares them), the umems, the key of the slots, the
/// memory; nobody may be using the view any more. Move-only. The memory's source outlives it; the
/// device stays open as long. Thread safety: as for std::vector; different queues are independent,
/// so that some can be made while others are used.
class Mlx5Queue {
 public:
  struct Options {
    std::uint32_t depth = 1024;  ///< blocks: a power of two, 128 to 32768, and what the adapter can
    std::uint32_t fetch_slots = 64;  ///< a power of two, at most depth
    std::int32_t peer = -1;          ///< world rank at the other end
    bool ring_on_host = false;       ///< rings, records and completions in memory of the host
    /// Elements for immediates of the peer: a power of two from 4 up to what `depth` may be. 0:
    /// writes with an immediate to this queue fail at their sender.
    std::uint32_t receives = 0;
    /// Whether the queue's users ring its doorbell or a processor does for them. gpu, where they
    /// cannot reach the register: an error.
    DoorbellChoice doorbell = DoorbellChoice::automatic;
    /// Where packets begin to be counted. Another one for each connection keeps those of an earlier
    /// one from being taken for new.
    std::uint32_t psn = 0;
  };

  static Result<Mlx5Queue> create(std::shared_ptr<const Mlx5Device> device, Mlx5Memory& memory,
                                  Mlx5Doorbells& doorbells, const Options& options);
  Mlx5Queue(Mlx5Queue&&) noexcept;
  Mlx5Queue& operator=(Mlx5Queue&&) noexcept;
  ~Mlx5Queue();

  std::uint32_t number() const;
  /// For the peer.
  Mlx5QueueHandle handle() const;
  /// Takes the queue through all states to ready-to-send, connected to the queue that `peer` names,
  /// whose owner does the same. Posts all receives on the way. After a failure the queue is only
  /// good for destruction.
  Status connect(const Mlx5QueueHandle& peer);
  /// From everywhere: what is not complete is flushed, and nothing more is taken from the peer.
  Status to_error();
  /// What the completion says has gone wrong, if anything has; of several errors it has the last.
  /// Of a queue whose ring lies on the host. Local, any thread, as the next.
  std::optional<device::queue::QueueError> error() const;
  /// Whether the adapter has executed all that it was told of, or executes no more.
  bool is_idle() const;
  /// Whether a processor rings the doorbell, because the users cannot.
  bool is_rung_by_processor() const;
  /// Valid as long as this queue.
  const device::queue::QueueView& view() const;
  /// The same of its receives, for the functions of oriel/device/queue/immediates.hpp; of as many
  /// receives as the options say, all of them posted.
  const device::queue::ReceiveView& receives() const;

 private:
  struct State;
  explicit Mlx5Queue(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace oriel::net
