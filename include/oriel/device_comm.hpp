// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "oriel/api.hpp"
#include "oriel/device/comm.hpp"

/// Resources of a communicator for the user's own kernels.
///
/// Example: runs a kernel of `ctas` thread blocks that use barriers.
/// ```cpp
/// #include "oriel/communicator.hpp"
/// template <class Launch>
/// oriel::Status run(oriel::Communicator& comm, std::uint32_t ctas, const Launch& launch) {
///   oriel::Result<oriel::DeviceComm> resources = comm.device_comm({.barrier_slots = ctas});
///   if (!resources.ok()) return resources.error();
///   launch(resources->view());  // passes the view to a kernel, and waits for it on all ranks
///   return {};
/// }
/// ```
namespace oriel {

class Communicator;

/// Resources that the user's kernels need. All ranks pass the same options.
struct DeviceCommOptions {
  /// Version of the device headers with which the caller, and so its kernels, were compiled. Do not
  /// change it. If the library has another version, it refuses the call and names both versions.
  std::uint32_t device_version = device::kDeviceVersion;
  /// Number of barriers that can run at once, 1 to 65536: the CTAs of the largest kernel that will
  /// use the DeviceComm. On the CPU: the threads of one rank. Each takes 64 bytes, plus 4 bytes per
  /// rank of the LSA team, rounded up to 64.
  std::uint32_t barrier_slots = 32;
  /// Lets kernels access the ranks of all nodes (oriel/device/world.hpp, world_barrier.hpp), not
  /// only those of their own node. If there are several nodes, queues to their ranks are created at
  /// the start of the communicator. If that was impossible, the call tries again. If there is no
  /// path to a rank, the call is refused and the error names what is missing. World barriers take
  /// another 192 bytes per slot.
  bool world = false;
  /// Number of signals to which any rank may add, up to 65536; 16 bytes each.
  std::uint32_t signals = 0;
  /// Number of counters of the operations that this rank has posted, up to 4096. Each takes 8 bytes
  /// per rank.
  std::uint32_t counters = 0;
};

/// Device communicator for the user's own kernels, created by Communicator::device_comm. It has its
/// own flags and counters, so its kernels and the library's collectives may run at the same time.
/// Two kernels that may run at once need two DeviceComms, or distinct barrier slots.
///
/// A wait in such a kernel ends when the peer acts, the communicator is aborted or a peer dies. It
/// also ends when ORIEL_COLLECTIVE_TIMEOUT passes, which makes the communicator unusable.
///
/// The object keeps its communicator alive. Destroy it when its kernels have ended on all ranks.
/// Move-only. All functions are local. No function blocks, except the destructor and assignment.
/// Distinct objects may be used by distinct threads; one object by one thread at a time.
class ORIEL_API DeviceComm {
 public:
  DeviceComm(DeviceComm&& other) noexcept;  ///< takes the resources of `other`
  /// Takes the resources of `other`. Frees the resources held before, and may block as the
  /// destructor does.
  DeviceComm& operator=(DeviceComm&& other) noexcept;
  /// Frees the resources. An error is only logged. Local; may block while a NIC still accesses the
  /// memory.
  ~DeviceComm();

  /// Returns the argument that a kernel takes by value. Valid until this object is destroyed.
  /// Requires an object that was not moved from.
  const device::CommView& view() const;

 private:
  friend class Communicator;
  struct Impl;
  explicit DeviceComm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oriel
