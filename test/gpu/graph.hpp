// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

#include <cuda_runtime_api.h>

namespace oriel::test {

/// Captured, instantiated and uploaded graph. Failures throw.
class Graph {
 public:
  /// Captures the work that `enqueue` enqueues on `stream`.
  static Graph capture(cudaStream_t stream, const std::function<void()>& enqueue,
                       cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal);
  Graph(Graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();
  void launch(cudaStream_t stream) const;

 private:
  explicit Graph(cudaGraphExec_t executable) : executable_(executable) {}
  cudaGraphExec_t executable_;
};

/// Makes all later work on `later` wait for the work enqueued so far on `earlier`.
void order(cudaStream_t earlier, cudaStream_t later);

}  // namespace oriel::test
