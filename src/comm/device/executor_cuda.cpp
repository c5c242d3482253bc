// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/executor_cuda.hpp"

#include <thread>

#include "base/cuda_scope.hpp"
#include "base/try.hpp"
#include "kernels/cuda/launch_cuda.hpp"

namespace oriel::comm {

Result<std::unique_ptr<Executor>> CudaExecutor::make(CUcontext context) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context));
  CUevent event = nullptr;
  ORIEL_CHECK(
      cuda_status("creating an event", cuda().event_create(&event, CU_EVENT_DISABLE_TIMING)));
  return std::unique_ptr<Executor>(new CudaExecutor(context, event));
}

CudaExecutor::~CudaExecutor() {
  // Tried even if the context cannot be entered: the event knows its own.
  const auto scope = CudaScope::enter(context_);
  static_cast<void>(cuda().event_destroy(event_));
}

Status CudaExecutor::check_stream(void* /*stream*/) {
  return {};
}

Status CudaExecutor::prepare(const kernels::Plan& plan,
                             const kernels::AllReduceArguments& arguments) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  return kernels::load_all_reduce(plan, arguments);
}

Status CudaExecutor::follow_last_call(CUstream stream, unsigned long long number) {
  if (!last_stream_ || *last_stream_ == number) return {};
  return cuda_status("waiting for the last call on another stream",
                     cuda().stream_wait_event(stream, event_, CU_EVENT_WAIT_DEFAULT));
}

Status CudaExecutor::follow_captured_call(CUstream stream, unsigned long long capture) {
  if (capture != capture_ || captured_stream_ == stream || captured_nodes_.empty()) return {};
  return cuda_status("ordering calls inside a capture",
                     cuda().stream_update_capture_dependencies(stream, captured_nodes_.data(),
                                                               nullptr, captured_nodes_.size(),
                                                               CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
}

Status CudaExecutor::remember_captured_call(CUstream stream, unsigned long long capture) {
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  ORIEL_CHECK(cuda_status(
      "asking for a capture's nodes",
      cuda().stream_get_capture_info(stream, &status, &id, nullptr, &nodes, &edges, &count)));
  capture_ = capture;
  captured_stream_ = stream;
  captured_nodes_.assign(nodes, nodes + count);
  return {};
}

Status CudaExecutor::prepare_hierarchy(const kernels::HierarchyArguments& arguments) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  return kernels::load_hierarchy(arguments);
}

Status CudaExecutor::run(const kernels::Plan& plan, const kernels::AllReduceArguments& arguments,
                         void* stream) {
  return run_in_order(static_cast<CUstream>(stream), [&](CUstream where) {
    return kernels::launch_all_reduce(plan, arguments, where);
  });
}

Status CudaExecutor::run_hierarchy(const kernels::HierarchyArguments& arguments, void* stream) {
  return run_in_order(static_cast<CUstream>(stream),
                      [&](CUstream where) { return kernels::launch_hierarchy(arguments, where); });
}

template <class Launch>
Status CudaExecutor::run_in_order(CUstream stream, const Launch& launch) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  CUstreamCaptureStatus status{};
  cuuint64_t capture = 0;
  ORIEL_CHECK(cuda_status("asking whether the stream is captured",
                          cuda().stream_get_capture_info(stream, &status, &capture, nullptr,
                                                         nullptr, nullptr, nullptr)));
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
    return Error(ErrorCode::invalid_usage, "the stream's capture has been invalidated");
  }
  if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    ORIEL_CHECK(follow_captured_call(stream, capture));
    ORIEL_CHECK(launch(stream));
    return remember_captured_call(stream, capture);
  }
  unsigned long long number = 0;
  ORIEL_CHECK(cuda_status("asking for the stream's number", cuda().stream_get_id(stream, &number)));
  ORIEL_CHECK(follow_last_call(stream, number));
  ORIEL_CHECK(launch(stream));
  // Now, for later the user may have begun to capture the stream, or destroyed it: the driver
  // (580.159) crashes when it is asked anything about a destroyed stream.
  last_stream_ = number;
  return cuda_status("recording the end of the call", cuda().event_record(event_, stream));
}

Status CudaExecutor::drain(Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (!last_stream_) return {};
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  for (;;) {
    const CUresult status = cuda().event_query(event_);
    if (status == CUDA_SUCCESS) return {};
    if (status != CUDA_ERROR_NOT_READY) return cuda_error("waiting for the last call", status);
    if (deadline.expired(SteadyClock::instance().now())) {
      return Error(ErrorCode::timeout, "the last call has not ended by the deadline");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace oriel::comm
