// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "topo/model/machine.hpp"

namespace oriel::topo {

/// NUMA nodes and PCI buses that hwloc finds, and GPUs recognised by their PCI class. A GPU has
/// only vendor, address and place. For RDMA NICs, which hwloc calls OpenFabrics devices, neither
/// speed nor link layer is known.
struct HwlocList {
  std::vector<NumaNode> numa;
  std::vector<PciNode> pci;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  SourceReport report;

  /// Adds a node of the PCI tree below `parent` (-1: a host bridge) and returns its index.
  int add_pci(PciNode node, int parent, int numa_index) {
    if (parent < 0) node.kind = PciNode::Kind::host_bridge;
    node.parent = parent;
    node.numa = numa_index;
    pci.push_back(node);
    return static_cast<int>(pci.size()) - 1;
  }

  /// Adds the ports of an OpenFabrics device at index `index` of `pci`. `info` returns the value
  /// that hwloc records under a name, or an empty string.
  void add_ports(const std::string& name, int index,
                 const std::function<std::string(const std::string&)>& info);
};

/// Returns a GPU if the numbers of a PCI device denote one. It has a vendor, and a name made of the
/// numbers. Returns nothing for other devices.
std::optional<Gpu> gpu_by_class(std::uint16_t class_id, std::uint16_t vendor, std::uint16_t device);

}  // namespace oriel::topo
