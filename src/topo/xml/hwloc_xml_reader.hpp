// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "oriel/error.hpp"

#include "topo/model/hwloc_list.hpp"

namespace oriel::topo {

/// What hwloc's description of a machine says: what lstopo writes as XML, in the formats of hwloc 1
/// and 2. NUMA nodes with their processors and distances, PCI buses, GPUs by their PCI class, and
/// the ports of RDMA NICs that lstopo saw (neither their speed nor their kind of link, which it
/// does not tell).
///
/// Read without hwloc: its own reader trusts documents, and crashes on some that were tampered
/// with. Refused, with line and reason: what parse_xml() refuses, other formats, and attributes
/// that are missing or odd. Objects of no interest are passed over.
Result<HwlocList> read_hwloc_xml(std::string_view text);

}  // namespace oriel::topo
