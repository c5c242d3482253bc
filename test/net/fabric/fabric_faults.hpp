// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>

#include "net/fabric/fabric_table.hpp"

namespace oriel::net::test {

/// Plan for calls of libfabric: each call can be made to fail, and open objects are tracked. One
/// plan at a time; calls may come from any thread.
struct FabricPlan {
  /// Returns the negative status with which the call must fail, or 0 to make the call.
  std::function<long(const char* call)> fail = [](const char*) { return 0; };
  /// If set, receives the result of fi_cq_read(), at most one entry, and may change it.
  std::function<ssize_t(fi_cq_msg_entry*, ssize_t)> completions;
  /// If set, replaces fi_cq_readerr().
  std::function<ssize_t(fi_cq_err_entry*)> error;

  std::set<const void*> open;  // fids and lists of info
  std::atomic<long> calls = 0;
  std::string failed;  // the last call that was made to fail
  std::mutex mutex;    // guards `open` and `failed`

  static FabricPlan*& current() {
    static FabricPlan* plan = nullptr;
    return plan;
  }
  FabricPlan() { current() = this; }
  ~FabricPlan() { current() = nullptr; }
  FabricPlan(const FabricPlan&) = delete;
  FabricPlan& operator=(const FabricPlan&) = delete;

  long next(const char* call) {
    ++calls;
    const long status = fail(call);
    const std::lock_guard lock(mutex);
    if (status != 0) failed = call;
    return status;
  }
  template <class Object>
  Object* opened(Object* object) {
    const std::lock_guard lock(mutex);
    open.insert(object);
    return object;
  }
  void closed(const void* object) {
    const std::lock_guard lock(mutex);
    open.erase(object);
  }
  static const FabricTable& real() { return fabric_library().table; }
};

namespace detail {

// Records the object that a call has opened.
template <class Argument>
void note_opened(const Argument&) {}
template <class Fid>
requires requires(Fid made) {
  made.fid;
}
void note_opened(Fid** made) {
  FabricPlan::current()->opened(&(*made)->fid);
}
inline void note_opened(fi_info** made) {
  FabricPlan::current()->opened(*made);
}

// Passes the call on, unless the plan makes it fail.
template <auto kMember, class Call>
struct Hook;
template <auto kMember, class R, class... Args>
struct Hook<kMember, R (*)(Args...)> {
  static inline const char* name = "";
  static R call(Args... args) {
    if constexpr (std::is_integral_v<R> && std::is_signed_v<R>) {
      const long status = FabricPlan::current()->next(name);
      if (status != 0) return static_cast<R>(status);
      const R made = (FabricPlan::real().*kMember)(args...);
      if (made == 0) (note_opened(args), ...);
      return made;
    } else {
      return (FabricPlan::real().*kMember)(args...);
    }
  }
};

inline int close_fid(fid* object) {
  // Takes effect before it reports failure, as calls that release something do.
  FabricPlan::current()->closed(object);
  const int closed = FabricPlan::real().fi_close(object);
  const long status = FabricPlan::current()->next("fi_close");
  return status != 0 ? static_cast<int>(status) : closed;
}
inline fi_info* copy_info(const fi_info* info) {
  if (FabricPlan::current()->next("fi_dupinfo") != 0) return nullptr;
  fi_info* const made = FabricPlan::real().fi_dupinfo(info);
  return made != nullptr ? FabricPlan::current()->opened(made) : nullptr;
}
inline void free_info(fi_info* info) {
  FabricPlan::current()->closed(info);
  FabricPlan::real().fi_freeinfo(info);
}
inline ssize_t read_queue(fid_cq* queue, void* entries, std::size_t count) {
  if (const long status = FabricPlan::current()->next("fi_cq_read")) return status;
  auto& plan = *FabricPlan::current();
  if (plan.completions) count = 1;
  const ssize_t found = FabricPlan::real().fi_cq_read(queue, entries, count);
  return plan.completions ? plan.completions(static_cast<fi_cq_msg_entry*>(entries), found) : found;
}
inline ssize_t read_queue_error(fid_cq* queue, fi_cq_err_entry* entry, std::uint64_t flags) {
  if (const long status = FabricPlan::current()->next("fi_cq_readerr")) return status;
  auto& plan = *FabricPlan::current();
  return plan.error ? plan.error(entry) : FabricPlan::real().fi_cq_readerr(queue, entry, flags);
}

}  // namespace detail

/// Returns a table of calls that obey the current plan. Calls that cannot fail are the library's
/// own.
inline const FabricTable& planned_fabric() {
  static const FabricTable table = [] {
    FabricTable made = FabricPlan::real();
#define ORIEL_DETAIL_HOOK(symbol)                                           \
  {                                                                         \
    using Hook = detail::Hook<&FabricTable::symbol, decltype(made.symbol)>; \
    Hook::name = #symbol;                                                   \
    made.symbol = Hook::call;                                               \
  }
    ORIEL_FABRIC_INLINES(ORIEL_DETAIL_HOOK)
    ORIEL_DETAIL_HOOK(fi_getinfo)
    ORIEL_DETAIL_HOOK(fi_fabric)
#undef ORIEL_DETAIL_HOOK
    made.fi_close = detail::close_fid;
    made.fi_dupinfo = detail::copy_info;
    made.fi_freeinfo = detail::free_info;
    made.fi_cq_read = detail::read_queue;
    made.fi_cq_readerr = detail::read_queue_error;
    return made;
  }();
  return table;
}

/// Returns a table whose fi_dupinfo() applies `kChange` to the description of each provider.
template <void (*kChange)(fi_info&)>
const FabricTable& changed_fabric() {
  static const FabricTable table = [] {
    FabricTable made = planned_fabric();
    made.fi_dupinfo = [](const fi_info* info) {
      fi_info* const copy = detail::copy_info(info);
      if (copy != nullptr && info != nullptr) kChange(*copy);
      return copy;
    };
    return made;
  }();
  return table;
}
inline void need_registered_memory(fi_info& info) {
  info.domain_attr->mr_mode |= FI_MR_LOCAL;
}

}  // namespace oriel::net::test
