// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"
#include "topo/model/pci_address.hpp"

/// NUMA nodes as the kernel lists them below /sys: what takes microseconds to read.
namespace oriel::topo {

inline constexpr const char* kNumaFolder = "/sys/devices/system/node";

/// The numbers of a list as the kernel writes and reads them, "0-3,8,16-31:2/4" (of each 4 the
/// first 2), ascending, each once, below 65536; odd parts are left out.
std::vector<int> numbers_in(std::string_view text);

/// The nodes that are online, by number, with their processors, memory, its speed and distances.
/// Empty where the kernel names none. Four small files for each.
std::vector<NumaNode> read_numa_nodes(const FileTree& tree);

/// The same as the nodes of a machine.
SourceReport add_numa_nodes(const FileTree& tree, Machine& machine);

/// What the firmware (ACPI's HMAT) says of a node's memory, in Gbit/s; 0 where it is silent.
double memory_gbps_of(const FileTree& tree, int os_index);

/// The place in Machine::numa of the node with this number; -1 if there is none.
int numa_index(const Machine& machine, int os_index);

/// The place in Machine::numa of the node beside which a PCI device is. Where the kernel does not
/// know, as in many virtual machines, it is the only one; -1 if there are several.
int numa_of_device(const FileTree& tree, const Machine& machine, const PciAddress& device);

}  // namespace oriel::topo
