// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <optional>
#include <thread>

#include "support/fault.hpp"

/// Hooks for the entries of a table of calls. `Calls::below()` is the table that a call is passed
/// on to. `Calls::fail<Return>(status)` reports a failure and returns the call's error value.
namespace oriel::test {

/// Fault plans of one table's calls: one for each thread, and one for the process.
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
    // Waits for other threads to leave the plan, which dies with its user's scope.
    while (askers_ != 0) std::this_thread::yield();
  }
  /// Counts a call of this name; returns the status that it must fail with, if any. A thread's own
  /// plan takes precedence over the process's plan.
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
  static inline std::atomic<int> askers_{0};  // threads that may be reading of_process_
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

/// Puts a hook into `entry`. If `releases`, the call takes effect before it fails.
template <typename Calls, auto member, typename Function>
void hook(Function& entry, const char* name, bool releases = false) {
  using Hooked = CallHook<Calls, member, Function>;
  Hooked::name = name;
  Hooked::releases = releases;
  entry = Hooked::call;
}

}  // namespace oriel::test
