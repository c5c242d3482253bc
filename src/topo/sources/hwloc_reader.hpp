// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "topo/model/hwloc_list.hpp"
#include "topo/sources/hwloc_table.hpp"

namespace oriel::topo {

/// Asks about this machine. Never fails: the report says what was missing. Takes some ten
/// milliseconds on a large machine. hwloc's plug-ins that wake GPUs stay out. Where HWLOC_XMLFILE
/// names a description of the machine for hwloc, read_hwloc_xml() reads it.
///
/// `xml` is a description in hwloc's format to ask about instead, for tests: one that can be
/// trusted, for hwloc crashes on others. read_hwloc_xml() is for those.
HwlocList read_hwloc(const HwlocLibrary& hwloc, const std::string& xml = "");

}  // namespace oriel::topo
