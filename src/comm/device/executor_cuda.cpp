// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/executor_cuda.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "base/cuda_scope.hpp"
#include "base/try.hpp"
#include "kernels/cuda/launch_cuda.hpp"

namespace oriel::comm {

/// The event behind the last call, which other communicators may wait for.
class CudaExecutor::LastCall final : public CtaBudget::Member {
 public:
  LastCall(const CtaBudget::Facts& facts, CUevent event) : Member(facts), event_(event) {}
  ~LastCall() override { static_cast<void>(cuda().event_destroy(event_)); }
  LastCall(const LastCall&) = delete;
  LastCall& operator=(const LastCall&) = delete;

  bool has_ended() const override { return cuda().event_query(event_) == CUDA_SUCCESS; }
  CUevent event() const { return event_; }

 private:
  CUevent event_;
};

Result<std::unique_ptr<Executor>> CudaExecutor::make(CUcontext context, CtaBudget& budget,
                                                     const CtaBudget::Facts& facts) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context));
  CUevent event = nullptr;
  ORIEL_CHECK(
      cuda_status("creating an event", cuda().event_create(&event, CU_EVENT_DISABLE_TIMING)));
  auto last_call = std::make_shared<const LastCall>(facts, event);
  CUevent joint = nullptr;
  ORIEL_CHECK(
      cuda_status("creating an event", cuda().event_create(&joint, CU_EVENT_DISABLE_TIMING)));
  return std::unique_ptr<Executor>(new CudaExecutor(context, joint, budget, std::move(last_call)));
}

CudaExecutor::CudaExecutor(CUcontext context, CUevent joint, CtaBudget& budget,
                           std::shared_ptr<const LastCall> last_call)
    : context_(context),
      joint_(joint),
      budget_(budget),
      last_call_(std::move(last_call)),
      event_(last_call_->event()) {
  budget_.join(last_call_);
}

CudaExecutor::~CudaExecutor() {
  // Tried even if the context cannot be entered: the events know their own.
  const auto scope = CudaScope::enter(context_);
  budget_.leave(last_call_);
  static_cast<void>(cuda().event_destroy(joint_));
  last_call_.reset();
}

Status CudaExecutor::check_stream(void* /*stream*/) {
  return {};
}

namespace {

/// Which capture a stream is in; empty for none.
Result<std::optional<cuuint64_t>> capture_of(CUstream stream) {
  CUstreamCaptureStatus status{};
  cuuint64_t capture = 0;
  ORIEL_CHECK(cuda_status("asking whether the stream is captured",
                          cuda().stream_get_capture_info(stream, &status, &capture, nullptr,
                                                         nullptr, nullptr, nullptr)));
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
    return Error(ErrorCode::invalid_usage, "the stream's capture has been invalidated");
  }
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return std::optional<cuuint64_t>();
  return std::optional<cuuint64_t>(capture);
}

/// The nodes that the next one of a captured stream would follow.
Result<std::vector<CUgraphNode>> nodes_of(CUstream stream) {
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  ORIEL_CHECK(cuda_status(
      "asking for a capture's nodes",
      cuda().stream_get_capture_info(stream, &status, &id, nullptr, &nodes, &edges, &count)));
  return std::vector<CUgraphNode>(nodes, nodes + count);
}

Status add_dependencies(CUstream stream, std::vector<CUgraphNode>& nodes) {
  if (nodes.empty()) return {};
  return cuda_status(
      "ordering calls inside a capture",
      cuda().stream_update_capture_dependencies(stream, nodes.data(), nullptr, nodes.size(),
                                                CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
}

}  // namespace

Status CudaExecutor::check_joined(const std::vector<void*>& streams) {
  if (streams.size() < 2) return {};
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  ORIEL_TRY(const auto first, capture_of(static_cast<CUstream>(streams.front())));
  for (void* const stream : streams) {
    ORIEL_TRY(const auto capture, capture_of(static_cast<CUstream>(stream)));
    if (capture == first) continue;
    const bool is_mixed = capture.has_value() != first.has_value();
    return Error(ErrorCode::invalid_usage,
                 is_mixed
                     ? "of the streams that a group names for a communicator some are captured "
                       "and some are not"
                     : "the streams that a group names for a communicator are in different "
                       "captures")
        .with_hint("use one stream, or have all of them take part in one capture");
  }
  return {};
}

Status CudaExecutor::prepare(const kernels::Plan& plan,
                             const kernels::AllReduceArguments& arguments) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  return kernels::load_all_reduce(plan, arguments);
}

Status CudaExecutor::follow_last_call(CUstream stream) {
  return cuda_status("waiting for the last call on another stream",
                     cuda().stream_wait_event(stream, event_, CU_EVENT_WAIT_DEFAULT));
}

Status CudaExecutor::follow_others(CUstream stream, const CtaBudget::Turn& turn) const {
  for (const CtaBudget::MemberRef& other : turn.waits()) {
    const CUevent event = static_cast<const LastCall&>(*other).event();
    ORIEL_CHECK(cuda_status("waiting for another communicator's call",
                            cuda().stream_wait_event(stream, event, CU_EVENT_WAIT_DEFAULT)));
  }
  return {};
}

Status CudaExecutor::follow_captured_call(CUstream stream, unsigned long long capture) {
  if (capture != capture_ || captured_stream_ == stream) return {};
  return add_dependencies(stream, captured_nodes_);
}

