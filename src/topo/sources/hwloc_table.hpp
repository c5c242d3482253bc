// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <hwloc.h>

/// hwloc 2, loaded at run time: it finds the tree of PCI buses and the NUMA nodes.
namespace oriel::topo {

/// X(symbol), all with the prototypes of <hwloc.h>
#define ORIEL_HWLOC_CALLS(X)            \
  X(hwloc_get_api_version)              \
  X(hwloc_topology_init)                \
  X(hwloc_topology_destroy)             \
  X(hwloc_topology_set_xmlbuffer)       \
  X(hwloc_topology_set_flags)           \
  X(hwloc_topology_set_components)      \
  X(hwloc_topology_set_io_types_filter) \
  X(hwloc_topology_load)                \
  X(hwloc_get_obj_by_depth)             \
  X(hwloc_bitmap_next)                  \
  X(hwloc_bitmap_weight)                \
  X(hwloc_distances_get_by_type)        \
  X(hwloc_distances_release)

struct HwlocTable {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration has no place for them
#define ORIEL_DETAIL_MEMBER(symbol) decltype(&::symbol) symbol;
  ORIEL_HWLOC_CALLS(ORIEL_DETAIL_MEMBER)
#undef ORIEL_DETAIL_MEMBER
};

/// Result of loading the library.
struct HwlocLibrary {
  HwlocTable table;
  std::string missing;  ///< why it cannot be used; no function may be called then. Else empty
};

/// Loads libhwloc.so.15 at the first call and keeps it. Thread-safe.
const HwlocLibrary& hwloc_library();

}  // namespace oriel::topo
