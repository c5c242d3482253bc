// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "topo/model/machine.hpp"
#include "topo/sources/nvml_table.hpp"

namespace oriel::topo {

/// NVIDIA's GPUs as NVML lists them, including those that CUDA_VISIBLE_DEVICES hides. Has NVLinks,
/// who may map whose memory, fabric cliques and PCIe links. A GPU in MIG mode is listed as its
/// instances, which reach no other GPU.
struct NvmlList {
  std::vector<Gpu> gpus;
  std::vector<GpuPair> pairs;  ///< indices in `gpus`
  SourceReport report;
};

/// Selects the queries. Some answers take milliseconds (driver 580.159: 2.3 for a PCIe link, 1.7
/// for one capability of one pair). A communicator therefore queries no more than it needs.
struct NvmlQuestion {
  /// Queries only pairs from these GPUs, matched by PCI address. For a pair with NVLink, that
  /// capability implies all others. Null: queries all pairs, each capability separately.
  const std::vector<Gpu>* from = nullptr;
  bool pcie_links = true;
};

/// Reads the list and never fails: refused calls leave defaults, and the report says what was
/// missing. Initialises NVML and shuts it down again.
NvmlList read_nvml(const NvmlLibrary& nvml, const NvmlQuestion& question = {});

}  // namespace oriel::topo
