// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "gpu/graph.hpp"

#include <exception>

#include "gpu/gpu_ranks.hpp"

namespace oriel::test {

Graph Graph::capture(cudaStream_t stream, const std::function<void()>& enqueue,
                     cudaStreamCaptureMode mode) {
  require_cuda(cudaStreamBeginCapture(stream, mode), "beginning a capture");
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  require_cuda(cudaStreamEndCapture(stream, &graph), "ending a capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  require_cuda(made, "instantiating a graph");
  Graph captured(executable);
  require_cuda(cudaGraphUpload(executable, stream), "uploading a graph");
  return captured;
}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(executable_, other.executable_);
  return *this;
}

Graph::~Graph() {
  if (executable_ != nullptr && std::uncaught_exceptions() == 0) cudaGraphExecDestroy(executable_);
}

void Graph::launch(cudaStream_t stream) const {
  require_cuda(cudaGraphLaunch(executable_, stream), "launching a graph");
}

void order(cudaStream_t earlier, cudaStream_t later) {
  cudaEvent_t event = nullptr;
  require_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  require_cuda(cudaEventRecord(event, earlier), "recording an event");
  require_cuda(cudaStreamWaitEvent(later, event, 0), "waiting for an event");
  require_cuda(cudaEventDestroy(event), "destroying an event");
}

}  // namespace oriel::test
