// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"
#include "topo/model/pci_address.hpp"

/// NUMA nodes as the kernel lists them below /sys.
namespace oriel::topo {

inline constexpr const char* kNumaFolder = "/sys/devices/system/node";

/// Parses the kernel's list format, "0-3,8,16-31:2/4" (of each 4 the first 2). Returns the numbers
/// ascending, without duplicates, below 65536; ignores malformed parts.
std::vector<int> numbers_in(std::string_view text);

/// Returns the online nodes by number, with processors, memory, its bandwidth and distances. Empty
/// if the kernel lists none. Reads four small files for each node.
std::vector<NumaNode> read_numa_nodes(const FileTree& tree);

/// Sets the nodes of a machine to these nodes and returns a report.
SourceReport add_numa_nodes(const FileTree& tree, Machine& machine);

/// Returns the read bandwidth of a node's memory from the firmware (ACPI's HMAT), in Gbit/s; 0 if
/// it is not reported.
double memory_gbps_of(const FileTree& tree, int os_index);

/// Returns the index in Machine::numa of the node with this number; -1 if there is none.
int numa_index(const Machine& machine, int os_index);

/// Returns the index in Machine::numa of the node near a PCI device. If the kernel does not know
/// it, as in many virtual machines, returns the only node; -1 if there are several.
int numa_of_device(const FileTree& tree, const Machine& machine, const PciAddress& device);

}  // namespace oriel::topo
