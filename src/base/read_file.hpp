// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "oriel/error.hpp"

namespace oriel {

/// Treatment of a named pipe that no process has open for writing.
enum class NoWriter { means_empty, is_refused, is_awaited };

struct ReadLimits {
  std::size_t bytes = std::size_t{16} << 20;
  /// Total time to wait for a pipe or a terminal.
  std::chrono::milliseconds timeout{5000};
  NoWriter no_writer = NoWriter::means_empty;
};

/// Returns the text of a file of at most `limits.bytes` bytes. A larger file is refused; the error
/// names the line that holds the first byte too many. A pipe or a device has no known size. It is
/// refused once it exceeds the limit, or if it has not ended within the timeout. Blocks for the
/// timeout at most.
Result<std::string> read_file(const std::string& path, const ReadLimits& limits);

}  // namespace oriel
