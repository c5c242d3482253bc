// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/cuda_scope.hpp"
#include "kernels/cuda/loaded_kernels.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/ranks.hpp"

namespace oriel::test {

/// Stands in for the CUDA runtime, which finds no kernels without a driver. A kernel's handle is
/// its symbol.
inline constexpr kernels::KernelLoader kModelKernels{
    .load = [](const void*) -> int { return 0; },
    .find = [](CUfunction* function, const void* kernel) -> int {
      *function = reinterpret_cast<CUfunction>(const_cast<void*>(kernel));
      return 0;
    }};

/// Returns the driver model in the process of one rank, with `device` current as after
/// cudaSetDevice. Never destroyed: threads of the library may outlive the rank's body.
inline FakeCuda& model_with_current_device(FakeCuda::Options options, int device) {
  static auto* const model = new FakeCuda(std::move(options));
  [[maybe_unused]] static auto* const loader = new kernels::ScopedKernelLoader(kModelKernels);
  const Status ready = cuda_ready();
  require(ready.ok(), ready.ok() ? "" : ready.error().to_string());
  auto context = PrimaryContext::retain(device);
  require(context.ok(), "no primary context");
  static auto* const retained = new PrimaryContext(std::move(context).value());
  require(cuda().ctx_push_current(retained->get()) == CUDA_SUCCESS, "cuCtxPushCurrent");
  return *model;
}

}  // namespace oriel::test
