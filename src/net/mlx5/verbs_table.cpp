// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/verbs_table.hpp"

#include <atomic>
#include <cerrno>
#include <type_traits>

#include <dlfcn.h>
#include <fmt/format.h>

namespace oriel::net {
namespace {

std::atomic<const VerbsLibrary*> stand_in_library{nullptr};

/// Stands in for a function that a library lacks.
template <typename R, typename... Args>
R refuse(Args...) {
  errno = EOPNOTSUPP;
  if constexpr (std::is_same_v<R, int>) return EOPNOTSUPP;
  if constexpr (std::is_pointer_v<R>) return nullptr;
  if constexpr (std::is_same_v<R, bool>) return false;
}

template <typename R, typename... Args>
void look_up(void* library, const char* symbol, R (*&member)(Args...)) {
  member = refuse<R, Args...>;
  if (library == nullptr) return;
  if (void* found = ::dlsym(library, symbol)) member = reinterpret_cast<R (*)(Args...)>(found);
}

void* open_library(const char* file, const char* package, std::string& missing) {
  // Never closed: other code in the process may use the library too, and it registers drivers.
  void* library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* why = ::dlerror();
  if (missing.empty()) {
    missing = fmt::format("{} cannot be loaded ({}); Debian has it in the package {}", file,
                          why != nullptr ? why : "no reason given", package);
  }
  return nullptr;
}

}  // namespace

VerbsLibrary load_verbs(const char* ibverbs, const char* mlx5) {
  VerbsLibrary verbs;
  void* library = open_library(ibverbs, "libibverbs1", verbs.missing);
#define ORIEL_DETAIL_LOOK_UP(member, symbol, result, parameters) \
  look_up(library, #symbol, verbs.table.member);
  ORIEL_IBVERBS_CALLS(ORIEL_DETAIL_LOOK_UP)
  library = open_library(mlx5, "ibverbs-providers", verbs.missing);
  ORIEL_MLX5_CALLS(ORIEL_DETAIL_LOOK_UP)
#undef ORIEL_DETAIL_LOOK_UP
  return verbs;
}

const VerbsLibrary& verbs_library() {
  if (const VerbsLibrary* const other = stand_in_library) return *other;
  // Never destroyed: threads may still call while the process exits.
  static const auto& library = *new VerbsLibrary(load_verbs("libibverbs.so.1", "libmlx5.so.1"));
  return library;
}

ScopedVerbsLibrary::ScopedVerbsLibrary(const VerbsLibrary& library) {
  stand_in_library = &library;
}

ScopedVerbsLibrary::~ScopedVerbsLibrary() {
  stand_in_library = nullptr;
}

}  // namespace oriel::net
