// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <optional>
#include <thread>

#include "support/fault.hpp"

/// Hooks for the entries of a table of calls. `Calls` says where calls go on to, below(), and what
/// a failed one does and returns, fail<Return>(status).
namespace oriel::test {

/// The plans that calls of one table go through.
template <typename Calls>
class Plans {
 public:
  static void begin(FaultPlan& plan, Reach reach) {
    if (reach == Reach::thread) {
      of_thread_ = &plan;
    } else {
      of_process_ = &plan;
    }
  }
  static void end(Reach reach) {
    if (reach == Reach::thread) {
      of_thread_ = nullptr;
      return;
    }
    of_process_ = nullptr;
    // The plan ends with its user's scope.
    while (askers_ != 0) std::this_thread::yield();
  }
  /// What a call of this name must fail with, if it must.
  static std::optional<int> failure_of(const char* name) {
    const auto ask = [name](FaultPlan* plan) -> std::optional<int> {
      if (plan == nullptr || !plan->next(name)) return std::nullopt;
      return plan->status;
    };
    if (of_thread_ != nullptr) return ask(of_thread_);
    ++askers_;
    const auto status = ask(of_process_);
    --askers_;
    return status;
  }

 private:
  static inline thread_local FaultPlan* of_thread_ = nullptr;
  static inline std::atomic<FaultPlan*> of_process_{nullptr};
  static inline std::atomic<int> askers_{0};  // threads that may hold the process's plan just now
};

/// Stands in for one member of the table.
template <typename Calls, auto member, typename Function>
struct CallHook;

template <typename Calls, auto member, typename Return, typename... Args>
struct CallHook<Calls, member, Return (*)(Args...)> {
  static inline const char* name = nullptr;
  static inline bool releases = false;

  static Return call(Args... args) {
    const auto status = Plans<Calls>::failure_of(name);
    if (!status) return (Calls::below().*member)(args...);
    if (releases) static_cast<void>((Calls::below().*member)(args...));
    return Calls::template fail<Return>(*status);
  }
};

/// Calls that give something up take effect before they fail.
template <typename Calls, auto member, typename Function>
void hook(Function& entry, const char* name, bool releases = false) {
  using Hooked = CallHook<Calls, member, Function>;
  Hooked::name = name;
  Hooked::releases = releases;
  entry = Hooked::call;
}

}  // namespace oriel::test
