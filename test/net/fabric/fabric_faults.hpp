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

/// libfabric with something in between: each call may be made to fail, and what is open is counted.
/// One plan at a time, calls by any thread.
struct FabricPlan {
  /// The status of a call that must fail, negative, or 0 to let it be made.
  std::function<long(const char* call)> fail = [](const char*) { return 0; };
  /// Takes what fi_cq_read() has yielded, one entry at most; may change it.
  std::function<ssize_t(fi_cq_msg_entry*, ssize_t)> completions;
  /// Stands for fi_cq_readerr() if it is set.
  std::function<ssize_t(fi_cq_err_entry*)> error;

  std::set<const void*> open;  // fids and lists of info
  std::atomic<long> calls = 0;
  std::string failed;  // the last call that was made to fail
  std::mutex mutex;    // of the two that are not atomic

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

// Calls through, unless the plan says otherwise.
template <auto kMember, class Call>
struct Hook;
template <auto kMember, class R, class... Args>
struct Hook<kMember, R (*)(Args...)> {
  static inline const char* name = "";
  static R call(Args... args) {
    if constexpr (std::is_integral_v<R> && std::is_signed_v<R>) {
      const long status = FabricPlan::current()->next(name);
      if (status != 0) return static_cast<R>(status);
    }
    return (FabricPlan::real().*kMember)(args...);
  }
};

template <class Fid>
int opened(int status, Fid** made) {
  if (status == 0) FabricPlan::current()->opened(&(*made)->fid);
  return status;
}

inline fi_info* opened(fi_info* info) {
  return info != nullptr ? FabricPlan::current()->opened(info) : nullptr;
}

#define ORIEL_DETAIL_FAIL_IF_PLANNED(symbol) \
  if (const long status = FabricPlan::current()->next(#symbol)) return static_cast<int>(status)

inline int close_fid(fid* object) {
  // As a call that gives something up: it takes effect before it reports failure.
  FabricPlan::current()->closed(object);
  const int closed = FabricPlan::real().fi_close(object);
  ORIEL_DETAIL_FAIL_IF_PLANNED(fi_close);
  return closed;
}
inline int get_info(std::uint32_t version, const char* node, const char* service,
                    std::uint64_t flags, const fi_info* hints, fi_info** made) {
  ORIEL_DETAIL_FAIL_IF_PLANNED(fi_getinfo);
  const int status = FabricPlan::real().fi_getinfo(version, node, service, flags, hints, made);
  if (status == 0) opened(*made);
  return status;
}
inline fi_info* copy_info(const fi_info* info) {
  if (FabricPlan::current()->next("fi_dupinfo") != 0) return nullptr;
  return opened(FabricPlan::real().fi_dupinfo(info));
}
inline void free_info(fi_info* info) {
  FabricPlan::current()->closed(info);
  FabricPlan::real().fi_freeinfo(info);
}
inline int open_fabric(fi_fabric_attr* attributes, fid_fabric** made, void* context) {
  ORIEL_DETAIL_FAIL_IF_PLANNED(fi_fabric);
  return opened(FabricPlan::real().fi_fabric(attributes, made, context), made);
}
inline int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** made, void* context) {
  ORIEL_DETAIL_FAIL_IF_PLANNED(fi_domain);
  return opened(FabricPlan::real().fi_domain(fabric, info, made, context), made);
}
inline int open_addresses(fid_domain* domain, fi_av_attr* attributes, fid_av** made,
                          void* context) {
  ORIEL_DETAIL_FAIL_IF_PLANNED(fi_av_open);
  return opened(FabricPlan::real().fi_av_open(domain, attributes, made, context), made);
}
inline int open_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** made, void* context) {
  ORIEL_DETAIL_FAIL_IF_PLANNED(fi_cq_open);
  return opened(FabricPlan::real().fi_cq_open(domain, attributes, made, context), made);
}
inline int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** made, void* context) {
  ORIEL_DETAIL_FAIL_IF_PLANNED(fi_endpoint);
  return opened(FabricPlan::real().fi_endpoint(domain, info, made, context), made);
}
inline int open_memory(fid_domain* domain, const void* at, std::size_t bytes, std::uint64_t access,
                       std::uint64_t offset, std::uint64_t key, std::uint64_t flags, fid_mr** made,
                       void* context) {
  ORIEL_DETAIL_FAIL_IF_PLANNED(fi_mr_reg);
  return opened(
      FabricPlan::real().fi_mr_reg(domain, at, bytes, access, offset, key, flags, made, context),
      made);
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

#undef ORIEL_DETAIL_FAIL_IF_PLANNED

}  // namespace detail

/// Of calls that obey the current plan. Calls that cannot fail are the library's own.
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
#undef ORIEL_DETAIL_HOOK
    made.fi_close = detail::close_fid;
    made.fi_getinfo = detail::get_info;
    made.fi_dupinfo = detail::copy_info;
    made.fi_freeinfo = detail::free_info;
    made.fi_fabric = detail::open_fabric;
    made.fi_domain = detail::open_domain;
    made.fi_av_open = detail::open_addresses;
    made.fi_cq_open = detail::open_queue;
    made.fi_endpoint = detail::open_endpoint;
    made.fi_mr_reg = detail::open_memory;
    made.fi_cq_read = detail::read_queue;
    made.fi_cq_readerr = detail::read_queue_error;
    return made;
  }();
  return table;
}

/// A library whose providers are as `kChange` makes the description of each.
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
