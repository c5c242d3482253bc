// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "support/fault.hpp"

#include <cerrno>
#include <type_traits>

#include <sys/mman.h>

#include "support/call_hook.hpp"

namespace oriel::test {
namespace {

struct SystemCalls {
  static const SystemTable& below() { return real_system_table(); }
  template <typename Return>
  static Return fail(int status) {
    errno = status;
    if constexpr (std::is_pointer_v<Return>) {
      return static_cast<Return>(MAP_FAILED);
    } else {
      return Return{-1};
    }
  }
};

SystemTable make_table() {
  SystemTable table{};
#define ORIEL_DETAIL_HOOK(member) hook<SystemCalls, &SystemTable::member>(table.member, #member);
  ORIEL_SYSTEM_CALLS(ORIEL_DETAIL_HOOK)
#undef ORIEL_DETAIL_HOOK
  hook<SystemCalls, &SystemTable::close>(table.close, "close", true);
  hook<SystemCalls, &SystemTable::munmap>(table.munmap, "munmap", true);
  return table;
}

/// Installs the hooks once and for good: without a plan they pass every call on.
void install() {
  static const SystemTable table = make_table();
  static const ScopedSystemTable scoped(table);
}

}  // namespace

bool FaultPlan::next(const char* name) {
  if (calls.fetch_add(1) + 1 != fail_at) return false;
  failed = name;
  return true;
}

ScopedSystemFaults::ScopedSystemFaults(FaultPlan& plan, Reach reach) : reach_(reach) {
  install();
  Plans<SystemCalls>::begin(plan, reach_);
}

ScopedSystemFaults::~ScopedSystemFaults() {
  Plans<SystemCalls>::end(reach_);
}

}  // namespace oriel::test
