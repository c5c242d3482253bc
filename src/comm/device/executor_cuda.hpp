// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "comm/device/cta_budget.hpp"
#include "comm/device/device.hpp"
#include "comm/device/engine_copies.hpp"
#include "comm/device/launch_order.hpp"
#include "kernels/cuda/loaded_kernels.hpp"

namespace oriel::comm {

/// Enqueues the kernels of one communicator, such that they run one after the other on this rank
/// although calls may go to several streams (see LaunchOrder). A graph that holds a call counts as
/// a user of the communicator's memory until it has gone, with its executable copies.
/// Launches outside captures keep to the budget of CTAs of the GPU (cta_budget.hpp). Captured calls
/// are not counted. Thread-safe.
///
/// A plain call on the last stream takes four driver calls while the GPU is not full: whether the
/// stream is captured, its number, the launch, and the record of its end. The first two cannot be
/// left out: CUDA may give the handle of a destroyed stream to a new one.
class CudaExecutor final : public Executor {
 public:
  /// What the communicators of a GPU share. All of it must outlive the executor.
  struct Gpu {
    CUcontext context;
    CtaBudget& budget;
    kernels::LoadedKernels& loaded;
  };
  static Result<std::unique_ptr<Executor>> make(const Gpu& gpu, const CtaBudget::Facts& facts,
                                                GraphOrder order);
  ~CudaExecutor() override;

  Status check_stream(void* stream) override;
  Status check_joined(const std::vector<void*>& streams) override;
  Status join_streams(void* first, const std::vector<void*>& streams) override;
  Status release_streams(void* last, const std::vector<void*>& streams) override;
  Status prepare(const kernels::Plan& plan, const kernels::AllReduceArguments& arguments) override;
  Status run(const kernels::Plan& plan, const kernels::AllReduceArguments& arguments,
             void* stream) override;
  Status prepare_hierarchy(const kernels::HierarchyArguments& arguments) override;
  Status run_hierarchy(const kernels::HierarchyArguments& arguments, void* stream) override;
  Status prepare_exchange(const ExchangeCall& call) override;
  Status run_exchange(ExchangeCall& call) override;
  void pass_over(kernels::CallRecord& /*record*/,
                 const kernels::CollectiveCall& /*call*/) override {}
  Status drain(Deadline deadline) override;
  bool is_in_use() override;

 private:
  class LastLaunch;
  CudaExecutor(const Gpu& gpu, std::shared_ptr<const LastLaunch> last,
               std::unique_ptr<LaunchOrder> order);
  /// `launch(on)`, behind the calls before it.
  template <class Launch>
  Status run_in_order(CUstream stream, const Launch& launch);
  /// Has the stream wait for the calls of other communicators that a launch is not to run beside.
  static Status follow_others(StreamScope& on, const CtaBudget::Turn& turn);
  /// Enqueues the copies of a call, which copy engines carry out.
  Status enqueue_copies(const ExchangeCall& call, StreamScope& on);
  /// Returns CUDA_ERROR_NOT_READY also while a call is being enqueued.
  CUresult query_last_launch();

  Gpu gpu_;
  std::shared_ptr<const LastLaunch> last_launch_;
  std::mutex mutex_;  // guards order_, but for what any thread may ask
  std::unique_ptr<LaunchOrder> order_;
  std::unique_ptr<EngineCopies> engine_copies_;  // once a call has had copies
};

}  // namespace oriel::comm
