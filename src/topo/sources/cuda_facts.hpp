// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "topo/model/machine.hpp"

namespace oriel::topo {

/// What came of asking the CUDA driver.
struct CudaFacts {
  SourceReport report;
  /// Why the facts about identities and peer access, without which a communicator cannot do, are
  /// not complete; success if they are. The build has no CUDA: not complete.
  Status complete;
};

/// Adds what the CUDA driver says of the devices that this process can see: ordinals, who may map
/// whose memory with which atomics, what kinds of handles memory can have. A device that `machine`
/// lists is found again by its UUID, or else by its PCI address; others are added. Of several at
/// one address each with a UUID of its own is a partition of the GPU there. What CUDA says of a
/// pair counts more than what was known. Initialises the driver, but makes no context. What a call
/// refuses keeps its default.
CudaFacts read_cuda_facts(Machine& machine);

/// The same for those who take what there is: never fails.
inline SourceReport add_cuda_facts(Machine& machine) {
  return read_cuda_facts(machine).report;
}

}  // namespace oriel::topo
