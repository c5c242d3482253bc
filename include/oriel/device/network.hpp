// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/doorbell.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/queue/region.hpp"
#include "oriel/device/queue/send_queue.hpp"

/// What kernels know of the NIC through which a rank reaches those of other nodes. The functions
/// are in world.hpp.
namespace oriel::device {

/// A window as NICs reach it. The host writes it before kernels are told of it. When the network
/// goes it clears the number alone: a kernel that uses the window all the same finds none, or keys
/// that the NIC refuses. A window that is deregistered has none any more, so nothing may be using
/// it then.
struct NetworkWindow {
  std::uint64_t network = 0;  ///< NetworkView::number, or 0: no NIC knows the window
  queue::Region local;        ///< this rank's part
  /// Of each world rank; no bytes where that rank is in this rank's LSA team or has no such window.
  const queue::Region* peers = nullptr;
};

/// The queues of one rank. The host makes it; it outlives the kernels.
struct NetworkView {
  std::uint64_t number = 0;  ///< of the communicator: random, the same on all ranks, never 0
  std::int32_t world_size = 0;
  /// By world rank; a depth of 0 where there is none. The queue's number says which entries are
  /// there for whom, and its `peer` is the rank.
  const queue::QueueView* queues = nullptr;

  // CPU only: a waiting thread does the NIC's work itself, and who gives it some wakes its thread.
  void (*drive)(void* nic) = nullptr;
  void* nic = nullptr;
  Doorbell* bell = nullptr;
};

#if ORIEL_DEVICE_CODE || defined(__CUDACC__)

/// The memory policy of waits for the network.
using WorldMemory = Memory;

namespace detail {
/// Here the NIC's own thread does all the work; it is woken when something may have been posted.
struct Driving {
  explicit ORIEL_DEVICE_FN Driving(const NetworkView* network) : network_(network) { wake(); }
  ORIEL_DEVICE_FN ~Driving() { wake(); }

 private:
  ORIEL_DEVICE_FN void wake() const {
#if !ORIEL_DEVICE_CODE
    if (network_ != nullptr && network_->bell != nullptr) ring(*network_->bell);
#endif
  }
  const NetworkView* network_;
};
}  // namespace detail

#else

namespace detail {

/// Whose NIC the calling thread drives while it waits.
inline thread_local const NetworkView* driven = nullptr;

/// Has the calling thread's waits drive a NIC as long as it lives. When it ends, the NIC's own
/// thread takes over what is left.
class Driving {
 public:
  explicit Driving(const NetworkView* network) : before_(driven) { driven = network; }
  ~Driving() {
    if (driven != nullptr && driven != before_ && driven->bell != nullptr) ring(*driven->bell);
    driven = before_;
  }
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;

 private:
  const NetworkView* before_;
};

}  // namespace detail

/// The memory policy of waits for the network: between two polls the waiting thread works for its
/// NIC, so that a rank that waits needs no other thread to run.
struct WorldMemory : Memory {
  static void relax() {
    Memory::relax();
    const NetworkView* const network = detail::driven;
    if (network != nullptr && network->drive != nullptr) network->drive(network->nic);
  }
};

#endif

}  // namespace oriel::device
