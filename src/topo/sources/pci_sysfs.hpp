// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"
#include "topo/model/pci_address.hpp"

/// PCI buses as the kernel lists them below /sys: what hwloc knows better, where it is there.
namespace oriel::topo {

inline constexpr const char* kPciFolder = "/sys/bus/pci/devices";

/// Adds to a machine without a PCI tree, whose NUMA nodes are known, its GPUs (by their PCI class,
/// as gpu_by_class() tells them), its network cards and the bridges above both. Other devices are
/// left out. Takes a small file for each PCI device, and some more for those that are added.
SourceReport add_pci_tree(const FileTree& tree, Machine& machine);

/// The same for GPUs that the machine has already, from the one at `first_gpu` on: puts them in
/// their places, with the bridges above them that it lacks, and at their NUMA nodes. Takes a few
/// small files for each of them, and for each PCI node from `first_node` on. Links count with the
/// most that they carry, where the kernel tells.
void add_places_and_speeds(const FileTree& tree, Machine& machine, std::size_t first_gpu = 0,
                           std::size_t first_node = 0);

/// The most that the PCIe link above a device carries, in Gbit/s one way: what both of its ends can
/// do. 0 where the kernel does not say.
double most_pcie_gbps(const FileTree& tree, const PciAddress& device);

/// That, what it carries at this moment, and its lanes. 0 for what the kernel does not say.
void read_pcie_link(const FileTree& tree, const PciAddress& device, PciNode& node);

/// The PCI function that a link to a device leads to, or behind which the device is, as those of
/// virtio are. Nothing where there is none.
std::optional<PciAddress> pci_function_above(const FileTree& tree, const std::string& link);

/// The physical function of a virtual one; nothing for other devices.
std::optional<PciAddress> physical_function_of(const FileTree& tree, const PciAddress& device);

}  // namespace oriel::topo
