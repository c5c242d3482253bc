// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "oriel/error.hpp"

namespace oriel {

/// What a pipe with a name is that nobody has opened to write.
enum class NoWriter { means_empty, is_refused, is_awaited };

struct ReadLimits {
  std::size_t bytes = std::size_t{16} << 20;
  /// How long a pipe or a terminal is waited for, in all.
  std::chrono::milliseconds patience{5000};
  NoWriter no_writer = NoWriter::means_empty;
};

/// The text of a file of at most `limits.bytes`. Larger ones are refused, with the line in which
/// the last byte stands that may be: no more is read of them, and nothing kept. What has no size (a
/// pipe, a terminal, /dev/zero) is refused once it has given more, or has not ended within the
/// patience. Blocks no longer than that.
Result<std::string> read_file(const std::string& path, const ReadLimits& limits);

}  // namespace oriel
