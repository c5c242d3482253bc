// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <mutex>

#include "support/cuda/fake_cuda_state.hpp"

// Kernel launches, which run nothing, and the events that order them.
namespace oriel::test {
namespace {

using Lock = std::lock_guard<std::mutex>;

bool is_default(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/// Checks that work can go to `stream`. A default stream needs a current context. The caller holds
/// the mutex.
CUresult check_stream(CUstream stream) {
  if (fake->streams_status != CUDA_SUCCESS) return fake->streams_status;
  if (is_default(stream)) {
    return current_device() < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  }
  if (fake->streams.count(stream) == 0) {
    return fake->violate("a launch on a stream that does not exist", CUDA_ERROR_INVALID_HANDLE);
  }
  return CUDA_SUCCESS;
}

CUresult check_event(CUevent event) {
  if (fake->events.count(event) == 0) return fake->violate("an event that does not exist");
  return CUDA_SUCCESS;
}

/// Stricter than CUDA may be: some context has to be current.
CUresult launch_kernel_ex(const CUlaunchConfig* config, CUfunction kernel, void**, void**) {
  const Lock lock(fake->mutex);
  if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (kernel == nullptr) return fake->violate("a launch of no kernel");
  const bool is_sound = config->gridDimX > 0 && config->gridDimY == 1 && config->gridDimZ == 1 &&
                        config->blockDimX > 0 && config->blockDimY > 0 && config->blockDimZ == 1 &&
                        config->blockDimX * config->blockDimY <= 1024;
  if (!is_sound) return fake->violate("a launch of a grid that no GPU takes");
  const CUresult status = check_stream(config->hStream);
  if (status == CUDA_SUCCESS) ++fake->launches;
  return status;
}

CUresult event_record(CUevent event, CUstream stream) {
  const Lock lock(fake->mutex);
  const CUresult status = check_event(event);
  return status == CUDA_SUCCESS ? check_stream(stream) : status;
}

CUresult stream_wait_event(CUstream stream, CUevent event, unsigned) {
  return event_record(event, stream);
}

/// Reports every event as complete, because launches run nothing.
CUresult event_query(CUevent event) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuEventQuery")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return check_event(event);
}

CUresult stream_get_id(CUstream stream, unsigned long long* id) {
  const Lock lock(fake->mutex);
  *id = reinterpret_cast<std::uintptr_t>(stream);  // handles are never reused here
  return check_stream(stream);
}

/// Reports no capture: the model captures no stream of its own.
CUresult stream_get_capture_info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t*,
                                 CUgraph*, const CUgraphNode**, const CUgraphEdgeData**,
                                 std::size_t*) {
  const Lock lock(fake->mutex);
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return check_stream(stream);
}

}  // namespace

int FakeCuda::launches() const {
  const Lock lock(state_->mutex);
  return state_->launches;
}

void add_launches(CudaTable& table) {
  table.launch_kernel_ex = launch_kernel_ex;
  table.event_record = event_record;
  table.stream_wait_event = stream_wait_event;
  table.event_query = event_query;
  table.stream_get_id = stream_get_id;
  table.stream_get_capture_info = stream_get_capture_info;
}

}  // namespace oriel::test
