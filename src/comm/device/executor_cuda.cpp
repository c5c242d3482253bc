// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/executor_cuda.hpp"

#include <chrono>
#include <cstddef>
#include <optional>
#include <thread>
#include <utility>

#include "base/cuda_scope.hpp"
#include "base/try.hpp"
#include "kernels/cuda/launch_cuda.hpp"

namespace oriel::comm {

/// Event after the last launch, for which other communicators may wait.
class CudaExecutor::LastLaunch final : public CtaBudget::Member {
 public:
  LastLaunch(CUcontext context, const CtaBudget::Facts& facts,
             std::shared_ptr<const LaunchEvent> event)
      : Member(facts), context_(context), event_(std::move(event)) {}

  bool has_ended() const override {
    const auto scope = CudaScope::enter(context_);
    return scope.ok() && cuda().event_query(event()) == CUDA_SUCCESS;
  }
  CUevent event() const { return event_->get(); }

 private:
  CUcontext context_;
  std::shared_ptr<const LaunchEvent> event_;
};

Result<std::unique_ptr<Executor>> CudaExecutor::make(const Gpu& gpu, const CtaBudget::Facts& facts,
                                                     GraphOrder order, bool marks) {
  ORIEL_CHECK(kernels::load_kernels(gpu.loaded));
  ORIEL_TRY(const auto scope, CudaScope::enter(gpu.context));
  ORIEL_TRY(auto launches, LaunchOrder::make(order));
  auto last = std::make_shared<const LastLaunch>(gpu.context, facts, launches->last_launch());
  std::unique_ptr<CudaExecutor> made(new CudaExecutor(gpu, std::move(last), std::move(launches)));
  if (marks) made->marks_ = std::make_unique<LaunchMarks>();
  return std::unique_ptr<Executor>(std::move(made));
}

CudaExecutor::CudaExecutor(const Gpu& gpu, std::shared_ptr<const LastLaunch> last,
                           std::unique_ptr<LaunchOrder> order)
    : gpu_(gpu), last_launch_(std::move(last)), order_(std::move(order)) {
  gpu_.budget.join(last_launch_);
}

CudaExecutor::~CudaExecutor() {
  // Continues even if the context cannot be entered: events know their own context.
  const auto scope = CudaScope::enter(gpu_.context);
  gpu_.budget.leave(last_launch_);
  engine_copies_.reset();
  marks_.reset();
  order_.reset();
  last_launch_.reset();
}

Status CudaExecutor::check_stream(void* /*stream*/) {
  return {};
}

Status CudaExecutor::check_joined(const std::vector<void*>& streams) {
  ORIEL_TRY(const auto scope, CudaScope::enter(gpu_.context));
  return LaunchOrder::check_joined(streams);
}

Status CudaExecutor::run(const kernels::Plan& plan, const kernels::AllReduceArguments& arguments,
                         void* stream) {
  return run_in_order(static_cast<CUstream>(stream), [&](StreamScope& on, bool /*captured*/) {
    return kernels::launch_all_reduce(plan, arguments, gpu_.loaded, on);
  });
}

Status CudaExecutor::run_hierarchy(const kernels::HierarchyArguments& arguments, void* stream) {
  return run_in_order(static_cast<CUstream>(stream), [&](StreamScope& on, bool /*captured*/) {
    return kernels::launch_hierarchy(arguments, gpu_.loaded, on);
  });
}

Status CudaExecutor::join_streams(void* first, const std::vector<void*>& streams) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(const auto scope, CudaScope::enter(gpu_.context));
  return order_->join(static_cast<CUstream>(first), streams);
}

Status CudaExecutor::release_streams(void* last, const std::vector<void*>& streams) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(const auto scope, CudaScope::enter(gpu_.context));
  return order_->release(static_cast<CUstream>(last), streams);
}

Status CudaExecutor::enqueue_copies(const ExchangeCall& call, StreamScope& on, bool captured) {
  if (call.copies.empty()) return {};
  if (engine_copies_ == nullptr) {
    ORIEL_TRY(const auto scope, CudaScope::enter(gpu_.context));
    ORIEL_TRY(engine_copies_, EngineCopies::make());
  }
  // A stream that has joined a capture stays in it until the user ends the capture. Calls outside
  // the capture could not use the second stream until then.
  return engine_copies_->enqueue(call.copies, call.copies_own_block && !captured, on);
}

