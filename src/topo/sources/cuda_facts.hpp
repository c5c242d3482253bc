// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "topo/model/machine.hpp"

namespace oriel::topo {

/// Result of querying the CUDA driver.
struct CudaFacts {
  SourceReport report;
  /// Success if all facts about identities and peer access, which a communicator requires, were
  /// read. Else the first error. An error too if the build has no CUDA.
  Status complete;
};

/// Adds the CUDA driver's facts about visible devices: ordinals, peer access, native atomics, and
/// handle types of memory. A device of `machine` is matched by UUID, or else by PCI address; others
/// are added. Several devices at one address with different UUIDs are partitions of one GPU. CUDA's
/// facts about a pair replace earlier ones. Initialises the driver, but creates no context. A
/// refused call leaves its default.
CudaFacts read_cuda_facts(Machine& machine);

/// Adds the facts that are available and never fails.
inline SourceReport add_cuda_facts(Machine& machine) {
  return read_cuda_facts(machine).report;
}

}  // namespace oriel::topo
