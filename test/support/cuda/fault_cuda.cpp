// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/fault_cuda.hpp"

namespace oriel::test {
namespace {

thread_local FaultPlan* plan_of_thread = nullptr;
std::atomic<FaultPlan*> plan_of_process{nullptr};
const CudaTable* below = nullptr;  // where calls go on to

FaultPlan* current_plan() {
  return plan_of_thread != nullptr ? plan_of_thread : plan_of_process.load();
}

template <auto member, typename Function>
struct Hook;

template <auto member, typename... Args>
struct Hook<member, CUresult (*)(Args...)> {
  static inline const char* name = nullptr;
  static inline bool releases = false;

  static CUresult CUDAAPI call(Args... args) {
    FaultPlan* plan = current_plan();
    if (plan == nullptr || !plan->next(name)) return (below->*member)(args...);
    if (releases) static_cast<void>((below->*member)(args...));
    return static_cast<CUresult>(plan->status);
  }
};

/// Once it reports an earlier error nothing of the stream's runs any more.
CUresult CUDAAPI query(CUstream stream) {
  FaultPlan* plan = current_plan();
  if (plan == nullptr || !plan->next("stream_query")) return below->stream_query(stream);
  static_cast<void>(below->stream_synchronize(stream));
  return static_cast<CUresult>(plan->status);
}

/// Going back to the mode of before gives something up; relaxing it does not.
CUresult CUDAAPI exchange_mode(CUstreamCaptureMode* mode) {
  FaultPlan* plan = current_plan();
  if (plan == nullptr || !plan->next("thread_exchange_stream_capture_mode")) {
    return below->thread_exchange_stream_capture_mode(mode);
  }
  if (*mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    static_cast<void>(below->thread_exchange_stream_capture_mode(mode));
  }
  return static_cast<CUresult>(plan->status);
}

template <auto member, typename Function>
void hook(Function& entry, const char* name, bool releases = false) {
  using Hooked = Hook<member, Function>;
  Hooked::name = name;
  Hooked::releases = releases;
  entry = Hooked::call;
}

const CudaTable& hooks() {
  static const CudaTable table = [] {
    CudaTable made{};
#define ORIEL_DETAIL_HOOK(member, symbol, version) hook<&CudaTable::member>(made.member, #member);
    ORIEL_CUDA_CALLS(ORIEL_DETAIL_HOOK)
#undef ORIEL_DETAIL_HOOK
#define ORIEL_DETAIL_RELEASE(member) hook<&CudaTable::member>(made.member, #member, true)
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
    // Once it reports an earlier error nothing of the stream's runs any more.
    ORIEL_DETAIL_RELEASE(stream_synchronize);
#undef ORIEL_DETAIL_RELEASE
    made.thread_exchange_stream_capture_mode = exchange_mode;
    made.stream_query = query;
    // What an error message needs is no call of the work.
    made.get_error_name = [](CUresult status, const char** out) {
      return below->get_error_name(status, out);
    };
    made.get_error_string = [](CUresult status, const char** out) {
      return below->get_error_string(status, out);
    };
    return made;
  }();
  return table;
}

const CudaTable& hooks_over_current() {
  below = &cuda();
  return hooks();
}

}  // namespace

CudaFaultHooks::CudaFaultHooks() : scoped_(hooks_over_current()) {}

CudaFaultHooks::~CudaFaultHooks() = default;

ScopedCudaFaults::ScopedCudaFaults(FaultPlan& plan, Reach reach) : reach_(reach) {
  if (reach_ == Reach::thread) {
    plan_of_thread = &plan;
  } else {
    plan_of_process = &plan;
  }
}

ScopedCudaFaults::~ScopedCudaFaults() {
  if (reach_ == Reach::thread) {
    plan_of_thread = nullptr;
  } else {
    plan_of_process = nullptr;
  }
}

}  // namespace oriel::test
