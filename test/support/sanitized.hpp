// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

namespace oriel::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitized;
#endif

/// How often to repeat what is random or has to be done many times: `full` times, but under a
/// sanitizer, which makes everything slower and sees in a few repetitions what it would in all, one
/// time in `one_in`. Every kind of case has to be among them still.
template <typename Count>
constexpr Count repeats(Count full, Count one_in = 10) {
  return kSanitized ? std::max(full / one_in, Count{1}) : full;
}

}  // namespace oriel::test
