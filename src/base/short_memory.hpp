// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <new>
#include <thread>

namespace oriel {

/// Calls `step` until it has the memory it needs, for about a tenth of a second. For what other
/// ranks have been promised, or what would be lost: a rank that has voted in an agreement has to
/// learn its outcome, and what has been read from a connection is nowhere else. A step that has
/// thrown is called again, so it must be the same as before; bad_alloc if memory does not come
/// back.
template <typename Step>
auto despite_short_memory(const Step& step) {
  constexpr int kAttempts = 100;
  constexpr auto kPause = std::chrono::milliseconds(1);
  for (int attempt = 1;; ++attempt) {
    try {
      return step();
    } catch (const std::bad_alloc&) {
      if (attempt == kAttempts) throw;
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace oriel
