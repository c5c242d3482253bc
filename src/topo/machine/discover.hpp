// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oriel/error.hpp"

#include "topo/model/machine.hpp"
#include "topo/sources/hwloc_table.hpp"
#include "topo/sources/nvml_table.hpp"

namespace oriel::topo {

/// Where a machine is looked for.
struct DiscoverOptions {
  /// Below it stand /sys and the like; another root than "/" is somebody else's machine, of which
  /// hwloc and CUDA know nothing.
  std::string root = "/";
  /// Text of hwloc's description of a machine, instead of asking hwloc about this one. CUDA is not
  /// asked either then.
  std::string hwloc_xml;
  /// Whether NVML and CUDA are asked.
  bool gpus = true;
  /// Whether RDMA NICs are looked for.
  bool nics = true;
};

/// What this machine is made of, from all sources that there are: hwloc (or, without it, /sys) for
/// NUMA nodes and PCI buses, NVML, AMD's driver and CUDA for GPUs, /sys/class/infiniband (or,
/// without it, hwloc) for NICs.
/// A GPU that several sources know is one entry. Absent sources are normal, and reported with the
/// others in Machine::sources. The machine is canonical and passes check(). The error says which
/// description could not be used.
Result<Machine> discover(const DiscoverOptions& options, const HwlocLibrary& hwloc,
                         const NvmlLibrary& nvml);

/// The same with the libraries of this system.
Result<Machine> discover(const DiscoverOptions& options = {});

}  // namespace oriel::topo