Status CudaExecutor::count_graph(CUstream stream) {
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  ORIEL_CHECK(cuda_status(
      "asking for a capture's graph",
      cuda().stream_get_capture_info(stream, &status, &id, &graph, nullptr, nullptr, nullptr)));
  // The driver may call it on any thread, and after the executor has gone.
  using Count = std::shared_ptr<std::atomic<int>>;
  const auto uncount = [](void* counted) {
    const std::unique_ptr<Count> count(static_cast<Count*>(counted));
    (*count)->fetch_sub(1, std::memory_order_release);
  };
  auto count = std::make_unique<Count>(graphs_);
  CUuserObject object = nullptr;
  ORIEL_CHECK(cuda_status("counting a graph",
                          cuda().user_object_create(&object, count.get(), uncount, 1,
                                                    CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)));
  static_cast<void>(count.release());
  graphs_->fetch_add(1, std::memory_order_relaxed);
  Status held =
      cuda_status("having a graph hold a communicator",
                  cuda().graph_retain_user_object(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  if (!held.ok()) static_cast<void>(cuda().user_object_release(object, 1));
  return held;
}

Status CudaExecutor::remember_captured_call(CUstream stream, unsigned long long capture) {
  ORIEL_TRY(captured_nodes_, nodes_of(stream));
  if (capture != capture_) ORIEL_CHECK(count_graph(stream));
  capture_ = capture;
  captured_stream_ = stream;
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

Status CudaExecutor::prepare_exchange(const ExchangeCall& call) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  return kernels::load_exchange(call.launches[0]);  // one kernel runs them all
}

Status CudaExecutor::follow_stream(CUstream stream, CUstream other) {
  ORIEL_TRY(const auto capture, capture_of(other));
  if (capture) {
    ORIEL_TRY(auto nodes, nodes_of(other));
    return add_dependencies(stream, nodes);
  }
  ORIEL_CHECK(cuda_status("recording what a stream holds", cuda().event_record(joint_, other)));
  return cuda_status("waiting for another stream",
                     cuda().stream_wait_event(stream, joint_, CU_EVENT_WAIT_DEFAULT));
}

Status CudaExecutor::join_streams(void* first, const std::vector<void*>& streams) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  for (void* const stream : streams) {
    if (stream == first) continue;
    ORIEL_CHECK(follow_stream(static_cast<CUstream>(first), static_cast<CUstream>(stream)));
  }
  return {};
}

Status CudaExecutor::release_streams(void* last, const std::vector<void*>& streams) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  ORIEL_TRY(const auto capture, capture_of(static_cast<CUstream>(last)));
  for (void* const each : streams) {
    auto* const stream = static_cast<CUstream>(each);
    if (each == last) continue;
    ORIEL_CHECK(capture ? follow_stream(stream, static_cast<CUstream>(last))
                        : follow_last_call(stream));
  }
  return {};
}

Status CudaExecutor::run_exchange(ExchangeCall& call) {
  bool has_begun = false;
  const auto launch = [&](CUstream where) -> Status {
    for (const kernels::ExchangeArguments& one : call.launches) {
      ORIEL_CHECK(kernels::launch_exchange(one, where));
      has_begun = true;
    }
    return {};
  };
  Status run = run_in_order(static_cast<CUstream>(call.stream), launch);
  if (run.ok() || !has_begun) return run;
  return std::move(run).error().with_scope(Scope::communicator);
}

template <class Launch>
Status CudaExecutor::run_in_order(CUstream stream, const Launch& launch) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  ORIEL_TRY(const auto capture, capture_of(stream));
  if (capture) {
    ORIEL_CHECK(follow_captured_call(stream, *capture));
    Status launched = launch(stream);
    Status remembered = remember_captured_call(stream, *capture);
    return launched.ok() ? remembered : launched;
  }
  unsigned long long number = 0;
  ORIEL_CHECK(cuda_status("asking for the stream's number", cuda().stream_get_id(stream, &number)));
  if (last_stream_ && *last_stream_ != number) ORIEL_CHECK(follow_last_call(stream));
  const CtaBudget::Turn turn = budget_.begin(last_call_);  // until the event has been recorded
  ORIEL_CHECK(follow_others(stream, turn));
  Status launched = launch(stream);
  // Also after a failure, since a part of the call may run. Now, for later the user may have begun
  // to capture the stream, or destroyed it: the driver (580.159) crashes when it is asked anything
  // about a destroyed stream.
  last_stream_ = number;
  Status recorded =
      cuda_status("recording the end of the call", cuda().event_record(event_, stream));
  return launched.ok() ? recorded : launched;
}

Status CudaExecutor::drain(Deadline deadline) {
  {
    // One that has enqueued nothing needs no driver, which may be why it ends.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock() && !last_stream_) return {};
  }
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  for (;;) {
    const CUresult status = query_last_call();
    if (status == CUDA_SUCCESS) return {};
    if (status != CUDA_ERROR_NOT_READY) return cuda_error("waiting for the last call", status);
    if (deadline.expired(SteadyClock::instance().now())) {
      return Error(ErrorCode::timeout, "the last call has not ended by the deadline");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

CUresult CudaExecutor::query_last_call() {
  // A launch holds the lock for as long as the queue of its stream is full.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return CUDA_ERROR_NOT_READY;
  return last_stream_ ? cuda().event_query(event_) : CUDA_SUCCESS;
}

bool CudaExecutor::is_in_use() {
  if (graphs_->load(std::memory_order_acquire) > 0) return true;
  const auto scope = CudaScope::enter(context_);
  return scope.ok() && query_last_call() == CUDA_ERROR_NOT_READY;
}

}  // namespace oriel::comm
