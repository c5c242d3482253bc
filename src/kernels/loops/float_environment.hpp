// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"

namespace oriel::kernels::host {

/// Gives the arithmetic of this thread the default rounding, no flush-to-zero and no traps while it
/// lives: an application may run with other modes, and its results must still equal its peers'.
/// Costs about 1 ns where the modes are the default ones. Does nothing on processors other than
/// x86.
///
/// Its functions are always inlined, for sources of several instruction sets include it.
class FloatEnvironment {
 public:
#if defined(__x86_64__)
  // The assembler statements are barriers for the loads and stores of the arithmetic between them.
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
