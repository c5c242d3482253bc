// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>

#include "base/cuda_table.hpp"
#include "base/try.hpp"

namespace oriel {

/// Retains the primary context of a device, which the CUDA runtime shares, until destroyed.
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

/// Puts this thread into relaxed capture mode while alive. Its driver calls then do not disturb a
/// stream capture that any thread has started in global mode. The destructor restores the previous
/// mode. Must not cross threads. Changes thread-local state only.
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

/// RelaxedCapture that also makes one context current in this thread.
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
  RelaxedCapture relaxed_;  // restored after the context is popped
  bool pushed_ = true;
};

/// Makes the driver calls of one launch on a stream. A CudaScope costs four driver calls, so it is
/// entered only if a call needs one:
/// - cuStreamGetCaptureInfo, cuStreamGetId, cuStreamWaitEvent, cuEventRecord and cuLaunchKernelEx
///   take the context from the stream. A default stream belongs to the current context, so the
///   scope is entered at once.
/// - These calls enqueue on the stream or query it. None is potentially unsafe as defined by
///   cuThreadExchangeStreamCaptureMode: unsafe calls are not ordered by a stream, like cuMemAlloc.
///   A launch would be unsafe if it loaded its kernel; kernels::LoadedKernels has loaded it.
/// - NVIDIA does not document whether these calls need a current context. If a call is refused for
///   lack of one, it is retried inside a scope. Outside captures, the refusal has no effect.
/// Must not cross threads.
class StreamScope {
 public:
  /// `context` is the context of `stream` and must outlive the scope.
  static Result<StreamScope> enter(CUcontext context, CUstream stream) {
    StreamScope entered(context, stream);
    const bool is_default =
        stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    if (is_default) ORIEL_CHECK(entered.enter_scope());
    return entered;
  }

  CUcontext context() const { return context_; }
  CUstream stream() const { return stream_; }

  /// Makes a driver call such as those above; retries it inside a scope if it lacked a context.
  template <class Call>
  CUresult call(const Call& call) {
    const CUresult status = call();
    const bool may_lack_context =
        status == CUDA_ERROR_INVALID_CONTEXT || status == CUDA_ERROR_INVALID_HANDLE;
    if (!may_lack_context || scope_ || !enter_scope().ok()) return status;
    return call();
  }
  /// Makes the context current if it is not. Meant for captures, which a refused call may
  /// invalidate.
  Status make_current() {
    if (scope_) return {};
    CUcontext current = nullptr;
    ORIEL_CHECK(cuda_status("asking for the current context", cuda().ctx_get_current(&current)));
    return current == context_ ? Status() : enter_scope();
  }

 private:
  StreamScope(CUcontext context, CUstream stream) : context_(context), stream_(stream) {}
  Status enter_scope() {
    ORIEL_TRY(auto scope, CudaScope::enter(context_));
    scope_.emplace(std::move(scope));
    return {};
  }
  CUcontext context_;
  CUstream stream_;
  std::optional<CudaScope> scope_;
};

}  // namespace oriel
