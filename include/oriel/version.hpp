// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/api.hpp"

/// Versions of the library and of its C interface.
///
/// Example:
/// ```cpp
/// #include <cstdio>
/// void print_versions() {
///   std::printf("Oriel %s, NCCL interface %d\n", oriel::version(), oriel::kNcclVersion);
/// }
/// ```
namespace oriel {

/// Returns the version of the library in use, such as "0.1.0". Local; does not block; any thread
/// may call it; never fails.
ORIEL_API const char* version();

/// Version of NCCL whose C interface the library implements, in NCCL's number format.
inline constexpr int kNcclVersion = 22809;

}  // namespace oriel
