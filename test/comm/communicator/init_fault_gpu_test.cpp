// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <catch2/catch.hpp>

#include "comm/communicator/init_fault_cuda.hpp"
#include "comm/support/fault_outcome.hpp"
#include "support/cuda/gpu_count.hpp"
#include "support/cuda/needs_gpu.hpp"
#include "support/seed.hpp"

// Runs the walk of init_fault_cuda_test.cpp on the real driver. The test process never initialises
// CUDA, because its forked ranks could not use CUDA then.
namespace oriel::test {
namespace {

const int kGpus = gpus_or_skip(driver_gpus);

DriverWalk walk_on_gpus(LaunchMode launch_mode, long stride) {
  DriverWalk walk{false, std::min(kGpus, 3), launch_mode, number_from("ORIEL_TEST_STRIDE", stride),
                  static_cast<long>(test_seed())};
  WARN(describe(walk) << ", ORIEL_TEST_STRIDE=" << walk.stride);
  return walk;
}

}  // namespace

TEST_CASE("any failed driver call of a first communicator on GPUs has one outcome on all ranks",
          "[req:1.41]") {
  // Ranks that share a GPU take longer, and test nothing more.
  const long share = kGpus > 1 ? 1 : 6;
  walk_driver_calls(walk_on_gpus(LaunchMode::threads, 17 * share));
  walk_driver_calls(walk_on_gpus(LaunchMode::processes, 41 * share));
}

}  // namespace oriel::test
