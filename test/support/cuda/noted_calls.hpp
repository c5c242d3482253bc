// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "base/cuda_table.hpp"

namespace oriel::test {

/// Records the names of driver calls on top of the table in force, in a static array of each
/// thread, until destroyed. Use one at a time.
class NotedCalls {
 public:
  NotedCalls() : scoped_(over_current()) {}

  /// Returns the names of the first 64 driver calls that `call` makes on this thread.
  template <class Call>
  std::vector<std::string> names_of(const Call& call) {
    count_ = 0;
    call();
    return {names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(count_)};
  }

 private:
  template <auto member, typename Function>
  struct Hook;
  template <auto member, typename... Args>
  struct Hook<member, CUresult (*)(Args...)> {
    static inline const char* name = nullptr;
    static CUresult CUDAAPI call(Args... args) {
      if (count_ < names_.size()) names_[count_++] = name;
      return (below_.*member)(args...);
    }
  };
  template <auto member, typename Function>
  static void note(Function& entry, const char* name) {
    Hook<member, Function>::name = name;
    entry = Hook<member, Function>::call;
  }
  static const CudaTable& over_current() {
    below_ = cuda();
    static CudaTable table;
#define ORIEL_DETAIL_NOTE(member, symbol, version) note<&CudaTable::member>(table.member, #member);
    ORIEL_CUDA_CALLS(ORIEL_DETAIL_NOTE)
#undef ORIEL_DETAIL_NOTE
    return table;
  }

  static inline thread_local std::array<const char*, 64> names_{};
  static inline thread_local std::size_t count_ = 0;
  static inline CudaTable below_{};  // table that calls are passed on to
  ScopedCudaTable scoped_;
};

}  // namespace oriel::test
