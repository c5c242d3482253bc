// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"

namespace oriel::topo {

/// AMD GPUs that the kernel's compute driver lists under /sys/class/kfd, and who may map whose
/// memory. A GPU maps the GPUs to which its links lead, unless a link forbids peer access. Links
/// are direct (io_links) or through the host (p2p_links). Pairs without a link are marked as not
/// mappable.
struct KfdList {
  std::vector<Gpu> gpus;
  std::vector<GpuPair> pairs;  ///< indices in `gpus`
  SourceReport report;
};

/// Reads the list and never fails. Omits a node without a readable gpu_id or without properties.
/// Omits a link without properties or with another node's node_from. The report counts both.
/// Ignores malformed lines of properties without counting them.
KfdList read_kfd(const FileTree& tree);

}  // namespace oriel::topo
