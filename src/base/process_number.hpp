// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace oriel {

/// A random number, never 0, that tells this process from every other one: drawn at the first call,
/// and drawn anew in a child that was forked since. Thread-safe.
std::uint64_t process_number();

}  // namespace oriel
