// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"

namespace oriel::topo {

/// The AMD GPUs that the kernel's compute driver lists under /sys/class/kfd, and who may map whose
/// memory: a GPU maps those to which one of its links leads (direct, io_links, or through the host,
/// p2p_links) unless the link forbids peer access. Of pairs without a link the driver says that
/// they cannot.
struct KfdList {
  std::vector<Gpu> gpus;
  std::vector<GpuPair> pairs;  ///< of places in `gpus`
  SourceReport report;
};

/// Never fails: a node or link whose file is missing or odd is left out, and counted in the report.
KfdList read_kfd(const FileTree& tree);

}  // namespace oriel::topo
