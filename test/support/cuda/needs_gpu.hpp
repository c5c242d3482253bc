// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>

#include <unistd.h>

#include "base/cuda_table.hpp"

namespace oriel::test {

/// Returns the number of GPUs that the driver finds; initialises CUDA in this process.
inline int driver_gpus() {
  int found = 0;
  return cuda_ready().ok() && cuda().device_get_count(&found) == CUDA_SUCCESS ? found : 0;
}

/// Ends the test program with status 77 (skipped) and a reason on a machine with fewer than `gpus`
/// GPUs. Meant as a static object: a program none of whose GPU tests can run has nothing to report.
struct NeedsGpu {
  explicit NeedsGpu(int gpus = 1) {
    const Status ready = cuda_ready();
    int found = 0;
    if (ready.ok()) static_cast<void>(cuda().device_get_count(&found));
    if (found >= gpus) return;
    std::printf("skipped: needs %d GPU(s), found %d%s%s\n", gpus, found, ready.ok() ? "" : ": ",
                ready.ok() ? "" : ready.error().to_string().c_str());
    std::fflush(stdout);
    _exit(77);
  }
};

}  // namespace oriel::test
