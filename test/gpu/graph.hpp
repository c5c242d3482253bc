// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

#include <cuda_runtime_api.h>

namespace oriel::test {

/// A captured graph, ready to be launched. Failures are exceptions.
class Graph {
 public:
  /// What `enqueue` enqueues on `stream`.
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

/// Makes what is enqueued on `later` from now on wait for what has been enqueued on `earlier`.
void order(cudaStream_t earlier, cudaStream_t later);

}  // namespace oriel::test