Status CudaExecutor::run_exchange(ExchangeCall& call) {
  bool has_started = false;
  const auto launch = [&](StreamScope& on, bool captured) -> Status {
    for (std::size_t i = 0; i < call.launches.size(); ++i) {
      if (i == call.launches_before_copies) ORIEL_CHECK(enqueue_copies(call, on, captured));
      ORIEL_CHECK(kernels::launch_exchange(call.launches[i], gpu_.loaded, on));
      has_started = true;
    }
    return {};
  };
  Status run = run_in_order(static_cast<CUstream>(call.stream), launch);
  if (run.ok() || !has_started) return run;
  return std::move(run).error().with_scope(Scope::communicator);
}

Status CudaExecutor::follow_others(StreamScope& on, const CtaBudget::Turn& turn) {
  for (const CtaBudget::MemberRef& other : turn.waits()) {
    const CUevent event = static_cast<const LastLaunch&>(*other).event();
    ORIEL_CHECK(cuda_status("waiting for another communicator's call", on.call([&] {
      return cuda().stream_wait_event(on.stream(), event, CU_EVENT_WAIT_DEFAULT);
    })));
  }
  return {};
}

Status CudaExecutor::check_open() const {
  if (!is_closed_.load(std::memory_order_relaxed)) return {};
  return Error(ErrorCode::invalid_usage,
               "the communicator was finalized, destroyed or aborted before the call was enqueued")
      .with_hint("end a communicator after the last call on it has returned, in any thread");
}

template <class Launch>
Status CudaExecutor::run_in_order(CUstream stream, const Launch& launch) {
  const std::lock_guard lock(mutex_);
  ORIEL_CHECK(check_open());
  ORIEL_TRY(auto on, StreamScope::enter(gpu_.context, stream));
  ORIEL_TRY(const auto place, order_->begin(on));
  std::optional<CtaBudget::Turn> turn;  // held until end() has recorded the launch
  if (place.capture == nullptr) {
    turn.emplace(gpu_.budget.begin(last_launch_));
    ORIEL_CHECK(follow_others(on, *turn));
  }
  Status launched = launch(on, place.capture != nullptr);
  Status noted = order_->end(on, place);
  if (marks_ != nullptr) {
    // Without its mark the call is merely not known to have ended.
    const bool is_marked = place.capture == nullptr && launched.ok() && marks_->record(on).ok();
    last_mark_ = is_marked ? marks_->count() : 0;
  }
  return launched.ok() ? noted : launched;
}

Status CudaExecutor::drain(Deadline deadline) {
  {
    // Calls no driver if nothing was enqueued: a driver failure may be why the executor is drained.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock() && !order_->has_launched()) return {};
  }
  ORIEL_TRY(const auto scope, CudaScope::enter(gpu_.context));
  for (;;) {
    const CUresult status = query_last_launch();
    if (status == CUDA_SUCCESS) return {};
    if (status != CUDA_ERROR_NOT_READY) return cuda_error("waiting for the last launch", status);
    if (deadline.expired(SteadyClock::instance().now())) {
      return Error(ErrorCode::timeout, "the last call has not ended by the deadline");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

CUresult CudaExecutor::query_last_launch() {
  // A launch holds the lock while the queue of its stream is full.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return CUDA_ERROR_NOT_READY;
  return order_->has_launched() ? order_->query() : CUDA_SUCCESS;
}

std::optional<std::uint64_t> CudaExecutor::ended_marks() {
  // A launch that waits for room in its stream's queue holds the lock (see query_last_launch()),
  // and may block other driver calls. An abort, which ends that wait, must not wait for it.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || marks_ == nullptr) return std::nullopt;
  const auto scope = CudaScope::enter(gpu_.context);
  if (!scope.ok()) return std::nullopt;
  return marks_->ended();
}

bool CudaExecutor::is_in_use() {
  // Also graphs are counted under the lock, since a call that is being captured may add one. A
  // launch may hold the lock for long, see query_last_launch().
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || order_->has_graphs()) return true;
  if (!order_->has_launched()) return false;
  const auto scope = CudaScope::enter(gpu_.context);
  return scope.ok() && order_->query() == CUDA_ERROR_NOT_READY;
}

}  // namespace oriel::comm
