// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "gpu/gpu_ranks.hpp"
#include "gpu/graph.hpp"

/// Tests calls of threads without a current context, with another GPU's context, and during a
/// capture by another thread. A call enters its context only if the driver needs one.
namespace oriel::test {
namespace {

const int kGpus = gpus();  // skips the program without a GPU

constexpr std::size_t kCount = 1000;

/// Communicator of one rank, whose all-reduce is a copy.
class LoneRank {
 public:
  explicit LoneRank(TestRanks& test_ranks) : gpu_(test_ranks.first()) {
    from_ = reinterpret_cast<int*>(gpu_.allocate(kCount * 4, true));
    to_ = reinterpret_cast<int*>(gpu_.allocate(kCount * 4, true));
    comm_ = init_rank(test_ranks, gpu_);
    check([this] { return call(); }, "the first call");  // loads the kernel
  }
  void end() { require(ncclCommDestroy(comm_), "ncclCommDestroy"); }

  const RankGpu& gpu() const { return gpu_; }
  cudaStream_t stream() const { return gpu_.stream(); }
  ncclResult_t call() const {
    return ncclAllReduce(from_, to_, kCount, ncclInt32, ncclSum, comm_, stream());
  }
  /// Runs `make`, which makes the call or launches its graph, and checks the result.
  void check(const std::function<ncclResult_t()>& make, const std::string& what) {
    const std::vector<int> expected(kCount, ++value_);
    gpu_.copy_in(from_, expected.data(), kCount * 4);
    require(make(), what.c_str());
    gpu_.wait(stream(), comm_);
    std::vector<int> result(kCount);
    gpu_.copy_out(result.data(), to_, kCount * 4);
    require(result == expected, what + ": the result");
  }

 private:
  RankGpu gpu_;
  int* from_ = nullptr;
  int* to_ = nullptr;
  ncclComm_t comm_ = nullptr;
  int value_ = 0;
};

ncclResult_t on_fresh_thread(const std::function<ncclResult_t()>& call) {
  ncclResult_t result = ncclInternalError;
  std::thread([&] { result = call(); }).join();
  return result;
}

void run_alone(const std::function<void(LoneRank&)>& body) {
  check_all_ok(run_ranks(LaunchMode::processes, 1, [&](TestRanks& test_ranks) {
    LoneRank rank(test_ranks);
    body(rank);
    rank.end();
  }));
}

TEST_CASE("a thread without a current context makes plain and captured calls", "[req:5.6]") {
  run_alone([](LoneRank& rank) {
    const auto call = [&] { return on_fresh_thread([&] { return rank.call(); }); };
    for (int i = 0; i < 3; ++i) rank.check(call, "a plain call");
    const Graph graph = Graph::capture(
        rank.stream(), [&] { require(call(), "a captured call"); }, cudaStreamCaptureModeRelaxed);
    const auto launch = [&] {
      graph.launch(rank.stream());
      return ncclSuccess;
    };
    for (int i = 0; i < 3; ++i) rank.check(launch, "a launch of the graph");
  });
}

TEST_CASE("a thread whose current context is another GPU's makes plain and captured calls",
          "[req:5.6]") {
  if (kGpus < 2) {
    WARN("skipped: needs two GPUs");
    return;
  }
  run_alone([](LoneRank& rank) {
    const auto call = [&] {
      return on_fresh_thread([&] {
        require_cuda(cudaSetDevice(1), "cudaSetDevice");
        require_cuda(cudaFree(nullptr), "making a context current");
        return rank.call();
      });
    };
    for (int i = 0; i < 3; ++i) rank.check(call, "a plain call");
    const auto call_again = [&] {
      return on_fresh_thread([&] {
        require_cuda(cudaSetDevice(1), "cudaSetDevice");
        return rank.call();
      });
    };
    const Graph graph = Graph::capture(
        rank.stream(), [&] { require(call_again(), "a captured call"); },
        cudaStreamCaptureModeRelaxed);
    const auto launch = [&] {
      graph.launch(rank.stream());
      return ncclSuccess;
    };
    for (int i = 0; i < 3; ++i) rank.check(launch, "a launch of the graph");
  });
}

TEST_CASE("calls leave a capture in global mode of another thread as it is", "[req:5.6][D2]") {
  run_alone([](LoneRank& rank) {
    const Graph graph = Graph::capture(
        rank.gpu().stream(1),
        [&] {
          for (int i = 0; i < 3; ++i) {
            require(on_fresh_thread([&] { return rank.call(); }), "without a context");
            require(on_fresh_thread([&] {
                      rank.gpu().enter();
                      return rank.call();
                    }),
                    "with its context");
          }
        },
        cudaStreamCaptureModeGlobal);
    graph.launch(rank.gpu().stream(1));
    rank.check([&] { return rank.call(); }, "a call after the capture");
  });
}

}  // namespace
}  // namespace oriel::test
