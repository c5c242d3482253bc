// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "gpu/fill_gpu.hpp"
#include "gpu/gpu_ranks.hpp"
#include "gpu/graph.hpp"
#include "support/seed.hpp"

/// Tests communicators that share one GPU, where kernels could keep each other's peers from
/// starting.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

const int kGpus = gpus();  // skips the program without a GPU
constexpr int kRanks = 2;
constexpr std::size_t kCalls = 20;  // before each synchronisation
/// Element counts of 64-bit integers: 24 B to 16 MB, for one-shot and stream.
constexpr std::size_t kCounts[] = {3, 20'000, 200'000, 2'000'000};
constexpr std::size_t kMost = 2'000'000;

/// Order in which a rank calls its communicators: its own, or common to all ranks.
enum class Order { own, common };

int rounds_of(int full) {
  const char* const percent = std::getenv("ORIEL_TEST_PERCENT");
  return std::max(1, full * (percent == nullptr ? 100 : std::atoi(percent)) / 100);
}

struct Call {
  std::size_t comm;
  std::size_t count;
};

/// Draws the calls of a round on `comms` communicators. Each communicator's calls have one order on
/// all ranks. If `order` is own, each rank interleaves the communicators in its own way.
std::vector<Call> draw_calls(std::size_t comms, std::mt19937_64& common, std::mt19937_64& own,
                             Order order) {
  std::vector<Call> calls(kCalls);
  for (Call& call : calls) call = {common() % comms, kCounts[common() % std::size(kCounts)]};
  if (order == Order::common) return calls;
  std::vector<std::vector<Call>> queues(comms);
  for (const Call& call : calls) queues[call.comm].push_back(call);
  std::shuffle(calls.begin(), calls.end(), own);
  std::vector<std::size_t> next(comms);
  for (Call& call : calls) call = queues[call.comm][next[call.comm]++];
  return calls;
}

/// Rank on the first GPU, with a stream and a buffer for each communicator. Calls sum in place.
class Rank {
 public:
  Rank(TestRanks& test_ranks, std::size_t comms)
      : test_ranks_(test_ranks),
        gpu_(0),
        rank_(test_ranks.first()),
        streams_(comms),
        data_(comms),
        comms_(comms) {
    require_cuda(
        cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, gpu_.device()),
        "cudaDeviceGetAttribute");
    require_cuda(static_cast<cudaError_t>(load_filler()), "loading the filler");
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      require_cuda(cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking), "a stream");
      data_[i] = reinterpret_cast<std::uint64_t*>(gpu_.allocate(kMost * 8, i % 2 == 0));
    }
    for (ncclComm_t& comm : comms_) comm = init_rank(test_ranks, gpu_);
    // Loads every kernel before one of them waits for another rank of this process.
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      for (const std::size_t count : kCounts) {
        call({i, count});
        gpu_.wait(streams_[i], comms_[i]);
      }
    }
    test_ranks.barrier();
  }
  void end() {
    test_ranks_.barrier();
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      require(ncclCommDestroy(comms_[i]), "ncclCommDestroy");
      require_cuda(cudaStreamDestroy(streams_[i]), "destroying a stream");
    }
    test_ranks_.barrier();
  }

  void run_round(const std::vector<Call>& calls, std::mt19937_64& rng) {
    for (std::size_t i = 0; i < comms_.size(); ++i) fill(i);
    test_ranks_.barrier();
    for (const Call& one : calls) {
      // Fills the GPU at times, with twice as many CTAs as fit; these CTAs end by themselves.
      if (rng() % 5 == 0) occupy(rng() % 2 == 0 ? gpu_.stream(1) : streams_[one.comm]);
      call(one);
    }
    for (std::size_t i = 0; i < comms_.size(); ++i) gpu_.wait(streams_[i], comms_[i]);
    gpu_.wait(gpu_.stream(1), nullptr);
    for (std::size_t i = 0; i < comms_.size(); ++i) check(i, calls);
    test_ranks_.barrier();
  }

 private:
  static std::uint64_t start_of(int rank, std::size_t element) {
    return 2 * element + 1 + 0x10001 * static_cast<std::uint64_t>(rank);
  }
  void call(const Call& one) {
    gpu_.enter();
    std::uint64_t* const data = data_[one.comm];
    require(ncclAllReduce(data, data, one.count, ncclUint64, ncclSum, comms_[one.comm],
                          streams_[one.comm]),
            "ncclAllReduce");
  }
  void occupy(cudaStream_t stream) {
    gpu_.enter();
    require_cuda(static_cast<cudaError_t>(fill_gpu_for(100, 4 * multiprocessors_, stream)),
                 "filling the GPU");
  }
  void fill(std::size_t which) {
    if (inputs_.empty()) {
      for (std::size_t k = 0; k < kMost; ++k) inputs_.push_back(start_of(rank_, k));
    }
    gpu_.copy_in(data_[which], inputs_.data(), kMost * 8);
  }
  /// Checks the sums: after n calls an element is 2^(n-1) times the sum of the ranks' inputs.
  void check(std::size_t which, const std::vector<Call>& calls) {
    std::vector<std::uint64_t> values(kMost);
    gpu_.copy_out(values.data(), data_[which], kMost * 8);
    for (std::size_t k = 0; k < kMost; k += k < 4 ? 1 : 1009) {  // a sample of the elements
      const auto reaches = [&](const Call& one) { return one.comm == which && one.count > k; };
      const auto times = std::count_if(calls.begin(), calls.end(), reaches);
      std::uint64_t expected = start_of(rank_, k);
      if (times > 0) expected = (start_of(0, k) + start_of(1, k)) << (times - 1);
      require(values[k] == expected,
              fmt::format("communicator {}, element {}: {:#x} instead of {:#x} after {} calls",
                          which, k, values[k], expected, times));
    }
  }

  TestRanks& test_ranks_;
  RankGpu gpu_;
  int rank_;
  int multiprocessors_ = 0;
  std::vector<cudaStream_t> streams_;
  std::vector<std::uint64_t*> data_;
  std::vector<std::uint64_t> inputs_;
  std::vector<ncclComm_t> comms_;
};

