// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"

namespace oriel::kernels::host {

/// Sets default rounding, no flush-to-zero and no traps for this thread's arithmetic during its
/// lifetime. An application may run with other modes, but its results must equal its peers'. Only
/// reads MXCSR and tests it if the modes are already the defaults. Does nothing on processors other
/// than x86.
///
/// All functions are always inlined, because sources of several instruction sets include this
/// header.
class FloatEnvironment {
 public:
#if defined(__x86_64__)
  // The asm statements are compiler barriers for the loads and stores of the arithmetic between
  // them.
  ORIEL_DEVICE_FN FloatEnvironment() {
    asm volatile("stmxcsr %0" : "=m"(saved_)::"memory");
    changed_ = (saved_ & ~kStatusFlags) != kDefault;
    if (__builtin_expect(changed_, false)) set(kDefault);
  }
  ORIEL_DEVICE_FN ~FloatEnvironment() {
    if (__builtin_expect(changed_, false)) set(saved_);
  }

 private:
  static constexpr std::uint32_t kStatusFlags = 0x3f;
  static constexpr std::uint32_t kDefault = 0x1f80;
  ORIEL_DEVICE_FN static void set(std::uint32_t value) {
    asm volatile("ldmxcsr %0" ::"m"(value) : "memory");
  }
  std::uint32_t saved_ = 0;
  bool changed_ = false;
#else
  FloatEnvironment() {}
  ~FloatEnvironment() {}
#endif
 public:
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;
};

}  // namespace oriel::kernels::host
