// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/bytes.hpp"

namespace oriel {

inline ByteView view(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}

/// Aborts on a finding; libFuzzer keeps the input of a process that aborts.
inline void expect(bool condition) {
  if (!condition) std::abort();
}

}  // namespace oriel
