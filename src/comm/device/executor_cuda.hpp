// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/device/cta_budget.hpp"
#include "comm/device/device.hpp"
#include "comm/device/engine_copies.hpp"
#include "comm/device/launch_marks.hpp"
#include "comm/device/launch_order.hpp"
#include "kernels/cuda/loaded_kernels.hpp"

namespace oriel::comm {

/// Enqueues the kernels of one communicator. They run one after the other on this rank, although
/// calls may use several streams (see LaunchOrder). A graph that holds a call uses the
/// communicator's memory until the graph and its executable copies are destroyed. Launches outside
/// captures respect the GPU's budget of CTAs (cta_budget.hpp). Captured calls are not counted.
/// Thread-safe.
///
/// A plain call on the last stream takes four driver calls while the GPU is not full. They query
/// the capture status, query the stream's ID, launch, and record the event. On a default stream a
/// CudaScope adds more calls (StreamScope). Neither query can be omitted: CUDA may reuse the handle
/// of a destroyed stream. If launches are marked, a fifth one records the mark.
class CudaExecutor final : public Executor {
 public:
  /// Resources that the communicators of a GPU share; they outlive the executor.
  struct Gpu {
    CUcontext context;
    CtaBudget& budget;
    kernels::LoadedKernels& loaded;
  };
  static Result<std::unique_ptr<Executor>> make(const Gpu& gpu, const CtaBudget::Facts& facts,
                                                GraphOrder order, bool marks = false);
  ~CudaExecutor() override;

  Status check_stream(void* stream) override;
  Status check_joined(const std::vector<void*>& streams) override;
  Status join_streams(void* first, const std::vector<void*>& streams) override;
  Status release_streams(void* last, const std::vector<void*>& streams) override;
  Status run(const kernels::Plan& plan, const kernels::AllReduceArguments& arguments,
             void* stream) override;
  Status run_hierarchy(const kernels::HierarchyArguments& arguments, void* stream) override;
  Status run_exchange(ExchangeCall& call) override;
  void pass_over(kernels::CallRecord& /*record*/,
                 const kernels::CollectiveCall& /*call*/) override {}
  Status drain(Deadline deadline) override;
  bool is_in_use() override;
  void close() override { is_closed_ = true; }
  std::uint64_t last_mark() const override { return last_mark_; }
  std::optional<std::uint64_t> ended_marks() override;

 private:
  class LastLaunch;
  CudaExecutor(const Gpu& gpu, std::shared_ptr<const LastLaunch> last,
               std::unique_ptr<LaunchOrder> order);
  /// Returns an error after close(). The caller holds mutex_. A drain() or is_in_use() that has
  /// held it after close() and before the caller makes the caller see that the executor is closed.
  Status check_open() const;
  /// Calls `launch(on, captured)`, ordered after earlier calls.
  template <class Launch>
  Status run_in_order(CUstream stream, const Launch& launch);
  /// Makes the stream wait for calls of other communicators that must not run concurrently.
  static Status follow_others(StreamScope& on, const CtaBudget::Turn& turn);
  /// Enqueues the copies of a call for the copy engines.
  Status enqueue_copies(const ExchangeCall& call, StreamScope& on, bool captured);
  /// Queries the last launch. Returns CUDA_ERROR_NOT_READY also while a call is being enqueued.
  CUresult query_last_launch();

  Gpu gpu_;
  std::shared_ptr<const LastLaunch> last_launch_;
  std::mutex mutex_;  // guards order_, except has_graphs(), and marks_
  std::unique_ptr<LaunchOrder> order_;
  std::unique_ptr<EngineCopies> engine_copies_;  // created by the first call with copies
  std::unique_ptr<LaunchMarks> marks_;           // null if launches are not marked
  std::atomic<std::uint64_t> last_mark_{0};
  std::atomic<bool> is_closed_{false};
};

}  // namespace oriel::comm
