// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/cuda_table.hpp"
#include "comm/device/device.hpp"

namespace oriel::comm {

/// Enqueues the kernels of one communicator, such that they run one after the other on this rank
/// although calls may go to several streams.
///
/// Calls on one stream are ordered by it. An event stands behind every call outside captures; when
/// a call goes to another stream than the last one, it waits there for that event. A stream is
/// never touched after its call: it may be destroyed or captured by then.
/// While a stream is captured the same is said by a dependency between the nodes. A graph that
/// holds a call counts as a user of the communicator's memory until it has gone, with its
/// executable copies. What cannot be seen from here is when a graph is launched: launches, and
/// calls outside graphs, on different streams are for the user to order (as nccl.h says).
/// Launches outside captures keep to the budget of CTAs of the GPU (cta_budget.hpp). A captured
/// call cannot wait for an event from outside its capture: it is not counted. Thread-safe.
class CudaExecutor final : public Executor {
 public:
  /// `context` and `budget` must outlive the executor.
  static Result<std::unique_ptr<Executor>> make(CUcontext context, CtaBudget& budget,
                                                const CtaBudget::Facts& facts);
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
  class LastCall;
  CudaExecutor(CUcontext context, CUevent joint, CtaBudget& budget,
               std::shared_ptr<const LastCall> last_call);
  /// `launch(stream)`, behind the calls before it.
  template <class Launch>
  Status run_in_order(CUstream stream, const Launch& launch);
  /// Has `stream` wait for what `other` holds. Both are captured alike (check_joined).
  Status follow_stream(CUstream stream, CUstream other);
  Status follow_last_call(CUstream stream);
  /// Has `stream` wait for the calls of other communicators that a launch is not to run beside.
  Status follow_others(CUstream stream, const CtaBudget::Turn& turn) const;
  Status follow_captured_call(CUstream stream, unsigned long long capture);
  Status remember_captured_call(CUstream stream, unsigned long long capture);
  /// Counts the graph that the capture of `stream` makes among graphs_.
  Status count_graph(CUstream stream);
  /// Returns CUDA_ERROR_NOT_READY also while a call is being enqueued.
  CUresult query_last_call();

  CUcontext context_;
  CUevent joint_;  // for streams that meet
  CtaBudget& budget_;
  std::shared_ptr<const LastCall> last_call_;
  CUevent event_;  // behind the last call, and owned by it
  // Graphs that hold a call.
  std::shared_ptr<std::atomic<int>> graphs_ = std::make_shared<std::atomic<int>>(0);
  std::mutex mutex_;
  // The number, which is never given twice, of the stream of the last call outside captures.
  std::optional<unsigned long long> last_stream_;
  // The last call inside a capture, and the nodes that a next one in the same capture follows.
  unsigned long long capture_ = 0;
  CUstream captured_stream_ = nullptr;
  std::vector<CUgraphNode> captured_nodes_;
};

}  // namespace oriel::comm
