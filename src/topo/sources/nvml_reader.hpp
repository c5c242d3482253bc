// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "topo/model/machine.hpp"
#include "topo/sources/nvml_table.hpp"

namespace oriel::topo {

/// NVIDIA's GPUs as NVML lists them, also those that CUDA_VISIBLE_DEVICES hides: NVLinks, who may
/// map whose memory, fabric clique, PCIe link. A GPU in MIG mode is listed as its instances, which
/// reach nobody.
struct NvmlList {
  std::vector<Gpu> gpus;
  std::vector<GpuPair> pairs;  ///< of places in `gpus`
  SourceReport report;
};

/// What is asked. Each answer takes some milliseconds (driver 580.159: 2.3 for a PCIe link, 1.7 for
/// one capability of one pair), so a communicator asks for no more than it needs.
struct NvmlQuestion {
  /// Pairs from these GPUs only, found by their PCI addresses, and NVLink's word for all
  /// capabilities at once. Null: all pairs, each capability by itself.
  const std::vector<Gpu>* from = nullptr;
  bool pcie_links = true;
};

/// Never fails: what a call refuses keeps its default, and the report says what was missing.
/// Initialises NVML and ends that again.
NvmlList read_nvml(const NvmlLibrary& nvml, const NvmlQuestion& question = {});

}  // namespace oriel::topo
