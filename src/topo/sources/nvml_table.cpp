// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/nvml_table.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace oriel::topo {
namespace {

/// Replaces a function that the library lacks.
template <typename... Args>
NvmlStatus refuse(Args...) {
  return NvmlStatus::function_not_found;
}

template <typename... Args>
void look_up(void* library, const char* symbol, NvmlStatus (*&member)(Args...)) {
  member = refuse<Args...>;
  if (library == nullptr) return;
  if (void* found = ::dlsym(library, symbol)) {
    member = reinterpret_cast<NvmlStatus (*)(Args...)>(found);
  }
}

NvmlLibrary load_nvml() {
  NvmlLibrary nvml;
  // Never closed: other code in the process uses NVML too, and it keeps threads.
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    nvml.missing = fmt::format("there is no NVML ({})",
                               why != nullptr ? why : "libnvidia-ml.so.1 cannot be loaded");
  }
#define ORIEL_DETAIL_LOOK_UP(member, symbol, parameters) \
  look_up(library, #symbol, nvml.table.member);
  ORIEL_NVML_CALLS(ORIEL_DETAIL_LOOK_UP)
#undef ORIEL_DETAIL_LOOK_UP
  return nvml;
}

}  // namespace

const NvmlLibrary& nvml_library() {
  // Never destroyed: threads may still call while the process exits.
  static const auto& library = *new NvmlLibrary(load_nvml());
  return library;
}

}  // namespace oriel::topo
