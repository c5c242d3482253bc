// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>

namespace oriel {

/// One T of each thread, made when the thread first asks for it and destroyed when the thread ends.
///
/// An application's thread-local objects that are older than T outlive it, and on the main thread
/// its static objects do too; their destructors may call the library. They find a new T then, which
/// nothing destroys: it should own memory only in passing. ended() tells.
template <typename T>
class ThreadObject {
 public:
  static T& get() {
    if (object_ == nullptr) make();
    return *object_;
  }
  /// Whether the thread's T has been destroyed.
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
    object_ = new (room_) T();
    if (!ended_) static thread_local const Ending ending;
  }

  // All trivially destructible, so that they may be used for as long as the thread runs.
  alignas(T) static inline constinit thread_local std::byte room_[sizeof(T)] = {};
  static inline constinit thread_local T* object_ = nullptr;
  static inline constinit thread_local bool ended_ = false;
};

}  // namespace oriel
