// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "support/cuda/fault_cuda.hpp"
#include "window/mapping/map_set.hpp"
#include "window/memory/model_memory.hpp"

namespace oriel::window {

TEST_CASE("GPU: after a failure at the k-th call the allocations before it are mapped", "[H5]") {
  ModelMemory model;
  const test::CudaFaultHooks hooks;
  check_each_failed_call<test::ScopedCudaFaults>(model.memory(), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("GPU: mapping again what is mapped makes no call of the driver", "[H7]") {
  ModelMemory model;
  const test::CudaFaultHooks hooks;
  check_mapped_again<test::ScopedCudaFaults>(model.memory());
}

}  // namespace oriel::window
