// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "topo/model/hwloc_list.hpp"
#include "topo/sources/hwloc_table.hpp"

namespace oriel::topo {

/// Queries hwloc about this machine. Never fails: the report says what was missing. Excludes
/// hwloc's plug-ins that wake GPUs. If HWLOC_XMLFILE names a description of the machine,
/// read_hwloc_xml() reads that instead.
///
/// `xml` is a trusted description in hwloc's format to query instead, for tests. hwloc crashes on
/// some bad ones; use read_hwloc_xml() for these.
HwlocList read_hwloc(const HwlocLibrary& hwloc, const std::string& xml = "");

}  // namespace oriel::topo
