// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oriel/error.hpp"

#include "topo/model/machine.hpp"
#include "topo/sources/hwloc_table.hpp"
#include "topo/sources/nvml_table.hpp"

namespace oriel::topo {

/// Options of discover().
struct DiscoverOptions {
  /// Root below which /sys and similar folders lie. Any root other than "/" is another machine,
  /// which hwloc and CUDA do not know.
  std::string root = "/";
  /// Text of hwloc's description of a machine, used instead of querying hwloc and CUDA about this
  /// one.
  std::string hwloc_xml;
  /// Queries NVML and CUDA.
  bool gpus = true;
  /// Reads RDMA NICs.
  bool nics = true;
};

/// Describes this machine from all available sources. NUMA nodes and PCI buses come from hwloc or,
/// without it, /sys. GPUs come from NVML, AMD's driver and CUDA, and by PCI class from hwloc or
/// /sys. NICs come from
/// /sys/class/infiniband or, without it, hwloc. A GPU that several sources know is one entry.
/// Absent sources are normal, and reported with the others in Machine::sources. The machine is
/// canonical and passes check(). An error names the description that could not be used.
Result<Machine> discover(const DiscoverOptions& options, const HwlocLibrary& hwloc,
                         const NvmlLibrary& nvml);

/// Describes this machine with the libraries of this system.
Result<Machine> discover(const DiscoverOptions& options = {});

}  // namespace oriel::topo
