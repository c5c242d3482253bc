// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/fault_cuda.hpp"

#include "support/call_hook.hpp"

namespace oriel::test {
namespace {

const CudaTable* table_below = nullptr;  // table that calls are passed on to

struct CudaCalls {
  static const CudaTable& below() { return *table_below; }
  template <typename Return>
  static Return fail(int status) {
    return static_cast<Return>(status);
  }
};

/// Finishes the stream's work before it fails: once cuStreamQuery reports an earlier error, nothing
/// of the stream runs any more.
CUresult CUDAAPI query(CUstream stream) {
  const auto status = Plans<CudaCalls>::failure_of("stream_query");
  if (!status) return table_below->stream_query(stream);
  static_cast<void>(table_below->stream_synchronize(stream));
  return static_cast<CUresult>(*status);
}

/// Restores an earlier mode even if it fails, because restoring is a release. Does not set relaxed
/// mode if it fails.
CUresult CUDAAPI exchange_mode(CUstreamCaptureMode* mode) {
  const auto status = Plans<CudaCalls>::failure_of("thread_exchange_stream_capture_mode");
  if (!status) return table_below->thread_exchange_stream_capture_mode(mode);
  if (*mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    static_cast<void>(table_below->thread_exchange_stream_capture_mode(mode));
  }
  return static_cast<CUresult>(*status);
}

const CudaTable& hooks() {
  static const CudaTable table = [] {
    CudaTable made{};
#define ORIEL_DETAIL_HOOK(member, symbol, version) \
  hook<CudaCalls, &CudaTable::member>(made.member, #member);
    ORIEL_CUDA_CALLS(ORIEL_DETAIL_HOOK)
#undef ORIEL_DETAIL_HOOK
#define ORIEL_DETAIL_RELEASE(member) hook<CudaCalls, &CudaTable::member>(made.member, #member, true)
    ORIEL_DETAIL_RELEASE(device_primary_ctx_release);
    ORIEL_DETAIL_RELEASE(ctx_pop_current);
    ORIEL_DETAIL_RELEASE(mem_release);
    ORIEL_DETAIL_RELEASE(mem_address_free);
    ORIEL_DETAIL_RELEASE(mem_unmap);
    ORIEL_DETAIL_RELEASE(mem_free);
    ORIEL_DETAIL_RELEASE(mem_free_host);
    ORIEL_DETAIL_RELEASE(mem_host_unregister);
    ORIEL_DETAIL_RELEASE(stream_destroy);
    ORIEL_DETAIL_RELEASE(event_destroy);
    ORIEL_DETAIL_RELEASE(graph_destroy);
    // Finishes the work before it fails: once an earlier error is reported, nothing of the stream
    // runs.
    ORIEL_DETAIL_RELEASE(stream_synchronize);
#undef ORIEL_DETAIL_RELEASE
    made.thread_exchange_stream_capture_mode = exchange_mode;
    made.stream_query = query;
    // Excludes the calls that only serve an error message.
    made.get_error_name = [](CUresult status, const char** out) {
      return table_below->get_error_name(status, out);
    };
    made.get_error_string = [](CUresult status, const char** out) {
      return table_below->get_error_string(status, out);
    };
    return made;
  }();
  return table;
}

const CudaTable& hooks_over_current() {
  table_below = &cuda();
  return hooks();
}

}  // namespace

CudaFaultHooks::CudaFaultHooks() : scoped_(hooks_over_current()) {}

CudaFaultHooks::~CudaFaultHooks() = default;

ScopedCudaFaults::ScopedCudaFaults(FaultPlan& plan, Reach reach) : reach_(reach) {
  Plans<CudaCalls>::begin(plan, reach_);
}

ScopedCudaFaults::~ScopedCudaFaults() {
  Plans<CudaCalls>::end(reach_);
}

}  // namespace oriel::test
