// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

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
/// While a stream is captured the same is said by a dependency between the nodes. An exchange may
/// join several streams: they meet at its launches, by events or such dependencies. What cannot be
/// seen from here is when a graph is launched: launches, and calls outside graphs, on different
/// streams are for the user to order (as nccl.h says). Thread-safe.
class CudaExecutor final : public Executor {
 public:
  /// `context` must outlive the executor.
  static Result<std::unique_ptr<Executor>> make(CUcontext context);
  ~CudaExecutor() override;

  Status check_stream(void* stream) override;
  Status check_joined(const std::vector<void*>& streams) override;
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

 private:
  CudaExecutor(CUcontext context, CUevent event, CUevent joint)
      : context_(context), event_(event), joint_(joint) {}
  /// `launch(stream)`, behind the calls before it.
  template <class Launch>
  Status run_in_order(CUstream stream, const Launch& launch);
  /// Has `stream` wait for what `other` holds. Both are captured alike (check_joined).
  Status follow_stream(CUstream stream, CUstream other);
  Status follow_last_call(CUstream stream, unsigned long long number);
  Status follow_captured_call(CUstream stream, unsigned long long capture);
  Status remember_captured_call(CUstream stream, unsigned long long capture);

  CUcontext context_;
  CUevent event_;  // behind the last call
  CUevent joint_;  // for streams that meet
  std::mutex mutex_;
  // The number, which is never given twice, of the stream of the last call outside captures.
  std::optional<unsigned long long> last_stream_;
  // The last call inside a capture, and the nodes that a next one in the same capture follows.
  unsigned long long capture_ = 0;
  CUstream captured_stream_ = nullptr;
  std::vector<CUgraphNode> captured_nodes_;
};

}  // namespace oriel::comm
