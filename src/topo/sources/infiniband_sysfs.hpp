// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"

namespace oriel::topo {

/// The RDMA NICs that the kernel lists under /sys/class/infiniband, one entry per port, without
/// their places in the PCI tree. `numa` holds the system's number of the NUMA node, not an index.
struct InfinibandList {
  std::vector<Nic> nics;
  SourceReport report;
};

/// Never fails: what a port does not say keeps its default, a device without ports is left out, and
/// the report says how many there are.
InfinibandList read_infiniband(const FileTree& tree);

}  // namespace oriel::topo
