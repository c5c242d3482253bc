// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "topo/machine.hpp"

namespace oriel::topo {

/// Adds what the CUDA driver says of the devices that this process can see: ordinals, who may map
/// whose memory with which atomics, what kinds of handles memory can have. A device that `machine`
/// lists is found again by its UUID, or else by its PCI address; others are added. What CUDA says
/// of a pair counts more than what was known. Initialises the driver, but makes no context. Never
/// fails: the report says what was missing, and that the build has no CUDA.
SourceReport add_cuda_facts(Machine& machine);

}  // namespace oriel::topo
