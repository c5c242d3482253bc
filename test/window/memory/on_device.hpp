// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "base/cuda_scope.hpp"
#include "base/cuda_table.hpp"
#include "base/try.hpp"

namespace oriel::window {

/// A stream and the device's primary context, which is current for the object's lifetime.
class OnDevice {
 public:
  static Result<std::unique_ptr<OnDevice>> enter(int device) {
    ORIEL_TRY(PrimaryContext context, PrimaryContext::retain(device));
    ORIEL_TRY(CudaScope scope, CudaScope::enter(context.get()));
    auto made = std::unique_ptr<OnDevice>(new OnDevice(std::move(context), std::move(scope)));
    ORIEL_CHECK(cuda_status("making a stream",
                            cuda().stream_create(&made->stream_, CU_STREAM_NON_BLOCKING)));
    return made;
  }
  ~OnDevice() { static_cast<void>(cuda().stream_destroy(stream_)); }

  Status fill(std::byte* at, unsigned value, std::size_t bytes) {
    ORIEL_CHECK(
        cuda_status("filling", cuda().memset_d32_async(address(at), value, bytes / 4, stream_)));
    return cuda_status("filling", cuda().stream_synchronize(stream_));
  }
  Result<unsigned> word(const std::byte* at) {
    unsigned value = 0;
    ORIEL_CHECK(
        cuda_status("reading", cuda().memcpy_d_to_h_async(&value, address(at), 4, stream_)));
    ORIEL_CHECK(cuda_status("reading", cuda().stream_synchronize(stream_)));
    return value;
  }

 private:
  OnDevice(PrimaryContext context, CudaScope scope)
      : context_(std::move(context)), scope_(std::move(scope)) {}
  static CUdeviceptr address(const std::byte* at) { return reinterpret_cast<CUdeviceptr>(at); }
  PrimaryContext context_;
  CudaScope scope_;
  CUstream stream_ = nullptr;
};

}  // namespace oriel::window
