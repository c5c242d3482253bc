// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/fabric_table.hpp"

#include <algorithm>
#include <atomic>

#include <dlfcn.h>
#include <fmt/format.h>

#include "net/fabric/signal_keeper.hpp"

namespace oriel::net {
namespace {

constexpr unsigned kHeaderVersion = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);

std::atomic<const FabricTable*> stand_in{nullptr};

std::string text_of(unsigned version) {
  return fmt::format("{}.{}", FI_MAJOR(version), FI_MINOR(version));
}

}  // namespace

unsigned fabric_version(const FabricTable& table) {
  return std::min(kHeaderVersion, static_cast<unsigned>(table.fi_version()));
}

FabricLibrary load_fabric_library(const char* name) {
  const SignalKeeper keeper;
  FabricLibrary fabric{};
  // Never closed: other code in the process may use the library too, and it holds what providers
  // have made.
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    fabric.missing = fmt::format("there is no libfabric ({}); it is in the package libfabric1",
                                 why != nullptr ? why : name);
    return fabric;
  }
#define ORIEL_DETAIL_LOOK_UP(symbol)                                                      \
  fabric.table.symbol = reinterpret_cast<decltype(&::symbol)>(::dlsym(library, #symbol)); \
  if (fabric.table.symbol == nullptr) fabric.missing = "libfabric is too old: it has no " #symbol;
  ORIEL_FABRIC_EXPORTS(ORIEL_DETAIL_LOOK_UP)
#undef ORIEL_DETAIL_LOOK_UP
#define ORIEL_DETAIL_TAKE(symbol) fabric.table.symbol = ::symbol;
  ORIEL_FABRIC_INLINES(ORIEL_DETAIL_TAKE)
#undef ORIEL_DETAIL_TAKE
  if (!fabric.missing.empty()) return fabric;
  const unsigned found = fabric.table.fi_version();
  if (found < kFabricVersionLeast) {
    fabric.missing = fmt::format("libfabric is version {}; {} is the oldest that Oriel knows",
                                 text_of(found), text_of(kFabricVersionLeast));
  }
  return fabric;
}

const FabricLibrary& fabric_library() {
  // Never destroyed: threads may still call while the process exits.
  static const auto& library = *new FabricLibrary(load_fabric_library("libfabric.so.1"));
  return library;
}

ScopedFabricTable::ScopedFabricTable(const FabricTable& table) {
  stand_in = &table;
}

ScopedFabricTable::~ScopedFabricTable() {
  stand_in = nullptr;
}

const FabricTable* fabric_stand_in() {
  return stand_in;
}

}  // namespace oriel::net
