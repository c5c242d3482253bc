// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime_api.h>

#include "comm/device/cta_budget.hpp"
#include "gpu_peers/copy_kernel.hpp"
#include "support/bench.hpp"

/// Measures a plain copy inside one GPU by as many CTAs as the ranks that share a GPU have in all.
/// loopback.py compares collectives with it.
namespace oriel::bench {
namespace {

void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "grid_copy: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

/// Two buffers, a stream and two events.
class Copy {
 public:
  explicit Copy(std::size_t bytes) : bytes_(bytes) {
    require(cudaMalloc(&from_, bytes), "cudaMalloc");
    require(cudaMalloc(&to_, bytes), "cudaMalloc");
    require(cudaMemset(from_, 1, bytes), "cudaMemset");
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    for (cudaEvent_t& event : events_) require(cudaEventCreate(&event), "cudaEventCreate");
  }
  ~Copy() {
    for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
    static_cast<void>(cudaStreamDestroy(stream_));
    static_cast<void>(cudaFree(to_));
    static_cast<void>(cudaFree(from_));
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;

  /// Returns microseconds per copy.
  double measure(unsigned ctas) {
    constexpr int kCopies = 10;
    for (int copy = 0; copy <= kCopies; ++copy) {  // the first is not timed
      require(copy_by_ctas(to_, from_, bytes_ / 16, ctas, stream_), "a launch");
      if (copy == 0 || copy == kCopies) {
        require(cudaEventRecord(events_[copy / kCopies], stream_), "cudaEventRecord");
      }
    }
    require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]), "cudaEventElapsedTime");
    return milliseconds * 1000.0 / kCopies;
  }

 private:
  std::size_t bytes_;
  void* from_ = nullptr;
  void* to_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[2] = {};
};

/// Returns how many CTAs a call of each of `ranks` ranks may have if they share GPU 0.
int ctas_of_rank(std::int64_t ranks) {
  int processors = 0;
  require(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0),
          "cudaDeviceGetAttribute");
  topo::RankInfo info;
  info.kind = topo::DeviceKind::cuda;
  info.resident_ctas = static_cast<std::uint16_t>(processors);
  const std::vector<topo::RankInfo> infos(static_cast<std::size_t>(ranks), info);
  return comm::most_ctas_of_gpus(infos, 0);
}

int run(int argc, char** argv) {
  Bench bench("grid_copy",
              "Measures a plain copy inside the first GPU, by as many CTAs of 512 threads as ranks "
              "that share the GPU have in all.\n"
              "Exit status: 0; 1 if a call fails; 2 for wrong flags; 77 without a GPU.");
  std::int64_t rounds = 5;
  std::int64_t ranks = 2;
  std::vector<std::int64_t> sizes{64 << 20};
  bench.flag("--rounds", rounds, 1, 10'000, "rounds of 10 copies");
  bench.flag("--ranks", ranks, 1, 64, "ranks that share the GPU");
  bench.flag("--sizes", sizes, 16, std::int64_t{16} << 30, "bytes of the copy");
  if (const auto status = bench.parse(argc, argv)) return *status;
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::puts("skipped: needs a GPU");
    return 77;
  }
  const std::int64_t ctas = ranks * ctas_of_rank(ranks);
  for (const std::int64_t size : sizes) {
    Copy copy(static_cast<std::size_t>(size));
    std::vector<double> samples;
    for (std::int64_t i = 0; i < rounds; ++i) {
      samples.push_back(copy.measure(static_cast<unsigned>(ctas)));
    }
    std::sort(samples.begin(), samples.end());
    bench.result("copy", Fields().add("bytes", size).add("ctas", ctas), "us",
                 samples[samples.size() / 2], Fields().add("least", samples.front()));
  }
  return 0;
}

}  // namespace
}  // namespace oriel::bench

int main(int argc, char** argv) {
  return oriel::bench::run(argc, argv);
}
