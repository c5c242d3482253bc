// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "support/fault.hpp"

#include <cerrno>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>

namespace oriel::test {
namespace {

thread_local FaultPlan* plan_of_thread = nullptr;
std::atomic<FaultPlan*> plan_of_process{nullptr};

std::atomic<int> askers_of_process{0};  // threads that may hold the process's plan just now

/// What a call of this name must fail with, if it must.
std::optional<int> failure_of(const char* name) {
  const auto ask = [name](FaultPlan* plan) -> std::optional<int> {
    if (plan == nullptr || !plan->next(name)) return std::nullopt;
    return plan->status;
  };
  if (plan_of_thread != nullptr) return ask(plan_of_thread);
  ++askers_of_process;
  const auto status = ask(plan_of_process);
  --askers_of_process;
  return status;
}

template <typename T>
T failure() {
  if constexpr (std::is_pointer_v<T>) {
    return static_cast<T>(MAP_FAILED);
  } else {
    return T{-1};
  }
}

/// Stands in for one member of the table.
template <auto member, typename Function>
struct Hook;

template <auto member, typename Return, typename... Args>
struct Hook<member, Return (*)(Args...)> {
  static inline const char* name = nullptr;
  static inline bool releases = false;

  static Return call(Args... args) {
    const auto status = failure_of(name);
    if (!status) return (real_system_table().*member)(args...);
    if (releases) static_cast<void>((real_system_table().*member)(args...));
    errno = *status;
    return failure<Return>();
  }
};

template <auto member, typename Function>
void hook(Function& entry, const char* name, bool releases = false) {
  using Hooked = Hook<member, Function>;
  Hooked::name = name;
  Hooked::releases = releases;
  entry = Hooked::call;
}

SystemTable make_table() {
  SystemTable table{};
#define ORIEL_DETAIL_HOOK(member) hook<&SystemTable::member>(table.member, #member);
  ORIEL_SYSTEM_CALLS(ORIEL_DETAIL_HOOK)
#undef ORIEL_DETAIL_HOOK
  hook<&SystemTable::close>(table.close, "close", true);
  hook<&SystemTable::munmap>(table.munmap, "munmap", true);
  return table;
}

/// Put in force once and left there: without a plan it passes every call on.
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
  if (reach_ == Reach::thread) {
    plan_of_thread = &plan;
  } else {
    plan_of_process = &plan;
  }
}

ScopedSystemFaults::~ScopedSystemFaults() {
  if (reach_ == Reach::thread) {
    plan_of_thread = nullptr;
  } else {
    plan_of_process = nullptr;
    // The plan ends with its user's scope.
    while (askers_of_process != 0) std::this_thread::yield();
  }
}

}  // namespace oriel::test
