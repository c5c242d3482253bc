// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <poll.h>

#include "oriel/error.hpp"

#include "base/fd.hpp"

namespace oriel::run {

/// Copies standard output and error of the ranks line by line, with the rank in front: "[2] hello".
/// Writes only whole lines, so that lines of several ranks never mix. Splits lines longer than 64
/// KiB.
class TaggedOutput {
 public:
  /// Write ends of the pipes of a new rank.
  struct Ends {
    OwnedFd out;
    OwnedFd err;
  };
  Result<Ends> add(int rank);

  /// Appends the read ends for poll().
  void watch(std::vector<pollfd>& fds) const;
  /// Copies the lines that have arrived, without waiting.
  void pump();
  /// Writes the unfinished lines and closes all pipes.
  void flush();
  bool open() const { return !pipes_.empty(); }

 private:
  struct Pipe {
    int rank;
    int target;  // STDOUT_FILENO or STDERR_FILENO
    OwnedFd source;
    std::string line;
  };
  static bool drain(Pipe& pipe);
  static void write_line(const Pipe& pipe, std::string_view line);

  std::vector<Pipe> pipes_;
};

}  // namespace oriel::run
