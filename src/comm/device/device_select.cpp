// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/settings.hpp"
#include "base/try.hpp"
#include "comm/device/device.hpp"

namespace oriel::comm {

Result<int> gpu_count() {
  ORIEL_TRY(const Settings* settings, process_settings());
  if (settings->backend == BackendChoice::host) return 0;
#if ORIEL_HAVE_CUDA
  auto count = cuda_device_count();
  if (count.ok()) return count;
  if (settings->backend == BackendChoice::automatic) return 0;
  return std::move(count).error().with_context("ORIEL_BACKEND is cuda");
#else
  if (settings->backend == BackendChoice::automatic) return 0;
  return Error(ErrorCode::invalid_usage,
               "ORIEL_BACKEND is cuda, but this library was built without CUDA")
      .with_hint("unset ORIEL_BACKEND, or build Oriel with -DORIEL_CUDA=ON");
#endif
}

Result<Device*> current_device() {
  ORIEL_TRY(const int gpus, gpu_count());
  if (gpus == 0) return &host_device();
#if ORIEL_HAVE_CUDA
  ORIEL_TRY(const int ordinal, current_cuda_ordinal());
  return cuda_device(ordinal);
#else
  return Error(ErrorCode::internal, "there are GPUs, but the library was built without CUDA");
#endif
}

Result<Device*> device_with_ordinal(int ordinal) {
  ORIEL_TRY(const int gpus, gpu_count());
  if (ordinal < 0 || ordinal >= gpus) {
    return Error(ErrorCode::invalid_argument, fmt::format("device {} of {} GPUs", ordinal, gpus))
        .with_hint(
            "pass a device below that number; CUDA_VISIBLE_DEVICES selects and numbers them");
  }
#if ORIEL_HAVE_CUDA
  return cuda_device(ordinal);
#else
  return Error(ErrorCode::internal, "there are GPUs, but the library was built without CUDA");
#endif
}

Result<Device*> device_of_allocation([[maybe_unused]] const void* pointer) {
#if ORIEL_HAVE_CUDA
  ORIEL_TRY(const int gpus, gpu_count());
  if (gpus > 0) {
    const int ordinal = cuda_ordinal_of(pointer);
    if (ordinal >= 0) return cuda_device(ordinal);
  }
#endif
  return &host_device();
}

}  // namespace oriel::comm
