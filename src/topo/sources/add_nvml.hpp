// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"
#include "topo/sources/nvml_reader.hpp"

namespace oriel::topo {

/// Adds what NVML tells to a machine whose visible GPUs, NUMA nodes and bridges are there already:
/// links and fabric cliques of GPUs that it has, GPUs that it lacks, and pairs. CUDA's word of the
/// visible ones stays. The files below `tree` are asked about the GPUs that are new, no others.
void add_nvml_gpus(const FileTree& tree, NvmlList list, Machine& machine);

}  // namespace oriel::topo
