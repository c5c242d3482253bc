// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loaded_kernels.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/cuda_scope.hpp"
#include "base/try.hpp"

namespace oriel::kernels {
namespace {

constexpr KernelLoader kRuntime{.load = [](const void* kernel) -> int {
                                  cudaFuncAttributes attributes{};
                                  return cudaFuncGetAttributes(&attributes, kernel);
                                },
                                .find = [](CUfunction* function, const void* kernel) -> int {
                                  return cudaGetFuncBySymbol(function, kernel);
                                }};

std::atomic<const KernelLoader*> kernel_loader{&kRuntime};

Status runtime_status(int status) {
  if (status == cudaSuccess) return {};
  return Error(ErrorCode::cuda, fmt::format("loading a kernel failed: {}",
                                            cudaGetErrorString(static_cast<cudaError_t>(status))))
      .with_native(NativeDomain::cuda_runtime, status);
}

}  // namespace

ScopedKernelLoader::ScopedKernelLoader(const KernelLoader& loader)
    : previous_(kernel_loader.exchange(&loader, std::memory_order_acq_rel)) {}

ScopedKernelLoader::~ScopedKernelLoader() {
  kernel_loader.store(previous_, std::memory_order_release);
}

Result<CUfunction> LoadedKernels::load(KernelEntry kernel) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  const KernelLoader& loader = *kernel_loader.load(std::memory_order_acquire);
  // The `find` call is not documented to load the kernel that it finds.
  ORIEL_CHECK(runtime_status(loader.load(kernel.symbol)));
  CUfunction function = nullptr;
  ORIEL_CHECK(runtime_status(loader.find(&function, kernel.symbol)));
  functions_[kernel.number].store(function, std::memory_order_release);
  return function;
}

}  // namespace oriel::kernels
