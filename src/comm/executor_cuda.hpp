// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "base/cuda_table.hpp"
#include "comm/device.hpp"

namespace oriel::comm {

/// Enqueues the kernels of one communicator, such that they run one after the other on this rank
/// although calls may go to several streams.
///
/// Calls on one stream are ordered by it. When a call goes to another stream than the last one, it
/// waits there for an event recorded behind the last one: at once, in a communicator that has used
/// two streams (an event between two kernels costs their overlap), or afterwards, the first time.
/// While a stream is captured the same is said by a dependency between the nodes. What cannot be
/// seen from here is when a graph is launched: launches, and calls outside graphs, on different
/// streams are for the user to order. Thread-safe.
class CudaExecutor final : public Executor {
 public:
  /// `context` must outlive the executor.
  static Result<std::unique_ptr<Executor>> make(CUcontext context);
  ~CudaExecutor() override;

  Status check_stream(void* stream) override;
  Status prepare(const kernels::Plan& plan, const kernels::AllReduceArguments& arguments) override;
  Status run(const kernels::Plan& plan, const kernels::AllReduceArguments& arguments,
             void* stream) override;
  Status drain(Deadline deadline) override;

 private:
  CudaExecutor(CUcontext context, CUevent event) : context_(context), event_(event) {}
  Status follow_last_call(CUstream stream);
  /// Has event_ stand behind the last call; false if its stream is no more.
  Result<bool> record_last_call();
  Status follow_captured_call(CUstream stream, unsigned long long capture);
  Status remember_captured_call(CUstream stream, unsigned long long capture);

  CUcontext context_;
  CUevent event_;
  std::mutex mutex_;
  // The last call outside captures: its stream, which the user may have destroyed since, and the
  // stream's number, which is never given twice.
  struct LastCall {
    CUstream stream;
    unsigned long long number;
    bool recorded;  // event_ stands behind it
  };
  std::optional<LastCall> last_;
  bool several_streams_ = false;
  // The last call inside a capture, and the nodes that a next one in the same capture follows.
  unsigned long long capture_ = 0;
  CUstream captured_stream_ = nullptr;
  std::vector<CUgraphNode> captured_nodes_;
};

}  // namespace oriel::comm
