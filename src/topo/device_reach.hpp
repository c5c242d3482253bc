// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "topo/rank_info.hpp"

namespace oriel::topo {

/// The info of a rank of this process that keeps its windows on the GPU with this CUDA ordinal: its
/// PCI id and UUID, and which of the devices that the process can see it can map. Only in builds
/// with CUDA; requires cuda_ready(). Local; asks the driver, needs no context and synchronises
/// nothing.
///
/// Devices that CUDA_VISIBLE_DEVICES hides cannot be asked about and are left out of `seen`; see
/// can_map() for what that means.
Result<RankInfo> cuda_rank_info(const NodeIdentity& node, int ordinal);

}  // namespace oriel::topo
