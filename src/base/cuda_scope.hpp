// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "base/cuda_table.hpp"
#include "base/try.hpp"

namespace oriel {

/// The primary context of a device, which the CUDA runtime uses too; retained until destroyed.
/// Move-only.
class PrimaryContext {
 public:
  static Result<PrimaryContext> retain(CUdevice device) {
    CUcontext context = nullptr;
    ORIEL_CHECK(cuda_status("retaining the primary context",
                            cuda().device_primary_ctx_retain(&context, device)));
    return PrimaryContext(device, context);
  }
  PrimaryContext(PrimaryContext&& other) noexcept
      : device_(other.device_), context_(std::exchange(other.context_, nullptr)) {}
  PrimaryContext& operator=(PrimaryContext&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(context_, other.context_);
    return *this;
  }
  ~PrimaryContext() {
    if (context_ != nullptr) static_cast<void>(cuda().device_primary_ctx_release(device_));
  }

  CUdevice device() const { return device_; }
  CUcontext get() const { return context_; }

 private:
  PrimaryContext(CUdevice device, CUcontext context) : device_(device), context_(context) {}
  CUdevice device_;
  CUcontext context_;
};

/// While it lives, this thread's driver calls go to one context and do not disturb a stream capture
/// that any thread has begun in global mode. Both are as before when it is destroyed; must not
/// cross threads. Cheap: two calls that touch thread-local state only.
class CudaScope {
 public:
  /// `context` must outlive the scope.
  static Result<CudaScope> enter(CUcontext context) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ORIEL_CHECK(cuda_status("relaxing the capture mode of the thread",
                            cuda().thread_exchange_stream_capture_mode(&mode)));
    CudaScope scope(mode);
    ORIEL_CHECK(cuda_status("entering a CUDA context", cuda().ctx_push_current(context)));
    scope.pushed_ = true;
    return scope;
  }
  CudaScope(CudaScope&& other) noexcept
      : mode_(other.mode_),
        relaxed_(std::exchange(other.relaxed_, false)),
        pushed_(std::exchange(other.pushed_, false)) {}
  CudaScope& operator=(CudaScope&&) = delete;
  ~CudaScope() {
    CUcontext popped = nullptr;
    if (pushed_) static_cast<void>(cuda().ctx_pop_current(&popped));
    if (relaxed_) static_cast<void>(cuda().thread_exchange_stream_capture_mode(&mode_));
  }

 private:
  explicit CudaScope(CUstreamCaptureMode mode) : mode_(mode) {}
  CUstreamCaptureMode mode_;
  bool relaxed_ = true;
  bool pushed_ = false;
};

}  // namespace oriel
