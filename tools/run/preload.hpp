// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "oriel/error.hpp"

namespace oriel::run {

/// Variables that have a program and all its descendants call Oriel where they call NCCL:
/// LD_PRELOAD for those that leave the choice to the loader, LD_AUDIT for those that open a
/// libnccl.so.2 of their own by its path. What the variables hold already stays in front.
class Preload {
 public:
  /// Fails if Oriel's files are not beside this program, or their path cannot stand in LD_PRELOAD.
  /// Without `report` the program does not say where its ncclAllReduce is.
  static Result<Preload> find(bool report);

  /// Sets the variables for what this process becomes. If `first`, the process says on standard
  /// error where its ncclAllReduce is; its children do not.
  void apply(bool first) const;

 private:
  std::vector<std::pair<std::string, std::string>> environment_;
  bool report_ = true;
};

/// Becomes `command`. Returns only if that fails.
Error become_program(std::vector<std::string> command);

}  // namespace oriel::run
