// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "topo/hwloc_table.hpp"
#include "topo/machine.hpp"

namespace oriel::topo {

/// The NUMA nodes and PCI buses that hwloc finds, and what is a GPU by its PCI class: vendor,
/// address and place, no more.
struct HwlocList {
  std::vector<NumaNode> numa;
  std::vector<PciNode> pci;
  std::vector<Gpu> gpus;
  SourceReport report;
};

/// Asks about this machine, or about the one that `xml` describes (hwloc's format; passed by
/// check_hwloc_xml()) unless it is empty. Never fails: the report says what was missing. Takes some
/// ten milliseconds on a large machine. hwloc's plug-ins that wake GPUs stay out.
HwlocList read_hwloc(const HwlocLibrary& hwloc, const std::string& xml);

}  // namespace oriel::topo
