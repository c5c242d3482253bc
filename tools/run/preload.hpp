// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "oriel/error.hpp"

namespace oriel::run {

/// Sets variables by which a program and its descendants call Oriel instead of NCCL. LD_PRELOAD
/// serves programs that leave the choice of library to the loader. LD_AUDIT serves programs that
/// open a libnccl.so.2 of their own by its path. Present values of the variables stay in front.
class Preload {
 public:
  /// Finds Oriel's libraries next to this program. Fails if a file is missing, or if a path has
  /// white space or a colon, which separate paths in LD_PRELOAD. If `report` is false, apply()
  /// requests no report.
  static Result<Preload> find(bool report);

  /// Sets the variables in this process, before exec(). If `first` and find()'s `report` are true,
  /// the program reports on standard error where its ncclAllReduce is; its children do not.
  void apply(bool first) const;

 private:
  std::vector<std::pair<std::string, std::string>> environment_;
  bool report_ = true;
};

/// Replaces this process with `command` by execvp(). Returns only on failure.
Error become_program(std::vector<std::string> command);

}  // namespace oriel::run
