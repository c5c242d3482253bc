// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/ranks.hpp"

/// Walks through every driver call that a rank makes from init to destroy and has it fail, on the
/// model of the CUDA driver or on GPUs. Checked after each: all ranks returned the same error
/// naming that rank, or none did; every object of the driver and every file descriptor was given
/// back; the calling threads have the context and the capture mode of before.
namespace oriel::test {

struct DriverWalk {
  bool on_model = true;
  int devices = 1;  ///< rank r lives on device r % devices
  Cast cast = Cast::threads;
  long stride = 1;
  long seed = 0;  ///< picks the error of each call, and where strides begin
};

/// One line for messages.
std::string describe(const DriverWalk& walk);

/// Has each driver call of a communicator fail, each in fresh processes, in which everything is
/// done for the first time. Checks with Catch2; must be called in a process that never initialises
/// CUDA.
void walk_driver_calls(const DriverWalk& walk);

}  // namespace oriel::test
