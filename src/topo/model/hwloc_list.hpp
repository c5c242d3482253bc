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

/// The NUMA nodes and PCI buses that hwloc finds, and what is a GPU by its PCI class: vendor,
/// address and place, no more. Of RDMA NICs, which it calls OpenFabrics devices, it tells neither
/// the speed nor the kind of link.
struct HwlocList {
  std::vector<NumaNode> numa;
  std::vector<PciNode> pci;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  SourceReport report;

  /// Lists a piece of the PCI tree below `parent` (-1: a host bridge) and yields its index.
  int add_pci(PciNode node, int parent, int numa_index) {
    if (parent < 0) node.kind = PciNode::Kind::host_bridge;
    node.parent = parent;
    node.numa = numa_index;
    pci.push_back(node);
    return static_cast<int>(pci.size()) - 1;
  }

  /// Lists the ports of an OpenFabrics device at a place in `pci`; `info` yields what hwloc notes
  /// about it under a name, or nothing.
  void add_ports(const std::string& name, int index,
                 const std::function<std::string(const std::string&)>& info);
};

/// A GPU as far as the numbers of a PCI device tell: its vendor, and a name made of them. Nothing
/// for other devices.
std::optional<Gpu> gpu_by_class(std::uint16_t class_id, std::uint16_t vendor, std::uint16_t device);

}  // namespace oriel::topo
