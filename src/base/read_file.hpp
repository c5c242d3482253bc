// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "oriel/error.hpp"

namespace oriel {

struct ReadLimits {
  std::size_t bytes = std::size_t{16} << 20;
  /// How long a pipe or a terminal is waited for, in all.
  std::chrono::milliseconds patience{5000};
  /// Whether a pipe with a name is waited for that nobody has opened to write; else it is empty.
  bool await_writer = false;
};

/// The text of a file of at most `limits.bytes`. Larger ones are refused, with the line in which
/// the last byte stands that may be: no more is read of them, and nothing kept. What has no size (a
/// pipe, a terminal, /dev/zero) is refused once it has given more, or has not ended within the
/// patience. Blocks no longer than that.
Result<std::string> read_file(const std::string& path, const ReadLimits& limits);

}  // namespace oriel
