// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "gpu/fill_gpu.hpp"
#include "gpu/gpu_ranks.hpp"
#include "gpu/graph.hpp"

/// Tests the order of calls on GPUs: several streams, captured calls, several graphs. Plain calls
/// of one communicator run in the order of the calls, on any streams. So do the calls of one
/// capture, and graph launches among plain calls.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

const int kGpus = gpus();  // skips the program without a GPU
const int kRanks = kGpus == 2 || kGpus == 3 ? kGpus : 4;

/// Element counts of 64-bit integers: 24 B to 5.6 MB, for different algorithms.
const std::size_t kCounts[] = {3, 20'000, 700'000};

/// Returns `count`, scaled by ORIEL_TEST_PERCENT.
int scaled(int count) {
  const char* const percent = std::getenv("ORIEL_TEST_PERCENT");
  return percent != nullptr ? count * std::atoi(percent) / 100 : count;
}

/// One rank with a communicator and a row of buffers. Every call multiplies by an odd number modulo
/// 2^64, so that an element shows through how many calls it has gone.
class Rank {
 public:
  static constexpr std::size_t kBuffers = 13;
  static constexpr std::size_t kMost = 700'000;

  explicit Rank(TestRanks& test_ranks) : test_ranks_(test_ranks), gpu_(test_ranks.first()) {
    const std::size_t bytes = kBuffers * kMost * 8;
    memory_ = reinterpret_cast<std::uint64_t*>(gpu_.allocate(bytes, true));
    unregistered_ = reinterpret_cast<std::uint64_t*>(gpu_.allocate(bytes, false));
    comm_ = init_rank(test_ranks, gpu_);
    test_ranks.register_windows({comm_}, {memory_}, bytes);
    std::uint64_t scalar = test_ranks.first() == 0 ? 3 : 2;
    require(ncclRedOpCreatePreMulSum(&op_, &scalar, ncclUint64, ncclScalarHostImmediate, comm_),
            "ncclRedOpCreatePreMulSum");
    factor_ = 3 + 2 * (static_cast<std::uint64_t>(test_ranks.size()) - 1);
    require_cuda(static_cast<cudaError_t>(load_filler()), "loading the kernel that delays");
    // Loads every kernel before one of them waits for another rank of this process.
    for (const std::size_t count : kCounts) {
      set(0, count, 0);
      call(0, 0, count, a());
      gpu_.wait(a(), comm_);
    }
    test_ranks.barrier();
  }
  // Destroys the communicator; called after the last wait.
  void end() {
    test_ranks_.barrier();
    require(ncclRedOpDestroy(op_, comm_), "ncclRedOpDestroy");
    require(ncclCommDestroy(comm_), "ncclCommDestroy");
    test_ranks_.barrier();
  }

  TestRanks& test_ranks() { return test_ranks_; }
  RankGpu& gpu() { return gpu_; }
  ncclComm_t comm() const { return comm_; }
  cudaStream_t a() const { return gpu_.stream(0); }
  cudaStream_t b() const { return gpu_.stream(1); }

  /// Returns a buffer. Even buffers are registered, odd ones are not.
  std::uint64_t* buffer(std::size_t index) const {
    return (index % 2 == 0 ? memory_ : unregistered_) + index * kMost;
  }
  static std::uint64_t start_of(std::size_t element) { return 2 * element + 1; }

