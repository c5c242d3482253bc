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

/// Returns the number of repetitions for a random or repeated test: `full`, or `full / one_in`, at
/// least 1, under a sanitizer. A sanitizer is slower, and finds in a few repetitions what it would
/// in all. Choose counts that keep every kind of case covered.
template <typename Count>
constexpr Count repeats(Count full, Count one_in = 10) {
  return kSanitized ? std::max(full / one_in, Count{1}) : full;
}

}  // namespace oriel::test
