// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"
#include "topo/sources/nvml_reader.hpp"

namespace oriel::topo {

/// Adds NVML's facts to a machine that already has its visible GPUs, NUMA nodes and bridges. Adds
/// links and fabric cliques of known GPUs, unknown GPUs, and pairs. CUDA's facts about visible GPUs
/// have priority. Reads files below `tree` only for new GPUs.
void add_nvml_gpus(const FileTree& tree, NvmlList list, Machine& machine);

}  // namespace oriel::topo
