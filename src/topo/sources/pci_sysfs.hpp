// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"
#include "topo/model/pci_address.hpp"

/// PCI buses as the kernel lists them below /sys. hwloc is a better source if available.
namespace oriel::topo {

inline constexpr const char* kPciFolder = "/sys/bus/pci/devices";

/// Adds a PCI tree to a machine without one, whose NUMA nodes are known. Adds GPUs (by PCI class,
/// see gpu_by_class()), network cards and the bridges above both; omits other devices. Reads three
/// small files for each PCI device, and some more for each added one.
SourceReport add_pci_tree(const FileTree& tree, Machine& machine);

/// Adds the places of the machine's GPUs from index `first_gpu` on: missing bridges above them, and
/// their NUMA nodes. Reads a few small files for each of these GPUs, and for each PCI node from
/// `first_node` on. Sets links to their maximum bandwidth if the kernel reports it.
void add_places_and_speeds(const FileTree& tree, Machine& machine, std::size_t first_gpu = 0,
                           std::size_t first_node = 0);

/// Returns the maximum bandwidth of the PCIe link above a device, in Gbit/s one way, limited by
/// both ends. 0: the kernel does not report it.
double most_pcie_gbps(const FileTree& tree, const PciAddress& device);

/// Sets the node's maximum bandwidth, present bandwidth and lanes. If the kernel does not report
/// the maximum, it stays unchanged; other missing values become 0.
void read_pcie_link(const FileTree& tree, const PciAddress& device, PciNode& node);

/// Returns the PCI function to which a device link leads, or behind which the device is, as for
/// virtio. Returns nothing if there is none.
std::optional<PciAddress> pci_function_above(const FileTree& tree, const std::string& link);

/// Returns the physical function of a virtual one; nothing for other devices.
std::optional<PciAddress> physical_function_of(const FileTree& tree, const PciAddress& device);

}  // namespace oriel::topo
