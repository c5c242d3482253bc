// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/hwloc_table.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace oriel::topo {
namespace {

HwlocLibrary load_hwloc() {
  HwlocLibrary hwloc{};
  void* library = ::dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    hwloc.missing = fmt::format("there is no hwloc 2 ({})",
                                why != nullptr ? why : "libhwloc.so.15 cannot be loaded");
    return hwloc;
  }
#define ORIEL_DETAIL_LOOK_UP(symbol)                                                     \
  hwloc.table.symbol = reinterpret_cast<decltype(&::symbol)>(::dlsym(library, #symbol)); \
  if (hwloc.table.symbol == nullptr) hwloc.missing = "hwloc is too old: it has no " #symbol;
  ORIEL_HWLOC_CALLS(ORIEL_DETAIL_LOOK_UP)
#undef ORIEL_DETAIL_LOOK_UP
  // Checks the version, since objects are read by the header's layout, which is fixed within a
  // major version.
  if (hwloc.missing.empty()) {
    const unsigned found = hwloc.table.hwloc_get_api_version();
    if (found >> 16 != HWLOC_API_VERSION >> 16) {
      hwloc.missing = fmt::format("hwloc's interface is version {:#x}, this was built for {:#x}",
                                  found, static_cast<unsigned>(HWLOC_API_VERSION));
    }
  }
  return hwloc;
}

}  // namespace

const HwlocLibrary& hwloc_library() {
  // Never destroyed: threads may still call while the process exits.
  static const auto& library = *new HwlocLibrary(load_hwloc());
  return library;
}

}  // namespace oriel::topo
