// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>

namespace oriel {

/// One T for each thread, created at the thread's first get() and destroyed when the thread ends.
///
/// An application's older thread-local objects outlive T; on the main thread, its static objects do
/// too. Their destructors may call the library and then get a new T, which is never destroyed. Such
/// a T should not keep memory; ended() identifies it.
template <typename T>
class ThreadObject {
 public:
  static T& get() {
    if (object_ == nullptr) make();
    return *object_;
  }
  /// Returns whether the thread's T has been destroyed.
  static bool ended() { return ended_; }

 private:
  struct Ending {
    Ending() noexcept {}
    ~Ending() {
      ended_ = true;
      T* const last = object_;
      object_ = nullptr;
      last->~T();
    }
  };

  static void make() {
    object_ = new (storage_) T();
    if (!ended_) static thread_local const Ending ending;
  }

  // All trivially destructible, so usable as long as the thread runs.
  alignas(T) static inline constinit thread_local std::byte storage_[sizeof(T)] = {};
  static inline constinit thread_local T* object_ = nullptr;
  static inline constinit thread_local bool ended_ = false;
};

}  // namespace oriel
