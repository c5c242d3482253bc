// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/ranks.hpp"

/// Makes each driver call of a rank from init to destroy fail, on the model of the CUDA driver or
/// on GPUs. After each failure, all ranks must have returned the same error naming that rank, or
/// none. Driver objects and file descriptors must be freed. The calling threads must have their
/// former context and capture mode.
namespace oriel::test {

struct DriverWalk {
  bool on_model = true;
  int devices = 1;  ///< rank r uses device r % devices
  LaunchMode launch_mode = LaunchMode::threads;
  long stride = 1;
  long seed = 0;  ///< selects the error of each call, and the first call of a stride
};

/// Returns a one-line description for messages.
std::string describe(const DriverWalk& walk);

/// Makes each driver call of a communicator fail, each time in new processes, so that all one-time
/// work is repeated. Checks with Catch2. Must run in a process that never initialises CUDA.
void walk_driver_calls(const DriverWalk& walk);

}  // namespace oriel::test
