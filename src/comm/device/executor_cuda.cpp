// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/executor_cuda.hpp"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/cuda_scope.hpp"
#include "base/try.hpp"
#include "kernels/cuda/launch_cuda.hpp"

namespace oriel::comm {

/// The event behind the last launch, which other communicators may wait for.
class CudaExecutor::LastLaunch final : public CtaBudget::Member {
 public:
  LastLaunch(const CtaBudget::Facts& facts, std::shared_ptr<const LaunchEvent> event)
      : Member(facts), event_(std::move(event)) {}

  bool has_ended() const override { return cuda().event_query(event()) == CUDA_SUCCESS; }
  CUevent event() const { return event_->get(); }

 private:
  std::shared_ptr<const LaunchEvent> event_;
};

Result<std::unique_ptr<Executor>> CudaExecutor::make(CUcontext context, CtaBudget& budget,
                                                     const CtaBudget::Facts& facts,
                                                     GraphOrder order) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context));
  ORIEL_TRY(auto launches, LaunchOrder::make(order));
  auto last = std::make_shared<const LastLaunch>(facts, launches->last_launch());
  return std::unique_ptr<Executor>(
      new CudaExecutor(context, budget, std::move(last), std::move(launches)));
}

CudaExecutor::CudaExecutor(CUcontext context, CtaBudget& budget,
                           std::shared_ptr<const LastLaunch> last,
                           std::unique_ptr<LaunchOrder> order)
    : context_(context), budget_(budget), last_launch_(std::move(last)), order_(std::move(order)) {
  budget_.join(last_launch_);
}

CudaExecutor::~CudaExecutor() {
  // Tried even if the context cannot be entered: events know their own.
  const auto scope = CudaScope::enter(context_);
  budget_.leave(last_launch_);
  order_.reset();
  last_launch_.reset();
}

Status CudaExecutor::check_stream(void* /*stream*/) {
  return {};
}

Status CudaExecutor::check_joined(const std::vector<void*>& streams) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  return LaunchOrder::check_joined(streams);
}

Status CudaExecutor::prepare(const kernels::Plan& plan,
                             const kernels::AllReduceArguments& arguments) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  return kernels::load_all_reduce(plan, arguments);
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

Status CudaExecutor::prepare_exchange(const ExchangeCall& /*call*/) {
  if (has_exchanges_) return {};
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  ORIEL_CHECK(kernels::load_exchanges());
  has_exchanges_ = true;
  return {};
}

Status CudaExecutor::join_streams(void* first, const std::vector<void*>& streams) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  return order_->join(static_cast<CUstream>(first), streams);
}

Status CudaExecutor::release_streams(void* last, const std::vector<void*>& streams) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  return order_->release(static_cast<CUstream>(last), streams);
}

Status CudaExecutor::run_exchange(ExchangeCall& call) {
  ORIEL_CHECK(prepare_exchange(call));
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

Status CudaExecutor::follow_others(CUstream stream, const CtaBudget::Turn& turn) const {
  for (const CtaBudget::MemberRef& other : turn.waits()) {
    const CUevent event = static_cast<const LastLaunch&>(*other).event();
    ORIEL_CHECK(cuda_status("waiting for another communicator's call",
                            cuda().stream_wait_event(stream, event, CU_EVENT_WAIT_DEFAULT)));
  }
  return {};
}

template <class Launch>
Status CudaExecutor::run_in_order(CUstream stream, const Launch& launch) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
  ORIEL_TRY(const auto place, order_->begin(stream));
  std::optional<CtaBudget::Turn> turn;  // until the launch has been noted
  if (place.capture == nullptr) {
    turn.emplace(budget_.begin(last_launch_));
    ORIEL_CHECK(follow_others(stream, *turn));
  }
  Status launched = launch(stream);
  Status noted = order_->end(place);
  return launched.ok() ? noted : launched;
}

Status CudaExecutor::drain(Deadline deadline) {
  {
    // One that has enqueued nothing needs no driver, which may be why it ends.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock() && !order_->has_launched()) return {};
  }
  ORIEL_TRY(const auto scope, CudaScope::enter(context_));
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
  // A launch holds the lock for as long as the queue of its stream is full.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return CUDA_ERROR_NOT_READY;
  return order_->has_launched() ? order_->query() : CUDA_SUCCESS;
}

bool CudaExecutor::is_in_use() {
  if (order_->has_graphs()) return true;
  const auto scope = CudaScope::enter(context_);
  return scope.ok() && query_last_launch() == CUDA_ERROR_NOT_READY;
}

}  // namespace oriel::comm
