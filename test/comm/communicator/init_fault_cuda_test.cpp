// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/init_fault_cuda.hpp"

#include <catch2/catch.hpp>

#include "comm/support/fault_outcome.hpp"
#include "support/seed.hpp"

// Runs on the model of the CUDA driver: one or two devices, without a GPU.
namespace oriel::test {

TEST_CASE("any failed driver call of a process's first communicator has one outcome on all ranks",
          "[req:1.41]") {
  const long stride = number_from("ORIEL_TEST_STRIDE", 1);
  const auto seed = static_cast<long>(test_seed());
  for (const LaunchMode launch_mode : {LaunchMode::threads, LaunchMode::processes}) {
    for (const int devices : {1, 2}) walk_driver_calls({true, devices, launch_mode, stride, seed});
  }
}

}  // namespace oriel::test