void run(LaunchMode launch_mode, Order order, int rounds, const Variables& variables,
         std::size_t comms = 4) {
  const std::uint64_t seed = test_seed();
  INFO("seed " << seed);
  const Environment environment(variables);
  check_all_ok(run_ranks(
      launch_mode, kRanks,
      [&](TestRanks& test_ranks) {
        Rank rank(test_ranks, comms);
        std::mt19937_64 common(seed);
        std::mt19937_64 own(seed + 1 + static_cast<std::uint64_t>(test_ranks.first()));
        for (int round = 0; round < rounds_of(rounds); ++round) {
          rank.run_round(draw_calls(comms, common, own, order), own);
        }
        rank.end();
      },
      90s + rounds_of(rounds) * 1s));
}

/// Limits calls so that all fit on the GPU: 2 ranks, 4 communicators, 2 * (7 + 1) CTAs each, 128.
const Variables kFitting{{"ORIEL_MAX_CTAS", "7"}};

TEST_CASE("communicators that fit on a GPU are called in any order, all calls end",
          "[req:5.5][D1]") {
  run(LaunchMode::threads, Order::own, 40, kFitting);
}

TEST_CASE("communicators that do not fit on a GPU are called in one order, all calls end",
          "[req:5.5][D1]") {
  run(LaunchMode::threads, Order::common, 40, {});
}

TEST_CASE("communicators of two processes that fit on a GPU are called in any order, all calls end",
          "[req:5.5][D1]") {
  run(LaunchMode::processes, Order::own, 4, kFitting);
}

TEST_CASE("communicators of two processes that do not fit on a GPU, all calls end",
          "[req:5.5][D1]") {
  const std::size_t comms = GENERATE(4, 16);
  // With one hardware queue, a kernel starts only after all that were enqueued before it. So with
  // one, only an order common to all ranks ends.
  const char* const queues = GENERATE("32", "1");
  run(LaunchMode::processes, Order::common, 4, {{"CUDA_DEVICE_MAX_CONNECTIONS", queues}}, comms);
}

/// Launches graphs of many calls on the first GPU, which all ranks share. If a kernel let its
/// successor be launched before its predecessor has ended, more than one could wait behind it. They
/// could take multiprocessors from the peers' kernels.
void launch_graphs(TestRanks& test_ranks) {
  constexpr std::size_t kBytes[] = {8, 4 << 10, 64 << 10, 512 << 10, 4 << 20, 64 << 20};
  RankGpu gpu(0);
  auto* const data = reinterpret_cast<float*>(gpu.allocate(kBytes[std::size(kBytes) - 1], false));
  ncclComm_t const comm = init_rank(test_ranks, gpu);
  for (const std::size_t bytes : kBytes) {
    const std::size_t count = bytes / sizeof(float);
    const auto call = [&] {
      require(ncclAllReduce(data, data, count, ncclFloat, ncclMax, comm, gpu.stream()),
              "ncclAllReduce");
    };
    call();  // loads the kernel
    gpu.wait(gpu.stream(), comm);
    const std::vector<float> own(count, static_cast<float>(1 + test_ranks.first()));
    gpu.copy_in(data, own.data(), bytes);
    const Graph graph = Graph::capture(gpu.stream(), [&] {
      for (int i = 0; i < 20; ++i) call();
    });
    test_ranks.barrier();
    for (int i = 0; i < rounds_of(50); ++i) graph.launch(gpu.stream());
    gpu.wait(gpu.stream(), comm);
    std::vector<float> values(count);
    gpu.copy_out(values.data(), data, bytes);
    const auto most = static_cast<float>(test_ranks.size());
    require(std::count(values.begin(), values.end(), most) == static_cast<std::ptrdiff_t>(count),
            fmt::format("{} bytes are not the maximum of the ranks", bytes));
    test_ranks.barrier();
  }
  require(ncclCommDestroy(comm), "ncclCommDestroy");
  test_ranks.barrier();
}

TEST_CASE("graphs of 20 calls of ranks that are threads and share a GPU end", "[req:5.4][D12]") {
  const int ranks = GENERATE(2, 4);
  INFO(ranks << " ranks");
  check_all_ok(run_ranks(LaunchMode::threads, ranks, launch_graphs, 60s));
}

}  // namespace
}  // namespace oriel::test
