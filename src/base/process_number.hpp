// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace oriel {

/// Returns a random number, never 0, that identifies this process. Drawn at the first call, and
/// again at the first call in a forked child. Thread-safe.
std::uint64_t process_number();

}  // namespace oriel
