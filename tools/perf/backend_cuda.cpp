// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "perf/backend.hpp"
#include "perf/kernels.hpp"

namespace oriel::perf {
namespace {

Status check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return {};
  return Error(ErrorCode::cuda, fmt::format("{}: {}", call, cudaGetErrorString(status)))
      .with_native(NativeDomain::cuda_runtime, static_cast<int>(status));
}
#define PERF_CUDA(call) ORIEL_CHECK(check_cuda((call), #call))

struct GraphDeleter {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
using OwnedGraph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, GraphDeleter>;

class CudaBackend final : public Backend {
 public:
  static Result<std::unique_ptr<Backend>> create(int local_rank) {
    int devices = 0;
    const cudaError_t counted = cudaGetDeviceCount(&devices);
    if (counted != cudaSuccess || devices == 0)
      return Error(ErrorCode::cuda, fmt::format("there is no GPU that CUDA can use ({})",
                                                cudaGetErrorString(counted)));
    auto backend = std::unique_ptr<CudaBackend>(new CudaBackend);
    PERF_CUDA(cudaSetDevice(local_rank % devices));
    ORIEL_CHECK(backend->set_up(local_rank % devices));
    return std::unique_ptr<Backend>(std::move(backend));
  }

  // Frees in the reverse order of set_up(). Ignores errors: the process is about to end.
  ~CudaBackend() override {
    forget_graphs();
    for (void* memory : allocations_) cudaFree(memory);
    if (stop_ != nullptr) cudaEventDestroy(stop_);
    if (start_ != nullptr) cudaEventDestroy(start_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  std::string device_name() const override { return name_; }
  cudaStream_t stream() const override { return stream_; }

  Result<void*> allocate(std::size_t bytes) override {
    void* memory = nullptr;
    PERF_CUDA(cudaMalloc(&memory, bytes));
    allocations_.push_back(memory);
    return memory;
  }

  Status fill(void* out, std::size_t count, const Pattern& pattern, int rank) override {
    launch_fill(out, count, pattern, rank, stream_);
    return finish("filling a buffer");
  }

  Status set_bytes(void* out, std::uint8_t value, std::size_t bytes) override {
    PERF_CUDA(cudaMemsetAsync(out, value, bytes, stream_));
    return finish("setting a buffer's bytes");
  }

  Status check_output(const void* data, std::size_t count, const Pattern& pattern,
                      CheckReport& report) override {
    if (pattern.ranks > kMostCheckedRanks)
      return Error(ErrorCode::invalid_argument,
                   fmt::format("-c 1 works for at most {} ranks", kMostCheckedRanks));
    launch_make_keys(keys_, pattern, stream_);
    return with_report(report, [&](CheckReport* on_device) {
      launch_check_output(data, count, pattern, keys_, on_device, stream_);
    });
  }

  Status check_input(const void* data, std::size_t count, const Pattern& pattern, int rank,
                     CheckReport& report) override {
    return with_report(report, [&](CheckReport* on_device) {
      launch_check_input(data, count, pattern, rank, on_device, stream_);
    });
  }

  Status check_bytes(const void* data, std::uint8_t value, std::size_t bytes,
                     CheckReport& report) override {
    return with_report(report, [&](CheckReport* on_device) {
      launch_check_bytes(data, value, bytes, on_device, stream_);
    });
  }

  Status synchronize(Deadline deadline) override {
    PERF_CUDA(cudaEventRecord(stop_, stream_));
    return wait_for_stop(deadline);
  }

  Result<double> time(const TimedLoop& loop, const SharedBarrier& barrier,
                      Deadline deadline) override {
    return loop.graph_launches > 0 ? time_graph(loop, barrier, deadline)
                                   : time_plain(loop, barrier, deadline);
  }

  Status run_once(const TimedLoop& loop, Deadline deadline) override {
    OwnedGraph graph;
    if (loop.graph_launches > 0) {
      ORIEL_CHECK(capture(loop, graph));
      PERF_CUDA(cudaGraphLaunch(graph.get(), stream_));
    } else {
      for (int call = 0; call < loop.calls; ++call) ORIEL_CHECK(loop.issue(call));
    }
    return synchronize(deadline);
  }

  void forget_graphs() override {
    graph_.reset();
    jittered_graph_.reset();
  }

 private:
  CudaBackend() = default;

  Status set_up(int device) {
    cudaDeviceProp properties;
    PERF_CUDA(cudaGetDeviceProperties(&properties, device));
    char bus[32] = "";
    PERF_CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
    name_ = fmt::format("device {} [{}] {}", device, bus, properties.name);
    PERF_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    PERF_CUDA(cudaEventCreate(&start_));
    PERF_CUDA(cudaEventCreate(&stop_));
    ORIEL_TRY(void* report, allocate(sizeof(CheckReport)));
    report_ = static_cast<CheckReport*>(report);
    ORIEL_TRY(void* keys, allocate(kMostCheckedRanks * sizeof(std::uint64_t)));
    keys_ = static_cast<std::uint64_t*>(keys);
    // Ranks may be threads that share a GPU. A stream's first work was then seen not to begin while
    // kernels of other ranks wait for it (docs/notes/exchanges.md).
    launch_delay(0, stream_);
    return finish("starting a stream");
  }

  Status finish(const char* doing) {
    ORIEL_CHECK(check_cuda(cudaGetLastError(), doing));
    return check_cuda(cudaStreamSynchronize(stream_), doing);
  }

  template <typename Launch>
  Status with_report(CheckReport& report, Launch&& launch) {
    CheckReport found = report;
    PERF_CUDA(cudaMemcpyAsync(report_, &found, sizeof found, cudaMemcpyHostToDevice, stream_));
    launch(report_);
    ORIEL_CHECK(check_cuda(cudaGetLastError(), "checking a buffer"));
    PERF_CUDA(cudaMemcpyAsync(&found, report_, sizeof found, cudaMemcpyDeviceToHost, stream_));
    ORIEL_CHECK(finish("checking a buffer"));
    report = found;
    return {};
  }

  // Polls the event and the watch() function, so that an abort by the library ends the wait.
  Status wait_for_stop(Deadline deadline) {
    for (;;) {
      const cudaError_t status = cudaEventQuery(stop_);
      if (status != cudaErrorNotReady) return check_cuda(status, "waiting for the device");
      ORIEL_CHECK(healthy());
      if (deadline.expired(SteadyClock::instance().now()))
        return Error(ErrorCode::timeout, "the device did not finish in time");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  Result<double> measured(int calls, Deadline deadline) {
    ORIEL_CHECK(wait_for_stop(deadline));
    float elapsed_ms = 0;
    PERF_CUDA(cudaEventElapsedTime(&elapsed_ms, start_, stop_));
    return static_cast<double>(elapsed_ms) * 1000.0 / calls;
  }

  Status issue(const TimedLoop& loop, int call) {
    if (loop.jitter_us > 0) launch_delay(jitter_delay_us(loop, call), stream_);
    return loop.issue(call);
  }

  Result<double> time_plain(const TimedLoop& loop, const SharedBarrier& barrier,
                            Deadline deadline) {
    ORIEL_CHECK(barrier.wait(deadline));
    ORIEL_CHECK(loop.issue(0));
    PERF_CUDA(cudaEventRecord(start_, stream_));
    for (int call = 0; call < loop.calls; ++call) {
      ORIEL_CHECK(issue(loop, call));
      if (loop.blocking) PERF_CUDA(cudaStreamSynchronize(stream_));
    }
    PERF_CUDA(cudaEventRecord(stop_, stream_));
    return measured(loop.calls, deadline);
  }

  Result<double> time_graph(const TimedLoop& loop, const SharedBarrier& barrier,
                            Deadline deadline) {
    OwnedGraph& graph = loop.jitter_us > 0 ? jittered_graph_ : graph_;
    if (!graph) ORIEL_CHECK(capture(loop, graph));
    ORIEL_CHECK(barrier.wait(deadline));
    // The untimed launch hides the host's launch cost of the first timed one.
    PERF_CUDA(cudaGraphLaunch(graph.get(), stream_));
    PERF_CUDA(cudaEventRecord(start_, stream_));
    for (int launch = 0; launch < loop.graph_launches; ++launch)
      PERF_CUDA(cudaGraphLaunch(graph.get(), stream_));
    PERF_CUDA(cudaEventRecord(stop_, stream_));
    return measured(loop.calls * loop.graph_launches, deadline);
  }

  Status capture(const TimedLoop& loop, OwnedGraph& executable) {
    PERF_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    Status issued;
    for (int call = 0; call < loop.calls && issued.ok(); ++call) issued = issue(loop, call);
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    if (!issued.ok()) {
      if (graph != nullptr) cudaGraphDestroy(graph);
      return std::move(issued).error();
    }
    ORIEL_CHECK(check_cuda(ended, "capturing the calls"));
    cudaGraphExec_t instance = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&instance, graph, 0);
    cudaGraphDestroy(graph);
    ORIEL_CHECK(check_cuda(made, "instantiating the captured calls"));
    executable.reset(instance);
    PERF_CUDA(cudaGraphUpload(instance, stream_));
    return finish("uploading the captured calls");
  }

  std::string name_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  CheckReport* report_ = nullptr;  // device memory, freed with allocations_
  std::uint64_t* keys_ = nullptr;  // device memory, freed with allocations_
  std::vector<void*> allocations_;
  OwnedGraph graph_;
  OwnedGraph jittered_graph_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(int local_rank) {
  return CudaBackend::create(local_rank);
}

int count_cuda_devices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

}  // namespace oriel::perf
