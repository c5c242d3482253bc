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

/// Standard output and error of the ranks, line by line with the rank in front: "[2] hello". A line
/// is written at once, so that lines of several ranks never mix. Lines longer than 64 KiB are cut.
class TaggedOutput {
 public:
  /// The ends that a new rank shall write to.
  struct Ends {
    OwnedFd out;
    OwnedFd err;
  };
  Result<Ends> add(int rank);

  /// Appends what poll() shall watch.
  void watch(std::vector<pollfd>& fds) const;
  /// Copies what has arrived, without waiting.
  void pump();
  /// Writes lines that were never ended.
  void flush();
  bool open() const { return !pipes_.empty(); }

 private:
  struct Pipe {
    int rank;
    int target;  // 1 or 2
    OwnedFd source;
    std::string line;
  };
  static bool drain(Pipe& pipe);
  static void write_line(const Pipe& pipe, std::string_view line);

  std::vector<Pipe> pipes_;
};

}  // namespace oriel::run
