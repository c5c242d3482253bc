// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "oriel/error.hpp"

#include "topo/model/hwloc_list.hpp"

namespace oriel::topo {

/// Reads hwloc's description of a machine: XML of lstopo, in the formats of hwloc 1 and 2. The list
/// has NUMA nodes with processors and distances, PCI buses, and GPUs by PCI class. It also has the
/// ports of RDMA NICs that lstopo saw, but neither their speed nor their link layer, which the
/// formats lack.
///
/// Works without hwloc: hwloc's own reader trusts documents, and crashes on some manipulated ones.
/// Refuses, with line and reason, all that parse_xml() refuses, other formats, missing mandatory
/// attributes, and malformed ones. Ignores objects of no interest.
Result<HwlocList> read_hwloc_xml(std::string_view text);

}  // namespace oriel::topo
