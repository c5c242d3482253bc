// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

#include "base/cuda_table.hpp"

namespace oriel::test {

/// Ends the program with status 77, which ctest counts as skipped, unless the machine has `wanted`
/// GPUs; prints why. For a static object of the program, so that it runs before Catch's main.
inline bool need_gpus(int wanted) {
  int found = 0;
  const Status ready = cuda_ready();
  if (ready.ok() && cuda().device_get_count(&found) == CUDA_SUCCESS && found >= wanted) return true;
  std::printf("skipped: needs %d GPU(s), found %d%s%s\n", wanted, found, ready.ok() ? "" : ": ",
              ready.ok() ? "" : ready.error().message().c_str());
  std::fflush(stdout);
  std::_Exit(77);
}

}  // namespace oriel::test
