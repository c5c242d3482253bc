// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace oriel::boot {

/// One value that must be the same on every rank, for Group::agree.
struct AgreedField {
  std::string name;         ///< for the error, as in "the number of windows"
  std::uint64_t value = 0;  ///< the value itself, or a hash of it
  /// The words for a value, for the error; the number if null. Gets other ranks' values too, which
  /// may be anything.
  std::string (*text)(std::uint64_t value) = nullptr;
};

}  // namespace oriel::boot
