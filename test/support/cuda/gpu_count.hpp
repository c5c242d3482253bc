// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>

#include <unistd.h>

#include "support/in_child.hpp"

namespace oriel::test {

/// What `ask` says in a child is the number of GPUs: a test that forks ranks never initialises CUDA
/// itself, because they could not use it then. Where there is none the program ends as skipped.
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
