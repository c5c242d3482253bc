// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"

namespace oriel::topo {

/// RDMA NICs that the kernel lists under /sys/class/infiniband, one entry per port, without their
/// places in the PCI tree. `numa` is the OS number of the NUMA node, not an index.
struct InfinibandList {
  std::vector<Nic> nics;
  SourceReport report;
};

/// Reads the list and never fails. A missing link layer becomes Layer::other. A missing state means
/// not active. Other missing values keep their defaults. A device without ports is omitted. The
/// report has the number of ports.
InfinibandList read_infiniband(const FileTree& tree);

}  // namespace oriel::topo
