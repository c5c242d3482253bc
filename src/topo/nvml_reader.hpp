// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "topo/machine.hpp"
#include "topo/nvml_table.hpp"

namespace oriel::topo {

/// NVIDIA's GPUs as NVML lists them, also those that CUDA_VISIBLE_DEVICES hides: NVLinks, who may
/// map whose memory, fabric clique, PCIe link. A GPU in MIG mode is listed as its instances, which
/// reach nobody.
struct NvmlList {
  std::vector<Gpu> gpus;
  std::vector<GpuPair> pairs;  ///< of places in `gpus`
  SourceReport report;
};

/// Never fails: what a call refuses keeps its default, and the report says what was missing. Wakes
/// no GPU. Initialises NVML and ends that again.
NvmlList read_nvml(const NvmlLibrary& nvml);

}  // namespace oriel::topo
