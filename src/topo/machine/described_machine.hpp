// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"
#include "topo/sources/nvml_table.hpp"

namespace oriel::topo {

/// Whether a description has links between GPUs, or to switches. hwloc's format does not, nor do
/// many files that clouds ship for NCCL.
bool tells_of_links(const Machine& description);

/// The index in Machine::gpus of the GPU with this address, of parts of one the first; -1 if there
/// is none.
int find_gpu(const Machine& machine, const PciAddress& address);

/// Adds what a description of this machine is silent about. Network cards that it names by their
/// places alone become the ports that the kernel lists there. Where it has GPUs and tells of no
/// link, NVML, which is asked only then, tells of those of its GPUs. The machine is canonical
/// afterwards.
void complete_description(const FileTree& files, const std::function<const NvmlLibrary&()>& nvml,
                          Machine& description);

}  // namespace oriel::topo
