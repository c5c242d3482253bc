// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"
#include "topo/sources/nvml_table.hpp"

namespace oriel::topo {

/// Returns whether a description has links between GPUs or to switches. hwloc's format has none,
/// nor do many files that clouds ship for NCCL.
bool describes_links(const Machine& description);

/// Returns the index in Machine::gpus of the GPU with this address (its first part if it has
/// several); -1 if there is none.
int find_gpu(const Machine& machine, const PciAddress& address);

/// Completes a description of this machine. A network card named only by its place is replaced by
/// the ports that the kernel lists there. If the description has GPUs but no links, NVML is queried
/// for the links of these GPUs. The machine is canonical afterwards.
void complete_description(const FileTree& files, const std::function<const NvmlLibrary&()>& nvml,
                          Machine& description);

}  // namespace oriel::topo
