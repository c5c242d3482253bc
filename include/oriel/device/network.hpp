// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/doorbell.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/queue/region.hpp"
#include "oriel/device/queue/send_queue.hpp"

/// State of the NIC through which a rank reaches ranks of other nodes, as kernels see it. The
/// functions are in world.hpp.
///
/// Example: waits until everything posted to a rank is complete, as world_flush does.
/// ```cpp
/// #include "oriel/device/queue.hpp"
/// ORIEL_DEVICE_FN bool flush_to(const oriel::device::NetworkView& network, std::int32_t peer,
///                               const oriel::device::WaitControl& control) {
///   using namespace oriel::device;
///   const queue::QueueView& to = network.queues[peer];
///   if (to.depth == 0) return true;  // no queue to that rank, so nothing was posted
///   const detail::Driving driving(&network);  // WorldMemory's waits work for this network's NIC
///   return queue::wait_visible<WorldMemory>(to, control) == queue::QueueOutcome::done;
/// }
/// ```
namespace oriel::device {

/// A window as registered with NICs. The host writes it before kernels use it. When the network
/// ends, the host clears only the number. A kernel that still uses the window then finds either
/// number 0 or keys that the NIC refuses. A deregistered window has no NetworkWindow, so nothing
/// may use it any more.
struct NetworkWindow {
  std::uint64_t network = 0;  ///< NetworkView::number, or 0: no NIC knows the window
  queue::Region local;        ///< this rank's part of the window
  /// Regions by world rank. A region has no bytes if the rank is in this rank's LSA team or has no
  /// such window.
  const queue::Region* peers = nullptr;
};

/// Queues of one rank. The host creates them, and they outlive the kernels.
struct NetworkView {
  std::uint64_t number = 0;  ///< number of the communicator: random, the same on all ranks, never 0
  std::int32_t world_size = 0;  ///< ranks of the communicator, the number of `queues`
  /// Queues by world rank. A depth of 0 means that there is no queue to that rank.
  /// QueueView::number is the NIC's number of the queue, and QueueView::peer is the rank.
  const queue::QueueView* queues = nullptr;

  /// CPU only: does some of the work of `nic`. A waiting thread calls it between polls, so it does
  /// the NIC's work itself. Any thread may call it. Null: waiting threads have no work to do.
  void (*drive)(void* nic) = nullptr;
  void* nic = nullptr;  ///< CPU only: argument of `drive`
  /// CPU only: doorbell of the NIC's thread. A thread that leaves work rings it. Null: such a
  /// thread has nothing to ring.
  Doorbell* doorbell = nullptr;
};

#if ORIEL_DEVICE_CODE || defined(__CUDACC__)

/// Memory policy of waits for the network.
using WorldMemory = Memory;

namespace detail {
/// Wakes the NIC's own thread when something may have been posted. In this build that thread does
/// all the work.
struct Driving {
  explicit ORIEL_DEVICE_FN Driving(const NetworkView* network) : network_(network) { wake(); }
  ORIEL_DEVICE_FN ~Driving() { wake(); }

 private:
  ORIEL_DEVICE_FN void wake() const {
#if !ORIEL_DEVICE_CODE
    if (network_ != nullptr && network_->doorbell != nullptr) ring(*network_->doorbell);
#endif
  }
  const NetworkView* network_;
};
}  // namespace detail

#else

namespace detail {

/// Network whose NIC the calling thread drives while it waits; null if none.
inline thread_local const NetworkView* driven = nullptr;

/// Lets the calling thread's waits drive a NIC while this object lives. When the object ends, the
/// NIC's own thread takes over the remaining work.
class Driving {
 public:
  explicit Driving(const NetworkView* network) : before_(driven) { driven = network; }
  ~Driving() {
    if (driven != nullptr && driven != before_ && driven->doorbell != nullptr) {
      ring(*driven->doorbell);
    }
    driven = before_;
  }
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;

 private:
  const NetworkView* before_;
};

}  // namespace detail

/// Memory policy of waits for the network. Between two polls the waiting thread works for its NIC,
/// so a waiting rank needs no other thread to run.
struct WorldMemory : Memory {
  /// Pauses as Memory::relax does, then lets the NIC of this thread's Driving object work.
  static void relax() {
    Memory::relax();
    const NetworkView* const network = detail::driven;
    if (network != nullptr && network->drive != nullptr) network->drive(network->nic);
  }
};

#endif

}  // namespace oriel::device