  /// Fills a buffer with elements as after `calls` calls. Waits for stream a.
  void set(std::size_t index, std::size_t count, int calls) {
    std::vector<std::uint64_t> host(count);
    const std::uint64_t product = power(calls);
    for (std::size_t k = 0; k < count; ++k) host[k] = start_of(k) * product;
    gpu_.copy_in(buffer(index), host.data(), count * 8);
  }
  void call(std::size_t from, std::size_t to, std::size_t count, cudaStream_t stream) {
    require(ncclAllReduce(buffer(from), buffer(to), count, ncclUint64, op_, comm_, stream),
            "ncclAllReduce");
  }
  void wait() {
    gpu_.wait(a(), comm_);
    gpu_.wait(b(), comm_);
  }
  /// Throws unless every element has gone through `calls` calls. Waits for stream a.
  void check(std::size_t index, std::size_t count, int calls, const std::string& what) {
    std::vector<std::uint64_t> host(count);
    gpu_.copy_out(host.data(), buffer(index), count * 8);
    const std::uint64_t product = power(calls);
    for (std::size_t k = 0; k < count; ++k) {
      if (host[k] == start_of(k) * product) continue;
      throw std::runtime_error(
          fmt::format("{}: element {} of {} is {:#x}, not {:#x} as after {} calls", what, k, count,
                      host[k], start_of(k) * product, calls));
    }
  }
  /// Delays `stream`, so that work that fails to wait for it runs too early. Uses a kernel, since a
  /// host function could hang (driver 580.159). The launch of a host function takes a lock that all
  /// ranks of the GPU in the process share. It hangs them if another rank's launch waits in the
  /// driver for queue room.
  void delay(cudaStream_t stream) {
    require_cuda(static_cast<cudaError_t>(fill_gpu_for(10'000, 1, stream)), "delaying a stream");
  }

 private:
  std::uint64_t power(int calls) const {
    std::uint64_t result = 1;
    for (int i = 0; i < calls; ++i) result *= factor_;
    return result;
  }

  TestRanks& test_ranks_;
  RankGpu gpu_;
  std::uint64_t* memory_ = nullptr;
  std::uint64_t* unregistered_ = nullptr;
  ncclComm_t comm_ = nullptr;
  ncclRedOp_t op_ = ncclSum;
  std::uint64_t factor_ = 1;
};

/// Runs `body` on every rank. Limits the CTAs of ranks that share a GPU, because several kernels of
/// each rank may be in flight.
void run(const std::function<void(Rank&)>& body) {
  const bool shared = kRanks > kGpus;
  Environment environment(Variables{{"ORIEL_CTAS", shared ? "8" : ""}});
  check_all_ok(run_ranks(
      natural_cast(kRanks), kRanks,
      [&](TestRanks& test_ranks) {
        Rank rank(test_ranks);
        body(rank);
        rank.end();
      },
      45s));
}

TEST_CASE("plain calls on two streams run in the order of the calls", "[req:1.13]") {
  run([](Rank& rank) {
    std::mt19937_64 rng(static_cast<std::uint64_t>(rank.test_ranks().first()));
    for (const std::size_t count : kCounts) {
      for (int round = 0; round < 4; ++round) {
        for (std::size_t i = 0; i < Rank::kBuffers; ++i) rank.set(i, count, 1000);
        rank.set(0, count, 0);
        // Each rank draws its own delays and streams, which need not match the other ranks'.
        for (std::size_t i = 0; i + 1 < Rank::kBuffers; ++i) {
          const cudaStream_t stream =
              (round == 0 ? i % 2 == 0 : rng() % 2 == 0) ? rank.a() : rank.b();
          if (i == 0 || rng() % 6 == 0) rank.delay(stream);
          rank.call(i, i + 1, count, stream);
        }
        rank.wait();
        for (std::size_t i = 1; i < Rank::kBuffers; ++i) {
          rank.check(i, count, static_cast<int>(i), fmt::format("round {}, link {}", round, i));
        }
      }
    }
  });
}

TEST_CASE("a call follows the last one although its stream was destroyed", "[req:1.13]") {
  run([](Rank& rank) {
    for (int round = 0; round < 20; ++round) {
      rank.set(0, 20'000, 0);
      cudaStream_t passing = nullptr;
      require_cuda(cudaStreamCreateWithFlags(&passing, cudaStreamNonBlocking), "making a stream");
      rank.call(0, 1, 20'000, passing);
      rank.gpu().wait(passing, rank.comm());
      require_cuda(cudaStreamDestroy(passing), "destroying a stream");
      rank.call(1, 2, 20'000, rank.b());
      rank.wait();
      rank.check(2, 20'000, 2, fmt::format("round {}", round));
    }
  });
}

TEST_CASE("captured and plain calls that alternate on one stream give the right sums",
          "[req:1.13]") {
  run([](Rank& rank) {
    for (const std::size_t count : kCounts) {
      rank.set(0, count, 0);
      const Graph graph = Graph::capture(rank.a(), [&] {
        rank.call(0, 1, count, rank.a());
        rank.call(1, 1, count, rank.a());
        rank.call(1, 0, count, rank.a());
      });
      rank.test_ranks().barrier();
      int calls = 0;
      for (int round = 0; round < 8; ++round) {
        for (int i = 0; i < round % 3; ++i, ++calls) rank.call(0, 0, count, rank.a());
        graph.launch(rank.a());
        calls += 3;
      }
      rank.wait();
      rank.check(0, count, calls, "alternating");
      rank.test_ranks().barrier();  // before the graph is destroyed
    }
  });
}

TEST_CASE("several graphs of one communicator, launched in any order, give the right sums",
          "[req:1.13]") {
  run([](Rank& rank) {
    constexpr std::size_t kGraphs = 6;
    std::mt19937_64 rng(77);  // fixed seed: every rank draws the same order
    std::vector<Graph> graphs;
    std::vector<int> calls(kGraphs, 0);
    const auto count_of = [](std::size_t g) { return kCounts[g % 3]; };
    const auto capture = [&](std::size_t g) {
      return Graph::capture(rank.a(), [&] {
        for (std::size_t i = 0; i <= g; ++i) rank.call(g, g, count_of(g), rank.a());
      });
    };
    for (std::size_t g = 0; g < kGraphs; ++g) {
      rank.set(g, count_of(g), 0);
      graphs.push_back(capture(g));
    }
    rank.test_ranks().barrier();
    for (int step = 0; step < 120; ++step) {
      const std::size_t g = rng() % kGraphs;
      if (step % 40 == 39) {  // replaces one graph
        rank.wait();
        rank.test_ranks().barrier();
        graphs[g] = capture(g);
        rank.test_ranks().barrier();
      }
      if (rng() % 4 == 0) {
        rank.call(g, g, count_of(g), rank.a());
        calls[g] += 1;
      } else {
        graphs[g].launch(rank.a());
        calls[g] += static_cast<int>(g) + 1;
      }
    }
    rank.wait();
    for (std::size_t g = 0; g < kGraphs; ++g) {
      rank.check(g, count_of(g), calls[g], fmt::format("graph {}", g));
    }
    rank.test_ranks().barrier();
  });
}

// CUDA makes a launch of a graph wait for the graph's previous launch, also on another stream.
TEST_CASE("a graph that is launched on two streams in turn gives the right sums", "[req:1.13]") {
  run([](Rank& rank) {
    for (const std::size_t count : kCounts) {
      rank.set(0, count, 0);
      const Graph graph = Graph::capture(rank.a(), [&] {
        rank.call(0, 1, count, rank.a());
        rank.call(1, 0, count, rank.a());
      });
      rank.test_ranks().barrier();
      for (int i = 0; i < 20; ++i) graph.launch(i % 2 == 0 ? rank.a() : rank.b());
      rank.wait();
      rank.check(0, count, 40, "one graph on two streams");
      rank.test_ranks().barrier();
    }
  });
}

TEST_CASE("two graphs and plain calls on two streams run as events order them", "[req:1.13]") {
  run([](Rank& rank) {
    for (const std::size_t count : kCounts) {
      for (std::size_t i = 0; i < 4; ++i) rank.set(i, count, 1000);
      rank.set(0, count, 0);
      const Graph there = Graph::capture(rank.a(), [&] {
        rank.call(0, 1, count, rank.a());
        rank.call(1, 2, count, rank.a());
      });
      const Graph back = Graph::capture(rank.a(), [&] { rank.call(3, 0, count, rank.a()); });
      rank.test_ranks().barrier();
      for (int round = 0; round < 8; ++round) {
        if (round % 3 == 0) rank.delay(rank.a());
        there.launch(rank.a());
        order(rank.a(), rank.b());
        rank.call(2, 3, count, rank.b());
        back.launch(rank.b());
        order(rank.b(), rank.a());
      }
      rank.wait();
      rank.check(0, count, 8 * 4, "two graphs");
      rank.test_ranks().barrier();
    }
  });
}

TEST_CASE("a captured group makes all its calls at each launch of the graph", "[req:1.13]") {
  run([](Rank& rank) {
    const auto mode = natural_cast(kRanks) == LaunchMode::processes
                          ? cudaStreamCaptureModeGlobal
                          : cudaStreamCaptureModeThreadLocal;
    for (std::size_t i = 0; i < 4; ++i) rank.set(i, kCounts[i % 3], 0);
    const Graph graph = Graph::capture(
        rank.a(),
        [&] {
          require(ncclGroupStart(), "ncclGroupStart");
          for (std::size_t i = 0; i < 4; ++i) rank.call(i, i, kCounts[i % 3], rank.a());
          rank.call(3, 3, kCounts[0], rank.a());
          require(ncclGroupEnd(), "ncclGroupEnd");
        },
        mode);
    rank.test_ranks().barrier();
    for (int i = 0; i < 5; ++i) graph.launch(rank.a());
    rank.wait();
    for (std::size_t i = 0; i < 4; ++i) {
      rank.check(i, kCounts[i % 3], i == 3 ? 10 : 5, fmt::format("buffer {} of a group", i));
    }
    rank.test_ranks().barrier();
  });
}

TEST_CASE("a captured call is right though its kernel has not been launched before", "[req:1.13]") {
  run([](Rank& rank) {
    auto* const data = reinterpret_cast<float*>(rank.buffer(0));
    const auto value = static_cast<float>(rank.test_ranks().first());
    rank.gpu().copy_in(data, &value, sizeof value);
    const Graph graph = Graph::capture(rank.a(), [&] {
      require(ncclAllReduce(data, data, 1, ncclFloat, ncclMax, rank.comm(), rank.a()),
              "ncclAllReduce");
    });
    rank.test_ranks().barrier();
    graph.launch(rank.a());
    rank.wait();
    float result = -1;
    rank.gpu().copy_out(&result, data, sizeof result);
    require(result == static_cast<float>(rank.test_ranks().size() - 1),
            fmt::format("the maximum is {}", result));
    rank.test_ranks().barrier();
  });
}

TEST_CASE("calls on two streams of one capture run in the order of the calls", "[req:1.13]") {
  run([](Rank& rank) {
    for (const std::size_t count : kCounts) {
      for (std::size_t i = 0; i < 7; ++i) rank.set(i, count, 1000);
      const Graph graph = Graph::capture(rank.a(), [&] {
        order(rank.a(), rank.b());
        for (std::size_t i = 0; i < 6; ++i) {
          rank.call(i, i + 1, count, i % 2 == 0 ? rank.a() : rank.b());
        }
        order(rank.b(), rank.a());
      });
      rank.test_ranks().barrier();
      for (int round = 0; round < 4; ++round) {
        rank.set(0, count, round);
        graph.launch(rank.a());
        rank.wait();
        rank.check(6, count, round + 6, "two captured streams");
      }
      rank.test_ranks().barrier();
    }
  });
}

/// Captures two graphs at once, with alternating calls. They take buffer 0 to 2 and 3 to 0.
std::pair<Graph, Graph> capture_two(Rank& rank, std::size_t count) {
  std::optional<Graph> back;
  Graph there = Graph::capture(
      rank.a(),
      [&] {
        rank.call(0, 1, count, rank.a());
        back.emplace(Graph::capture(
            rank.b(),
            [&] {
              rank.call(3, 4, count, rank.b());
              rank.call(1, 2, count, rank.a());
              rank.call(4, 0, count, rank.b());
            },
            cudaStreamCaptureModeRelaxed));
      },
      cudaStreamCaptureModeRelaxed);
  return {std::move(there), std::move(*back)};
}

// Fails with NCCL_GRAPH_MIXING_SUPPORT=0.
TEST_CASE("graphs and plain calls on any streams run in the order of the launches",
          "[req:5.4][D2]") {
  run([](Rank& rank) {
    // Each rank draws its own delays and streams.
    std::mt19937_64 rng(static_cast<std::uint64_t>(rank.test_ranks().first()));
    const auto any = [&] {
      const cudaStream_t stream = rng() % 2 == 0 ? rank.a() : rank.b();
      if (rng() % 50 == 0) rank.delay(stream);
      return stream;
    };
    for (const std::size_t count : kCounts) {
      for (std::size_t i = 0; i < 5; ++i) rank.set(i, count, 1000);
      rank.set(0, count, 0);
      const auto [there, back] = capture_two(rank, count);
      const Graph in_place = Graph::capture(rank.b(), [&] { rank.call(0, 0, count, rank.b()); });
      rank.test_ranks().barrier();
      const int rounds = scaled(1000) / 3 + 1;
      for (int round = 1; round <= rounds; ++round) {
        there.launch(any());
        rank.call(2, 3, count, any());
        back.launch(any());
        in_place.launch(any());
        if (round % 20 != 0 && round != rounds) continue;
        rank.wait();
        rank.check(0, count, 6 * round, fmt::format("round {}", round));
      }
      rank.test_ranks().barrier();
    }
  });
}

/// Configuration of NCCL 2.29, the first with graph_usage_mode. Mode 2 orders graph launches.
struct GraphConfig {
  explicit GraphConfig(int mode) : graph_usage_mode(mode) {
    older.size = sizeof *this;
    older.version = NCCL_VERSION(2, 29, 2);
  }
  ncclConfig_t older = NCCL_CONFIG_INITIALIZER;
  int graph_usage_mode;
  int num_rma_ctx = NCCL_CONFIG_UNDEF_INT;
};

/// Times graphs of 20 calls in turns, on a communicator that orders graphs and on one that does
/// not.
class TimedGraphs {
 public:
  TimedGraphs(TestRanks& test_ranks, RankGpu& gpu) : test_ranks_(test_ranks), gpu_(gpu) {
    gpu.enter();
    data_ = reinterpret_cast<float*>(gpu.allocate(kMost, false));
    for (std::size_t i = 0; i < 2; ++i) {
      GraphConfig config(i == 0 ? 2 : 1);
      const ncclUniqueId id = test_ranks.next_id();
      require(ncclCommInitRankConfig(&comms_[i], test_ranks.size(), id, test_ranks.first(),
                                     &config.older),
              "ncclCommInitRankConfig");
    }
    for (cudaEvent_t& event : events_) require_cuda(cudaEventCreate(&event), "making an event");
  }
  void end() {
    test_ranks_.barrier();
    for (cudaEvent_t event : events_) require_cuda(cudaEventDestroy(event), "destroying an event");
    for (ncclComm_t comm : comms_) require(ncclCommDestroy(comm), "ncclCommDestroy");
  }

  /// Throws if the median time with ordered graphs is over 1.03 times the one without. Makes up to
  /// three trials, since other programs disturb one now and then.
  void compare(std::size_t bytes, int launches) {
    require_cuda(cudaMemset(data_, 0, bytes), "clearing");
    const Graph graphs[] = {capture(comms_[0], bytes), capture(comms_[1], bytes)};
    float mine = 0;
    for (int trial = 0; trial < 3; ++trial) {
      std::atomic<std::uint64_t>& slow_ranks = test_ranks_.word(trials_++);
      mine = ratio(graphs, bytes, launches);
      if (mine > kMostRatio) ++slow_ranks;
      test_ranks_.barrier();
      if (slow_ranks == 0) return;
    }
    require(false, fmt::format("graphs of {} B: {} of the time at the end, over {} on a rank",
                               bytes, mine, kMostRatio));
  }

  static constexpr std::size_t kMost = 64 << 20;

 private:
  static constexpr float kMostRatio = 1.03F;

  /// Returns the median time with ordered graphs over the one without.
  float ratio(const Graph (&graphs)[2], std::size_t bytes, int launches) {
    std::vector<float> times[2];
    for (int round = -3; round < 25; ++round) {
      for (int turn = 0; turn < 2; ++turn) {
        const int which = (round + turn) & 1;
        const float time = run(graphs[which], launches);
        if (round >= 0) times[which].push_back(time);
      }
    }
    test_ranks_.barrier();
    const float ordered = median(times[0]);
    const float plain = median(times[1]);
    if (test_ranks_.first() == 0) {
      fmt::print("20 calls of {} B: {:.1f} us, {:.1f} us without the order of graphs\n", bytes,
                 ordered, plain);
    }
    return ordered / plain;
  }
  Graph capture(ncclComm_t comm, std::size_t bytes) {
    return Graph::capture(gpu_.stream(), [&] {
      for (int i = 0; i < 20; ++i) {
        require(ncclAllReduce(data_, data_, bytes / 4, ncclFloat, ncclSum, comm, gpu_.stream()),
                "ncclAllReduce");
      }
    });
  }
  /// Returns the mean time of a launch in microseconds.
  float run(const Graph& graph, int launches) {
    test_ranks_.barrier();
    require_cuda(cudaEventRecord(events_[0], gpu_.stream()), "recording an event");
    for (int i = 0; i < launches; ++i) graph.launch(gpu_.stream());
    require_cuda(cudaEventRecord(events_[1], gpu_.stream()), "recording an event");
    gpu_.wait(gpu_.stream(), nullptr);
    float milliseconds = 0;
    require_cuda(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]), "timing");
    return 1000 * milliseconds / static_cast<float>(launches);
  }
  static float median(std::vector<float> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  }

  TestRanks& test_ranks_;
  RankGpu& gpu_;
  float* data_ = nullptr;
  ncclComm_t comms_[2] = {};
  cudaEvent_t events_[2] = {};
  std::size_t trials_ = 0;
};

TEST_CASE("a graph of 20 calls takes hardly longer with the order of graphs than without",
          "[req:5.4][D2]") {
  if (kRanks > kGpus) return;  // ranks that share a GPU vary in time
  check_all_ok(run_ranks(
      natural_cast(kRanks), kRanks,
      [](TestRanks& test_ranks) {
        RankGpu gpu(test_ranks.first());
        TimedGraphs timed(test_ranks, gpu);
        timed.compare(8, 20);
        timed.compare(TimedGraphs::kMost, 2);
        timed.end();
      },
      45s));
}

/// Captures calls on stream a, with plain calls on stream b between them.
void capture_beside_plain_calls(Rank& rank, std::size_t count) {
  rank.set(0, count, 0);
  rank.set(2, count, 0);
  const Graph graph = Graph::capture(
      rank.a(),
      [&] {
        rank.call(0, 1, count, rank.a());
        rank.call(2, 3, count, rank.b());
        rank.call(1, 0, count, rank.a());
        rank.call(3, 2, count, rank.b());
        require(rank.gpu().done(rank.b(), kTimeout), "plain calls beside a capture have not run");
      },
      cudaStreamCaptureModeRelaxed);  // other modes forbid queries of stream b
  rank.check(2, count, 2, "plain calls beside a capture");
  rank.check(0, count, 0, "captured, not launched");
  rank.test_ranks().barrier();
  graph.launch(rank.a());
  graph.launch(rank.a());
  rank.wait();
  rank.check(0, count, 4, "launched");
  rank.check(2, count, 2, "plain, after the launches");
  rank.test_ranks().barrier();
}

TEST_CASE("plain calls on one stream are right while another stream is captured", "[req:1.13]") {
  run([](Rank& rank) {
    for (const std::size_t count : kCounts) {
      rank.set(4, count, 0);
      rank.call(4, 4, count, rank.b());  // the last plain call before the capture
      rank.wait();
      capture_beside_plain_calls(rank, count);
    }
  });
}

TEST_CASE("plain calls are right while the stream of the last plain call is captured",
          "[req:1.13]") {
  run([](Rank& rank) {
    for (const std::size_t count : kCounts) {
      rank.set(4, count, 0);
      rank.call(4, 4, count, rank.a());
      rank.wait();
      capture_beside_plain_calls(rank, count);
    }
  });
}

}  // namespace
}  // namespace oriel::test
