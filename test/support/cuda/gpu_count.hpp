// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>

#include <unistd.h>

#include "support/in_child.hpp"

namespace oriel::test {

/// Returns the number of GPUs, which `ask` counts in a forked child. A test that forks ranks must
/// not initialise CUDA itself, because its children could not use CUDA then. Without a GPU, ends
/// the program as skipped (status 77).
template <class Ask>
int gpus_or_skip(const Ask& ask) {
  const int found = status_of_child([&] { return std::clamp(ask(), 0, 100); });
  if (found <= 0) {
    std::printf("skipped: needs a GPU\n");
    std::fflush(stdout);
    ::_exit(77);
  }
  return found;
}

}  // namespace oriel::test
