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

/// While it lives, this thread's driver calls do not disturb a stream capture that any thread has
/// begun in global mode. The thread's mode is as before when it is destroyed; must not cross
/// threads. Touches thread-local state only.
class RelaxedCapture {
 public:
  static Result<RelaxedCapture> enter() {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ORIEL_CHECK(cuda_status("relaxing the capture mode of the thread",
                            cuda().thread_exchange_stream_capture_mode(&mode)));
    return RelaxedCapture(mode);
  }
  RelaxedCapture(RelaxedCapture&& other) noexcept
      : previous_(other.previous_), relaxed_(std::exchange(other.relaxed_, false)) {}
  RelaxedCapture& operator=(RelaxedCapture&&) = delete;
  ~RelaxedCapture() {
    if (relaxed_) static_cast<void>(cuda().thread_exchange_stream_capture_mode(&previous_));
  }

 private:
  explicit RelaxedCapture(CUstreamCaptureMode previous) : previous_(previous) {}
  CUstreamCaptureMode previous_;
  bool relaxed_ = true;
};

/// RelaxedCapture, and this thread's driver calls go to one context.
class CudaScope {
 public:
  /// `context` must outlive the scope.
  static Result<CudaScope> enter(CUcontext context) {
    ORIEL_TRY(RelaxedCapture relaxed, RelaxedCapture::enter());
    ORIEL_CHECK(cuda_status("entering a CUDA context", cuda().ctx_push_current(context)));
    return CudaScope(std::move(relaxed));
  }
  CudaScope(CudaScope&& other) noexcept
      : relaxed_(std::move(other.relaxed_)), pushed_(std::exchange(other.pushed_, false)) {}
  CudaScope& operator=(CudaScope&&) = delete;
  ~CudaScope() {
    CUcontext popped = nullptr;
    if (pushed_) static_cast<void>(cuda().ctx_pop_current(&popped));
  }

 private:
  explicit CudaScope(RelaxedCapture relaxed) : relaxed_(std::move(relaxed)) {}
  RelaxedCapture relaxed_;  // as before once the context has been left
  bool pushed_ = true;
};

}  // namespace oriel
