// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "comm/support/in_teams.hpp"
#include "gpu/gpu_ranks.hpp"
#include "gpu/graph.hpp"
#include "kernels/algorithms/lines.hpp"

/// Tests broadcast, reduce, all-to-all, all-gather, gather, scatter, sends and receives on GPUs, in
/// groups and in graphs. Ranks are threads or processes, on one node or on several. A
/// reduce-scatter is tested here for memory of each kind only.
namespace oriel::test {
namespace {

const int kGpus = gpus();  // skips the program without a GPU
using Element = std::uint32_t;

/// Returns element `index` of the block from `from` to `to` in step `step`. Some elements are all
/// ones or the mark of an escaped line, the words that need notes. Sums may wrap.
Element element(int from, int to, std::uint64_t step, std::size_t index) {
  if (index % 97 == 5) return ~Element{0};
  if (index % 89 == 7) return kernels::EscapedLine<Element>::kMark;
  const std::uint64_t mixed = (static_cast<std::uint64_t>(from * 64 + to) + step * 4096 + index) *
                              std::uint64_t{0x9e3779b97f4a7c15};
  return static_cast<Element>(mixed >> 40);
}

/// One rank, with send and receive buffers of `most` elements for each rank.
class ExchangingRank {
 public:
  ExchangingRank(TestRanks& test_ranks, std::size_t most, bool registered,
                 int policy = NCCL_CTA_POLICY_DEFAULT)
      : me_(test_ranks.first()), size_(test_ranks.size()), most_(most), gpu_(me_) {
    const std::size_t bytes = 2 * most * static_cast<std::size_t>(size_) * sizeof(Element);
    window_bytes_ = (bytes + (std::size_t{2} << 20) - 1) >> 21 << 21;
    base_ = reinterpret_cast<Element*>(gpu_.allocate(window_bytes_, registered));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.CTAPolicy = policy;
    comm_ = init_rank(test_ranks, gpu_, &config);
    if (registered) {
      require(
          ncclCommWindowRegister(comm_, base_, window_bytes_, &window_, NCCL_WIN_COLL_SYMMETRIC),
          "ncclCommWindowRegister");
    }
  }
  void end(TestRanks& test_ranks) {
    if (window_ != nullptr) require(ncclCommWindowDeregister(comm_, window_), "deregister");
    test_ranks.barrier();
    require(ncclCommDestroy(comm_), "ncclCommDestroy");
  }

  /// Makes the further calls with new buffers of `kind`, which must not be registered. Collective.
  void use_memory(TestRanks& test_ranks, MemoryKind kind) {
    // Allocating may wait for the device, and so for kernels that wait for this rank.
    test_ranks.barrier();
    base_ = reinterpret_cast<Element*>(gpu_.allocate(window_bytes_, kind));
    test_ranks.barrier();
  }

  RankGpu& gpu() { return gpu_; }
  ncclComm_t comm() const { return comm_; }
  /// Returns a block to send; blocks lie one behind the other.
  Element* input(int block = 0) const { return base_ + static_cast<std::size_t>(block) * count_; }
  Element* output(int block = 0) const {
    return base_ + static_cast<std::size_t>(size_) * most_ +
           static_cast<std::size_t>(block) * count_;
  }

  /// Enqueues `call` on the rank's stream, or captures it and launches the graph, and waits for it.
  void run(const std::function<void()>& call, bool in_graph) {
    if (in_graph) {
      const Graph graph = Graph::capture(gpu_.stream(), call);
      graph.launch(gpu_.stream());
      gpu_.wait(gpu_.stream(), comm_);
    } else {
      call();
      gpu_.wait(gpu_.stream(), comm_);
    }
  }

  /// Makes every collective but an all-reduce and a reduce-scatter, and a ring of messages, with
  /// `count` elements; checks the results.
  void check_all(std::uint64_t step, std::size_t count, int root, bool in_graph) {
    const auto run = [&](const char* what, const auto& call) {
      what_ = fmt::format("{} of {} elements, root {}, step {}", what, count, root, ++step);
      prepare(step, count);
      this->run(call, in_graph);
    };
    cudaStream_t stream = gpu_.stream();
    run("a broadcast", [&] {
      require(ncclBroadcast(input(), output(), count, ncclUint32, root, comm_, stream), "call");
    });
    expect(0, count, [&](std::size_t i) { return element(root, 0, step, i); });
    run("a reduce", [&] {
      require(ncclReduce(input(), output(), count, ncclUint32, ncclSum, root, comm_, stream),
              "call");
    });
    if (me_ == root) {
      expect(0, count, [&](std::size_t i) {
        Element sum = 0;
        for (int from = 0; from < size_; ++from) sum += element(from, 0, step, i);
        return sum;
      });
    }
    run("an all-to-all", [&] {
      require(ncclAlltoAll(input(), output(), count, ncclUint32, comm_, stream), "call");
    });
    for (int from = 0; from < size_; ++from) {
      expect(from, count, [&](std::size_t i) { return element(from, me_, step, i); });
    }
    run("an all-gather", [&] {
      require(ncclAllGather(input(), output(), count, ncclUint32, comm_, stream), "call");
    });
    for (int from = 0; from < size_; ++from) {
      expect(from, count, [&](std::size_t i) { return element(from, 0, step, i); });
    }
    run("a gather", [&] {
      require(ncclGather(input(), output(), count, ncclUint32, root, comm_, stream), "call");
    });
    for (int from = 0; from < size_ && me_ == root; ++from) {
      expect(from, count, [&](std::size_t i) { return element(from, 0, step, i); });
    }
    run("a scatter", [&] {
      require(ncclScatter(input(), output(), count, ncclUint32, root, comm_, stream), "call");
    });
    expect(0, count, [&](std::size_t i) { return element(root, me_, step, i); });
    const int right = (me_ + 1) % size_, left = (me_ + size_ - 1) % size_;
    run("a ring", [&] {
      require(ncclGroupStart(), "ncclGroupStart");
      require(ncclSend(input(), count, ncclUint32, right, comm_, stream), "ncclSend");
      require(ncclRecv(output(), count, ncclUint32, left, comm_, stream), "ncclRecv");
      require(ncclGroupEnd(), "ncclGroupEnd");
    });
    expect(0, count, [&](std::size_t i) { return element(left, 0, step, i); });
  }

  void check_reduce_scatter(std::uint64_t step, std::size_t count, bool in_graph) {
    what_ = fmt::format("a reduce-scatter of {} elements, step {}", count, step);
    prepare(step, count);
    run(
        [&] {
          require(ncclReduceScatter(input(), output(), count, ncclUint32, ncclSum, comm_,
                                    gpu_.stream()),
                  "call");
        },
        in_graph);
    expect(0, count, [&](std::size_t i) {
      Element sum = 0;
      for (int from = 0; from < size_; ++from) sum += element(from, me_, step, i);
      return sum;
    });
  }

  /// Fills the blocks to send and clears those to receive.
  void prepare(std::uint64_t step, std::size_t count) {
    count_ = count;
    std::vector<Element> values(count);
    for (int to = 0; to < size_; ++to) {
      for (std::size_t i = 0; i < count; ++i) values[i] = element(me_, to, step, i);
      gpu_.copy_in(input(to), values.data(), count * sizeof(Element));
    }
    std::fill(values.begin(), values.end(), 0xeeeeeeeeu);
    for (int from = 0; from < size_; ++from) {
      gpu_.copy_in(output(from), values.data(), count * sizeof(Element));
    }
  }
  /// Checks `count` elements from the first of `block` on.
  template <class Expected>
  void expect(int block, std::size_t count, const Expected& expected) {
    expect_at(output(block), block, count, expected);
  }
  template <class Expected>
  void expect_at(const Element* at, int block, std::size_t count, const Expected& expected) {
    std::vector<Element> values(count);
    gpu_.copy_out(values.data(), at, count * sizeof(Element));
    for (std::size_t i = 0; i < count; ++i) {
      if (values[i] == expected(i)) continue;  // formatting millions of texts would take minutes
      require(false, fmt::format("{}: element {} of block {} is {:x}, not {:x}", what_, i, block,
                                 values[i], expected(i)));
    }
  }
  void name(std::string what) { what_ = std::move(what); }

 private:
  int me_;
  int size_;
  std::size_t most_;
  std::size_t count_ = 0;  // elements of a block of the current call
  std::size_t window_bytes_ = 0;
  RankGpu gpu_;
  Element* base_ = nullptr;
  ncclComm_t comm_ = nullptr;
  ncclWindow_t window_ = nullptr;
  std::string what_;
};

void exchange_everything(TestRanks& test_ranks, const std::vector<std::size_t>& counts) {
  for (const bool registered : {false, true}) {
    ExchangingRank rank(test_ranks, counts.back(), registered);
    std::uint64_t step = 0;
    for (const std::size_t count : counts) {
      step += 100;
      rank.check_all(step, count,
                     static_cast<int>(count % static_cast<unsigned>(test_ranks.size())),
                     step % 200 == 0);
    }
    rank.end(test_ranks);
  }
}

/// Makes each call with buffers of every kind that applications pass without registration. In the
/// last round each rank has buffers of another kind.
void exchange_in_each_kind(TestRanks& test_ranks) {
  constexpr MemoryKind kKinds[] = {MemoryKind::cuda_malloc, MemoryKind::cuda_malloc_async,
                                   MemoryKind::cuda_host_alloc, MemoryKind::cuda_malloc_host,
                                   MemoryKind::cuda_malloc_managed};
  constexpr std::size_t kKindCount = std::size(kKinds);
  // Elements of 4 bytes: two messages that go in packets, 200 KiB, 3 MiB.
  const std::vector<std::size_t> counts = {1, 777, 51'200, 786'432};
  const auto me = static_cast<std::size_t>(test_ranks.first());
  ExchangingRank rank(test_ranks, counts.back(), false);
  std::uint64_t step = 0;
  for (std::size_t round = 0; round <= kKindCount; ++round) {
    const MemoryKind kind = kKinds[round < kKindCount ? round : me % kKindCount];
    rank.use_memory(test_ranks, kind);
    try {
      for (const std::size_t count : counts) {
        step += 100;
        // Over the rounds each count has every root, plain and in graphs.
        const std::uint64_t turn = step / 100 + round;
        const int root = static_cast<int>(turn / 2) % test_ranks.size();
        const bool in_graph = turn % 2 == 0;
        rank.check_all(step, count, root, in_graph);
        rank.check_reduce_scatter(step + 50, count, in_graph);
      }
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("memory of {}: {}", name_of(kind), error.what()));
    }
  }
  rank.end(test_ranks);
}

/// Checks in-place calls of collectives that copy engines carry out. A rank's block lies at its
/// position among all blocks, also on ranks other than the root.
void check_in_place(ExchangingRank& rank, int me, int size, std::uint64_t step, std::size_t count,
                    int root, bool in_graph) {
  ncclComm_t comm = rank.comm();
  cudaStream_t stream = rank.gpu().stream();
  const auto begin = [&](const char* what, Element* at, int to) {
    rank.name(
        fmt::format("{} in place of {} elements, root {}, step {}", what, count, root, ++step));
    rank.prepare(step, count);
    std::vector<Element> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = element(me, to, step, i);
    rank.gpu().copy_in(at, values.data(), count * sizeof(Element));
  };
  rank.prepare(step, count);  // sets the block size, which output() and input() need
  begin("an all-gather", rank.output(me), 0);
  rank.run(
      [&] {
        require(ncclAllGather(rank.output(me), rank.output(), count, ncclUint32, comm, stream),
                "call");
      },
      in_graph);
  for (int from = 0; from < size; ++from) {
    rank.expect(from, count, [&](std::size_t i) { return element(from, 0, step, i); });
  }
  begin("a gather", rank.output(me), 0);
  rank.run(
      [&] {
        require(ncclGather(rank.output(me), rank.output(), count, ncclUint32, root, comm, stream),
                "call");
      },
      in_graph);
  for (int from = 0; from < size && me == root; ++from) {
    rank.expect(from, count, [&](std::size_t i) { return element(from, 0, step, i); });
  }
  begin("a scatter", rank.input(me), me);
  rank.run(
      [&] {
        require(ncclScatter(rank.input(), rank.input(me), count, ncclUint32, root, comm, stream),
                "call");
      },
      in_graph);
  rank.expect_at(rank.input(me), 0, count,
                 [&](std::size_t i) { return element(root, me, step, i); });
}

/// Returns the number of copy nodes of a captured call. The graph is not launched.
std::size_t copies_of(cudaStream_t stream, const std::function<void()>& call) {
  require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  call();
  cudaGraph_t graph = nullptr;
  require_cuda(cudaStreamEndCapture(stream, &graph), "ending a capture");
  std::size_t count = 0;
  require_cuda(cudaGraphGetNodes(graph, nullptr, &count), "counting nodes");
  std::vector<cudaGraphNode_t> nodes(count);
  require_cuda(cudaGraphGetNodes(graph, nodes.data(), &count), "listing nodes");
  const auto copies = std::count_if(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    require_cuda(cudaGraphNodeGetType(node, &type), "the type of a node");
    return type == cudaGraphNodeTypeMemcpy;
  });
  require_cuda(cudaGraphDestroy(graph), "destroying a graph");
  return static_cast<std::size_t>(copies);
}

constexpr std::size_t kLeastCopied = 1'048'576;  // elements of a block of 4 MiB

/// Checks that copy engines carry out the four collectives only if `are_used` is set and blocks
/// have at least kLeastCopied elements.
void check_copies(ExchangingRank& rank, int me, int size, bool are_used) {
  constexpr int kRoot = 0;
  cudaStream_t stream = rank.gpu().stream();
  rank.name("counting copies");
  for (const std::size_t count : {kLeastCopied - 1, kLeastCopied}) {
    rank.prepare(1, count);
    const auto blocks = are_used && count == kLeastCopied ? static_cast<std::size_t>(size) : 0;
    const auto check = [&](const char* what, std::size_t expected, const auto& collective) {
      const std::size_t copies = copies_of(stream, [&] { require(collective(), what); });
      require(copies == expected, fmt::format("{} of {} elements has {} copies, not {}", what,
                                              count, copies, expected));
    };
    check("an all-gather", blocks, [&] {
      return ncclAllGather(rank.input(), rank.output(), count, ncclUint32, rank.comm(), stream);
    });
    check("an all-to-all", blocks, [&] {
      return ncclAlltoAll(rank.input(), rank.output(), count, ncclUint32, rank.comm(), stream);
    });
    check("a gather", me == kRoot ? blocks : 0, [&] {
      return ncclGather(rank.input(), rank.output(), count, ncclUint32, kRoot, rank.comm(), stream);
    });
    check("a scatter", me == kRoot ? blocks : 0, [&] {
      return ncclScatter(rank.input(), rank.output(), count, ncclUint32, kRoot, rank.comm(),
                         stream);
    });
  }
}

/// Tests collectives by copy engines. Without `all_ask` only rank 0 asks for copy engines, and no
/// rank gets them.
void copy_by_engines(TestRanks& test_ranks, bool all_ask) {
  const std::vector<std::size_t> counts = {777, kLeastCopied - 1, kLeastCopied, 2'000'003};
  const int me = test_ranks.first(), size = test_ranks.size();
  const bool asks = all_ask || me == 0;
  for (const bool registered : {true, false}) {
    ExchangingRank rank(test_ranks, counts.back(), registered,
                        asks ? NCCL_CTA_POLICY_ZERO : NCCL_CTA_POLICY_DEFAULT);
    check_copies(rank, me, size, registered && all_ask);
    std::uint64_t step = 0;
    for (const std::size_t count : counts) {
      for (const bool in_graph : {false, true}) {
        step += 100;
        const int root = static_cast<int>(step / 100) % size;
        rank.check_all(step, count, root, in_graph);
        check_in_place(rank, me, size, step + 50, count, root, in_graph);
      }
    }
    rank.end(test_ranks);
  }
}

/// Sends between all pairs in one group on two streams, together with an all-reduce.
void send_to_all(TestRanks& test_ranks) {
  constexpr std::size_t kCount = 70'000;
  ExchangingRank rank(test_ranks, kCount, false);
  const int me = test_ranks.first();
  RankGpu& gpu = rank.gpu();
  auto* const sum = reinterpret_cast<Element*>(gpu.allocate(sizeof(Element), false));
  for (std::uint64_t step = 1; step <= 5; ++step) {
    rank.name(fmt::format("all pairs, step {}", step));
    rank.prepare(step, kCount);
    const Element one = 1;
    gpu.copy_in(sum, &one, sizeof one);
    require(ncclGroupStart(), "ncclGroupStart");
    for (int peer = 0; peer < test_ranks.size(); ++peer) {
      cudaStream_t stream = gpu.stream(static_cast<std::size_t>(peer % 2));
      require(ncclSend(rank.input(peer), kCount, ncclUint32, peer, rank.comm(), stream),
              "ncclSend");
      require(ncclRecv(rank.output(peer), kCount, ncclUint32, peer, rank.comm(), stream),
              "ncclRecv");
    }
    require(ncclAllReduce(sum, sum, 1, ncclUint32, ncclSum, rank.comm(), gpu.stream(1)), "sum");
    require(ncclGroupEnd(), "ncclGroupEnd");
    gpu.wait(gpu.stream(0), rank.comm());
    gpu.wait(gpu.stream(1), rank.comm());
    for (int peer = 0; peer < test_ranks.size(); ++peer) {
      rank.expect(peer, kCount, [&](std::size_t i) { return element(peer, me, step, i); });
    }
    Element got = 0;
    gpu.copy_out(&got, sum, sizeof got);
    require(got == static_cast<Element>(test_ranks.size()), "the sum");
  }
  rank.end(test_ranks);
}

/// Returns element counts; fewer if processes share a GPU, where a turn takes milliseconds.
std::vector<std::size_t> counts_of(LaunchMode launch_mode, int ranks) {
  if (launch_mode == LaunchMode::processes && ranks > kGpus)
    return {0, 1, 5'000, 40'000, 131'072, 262'144, 300'001};
  return {0, 1, 3, 777, 5'000, 40'000, 65'536, 131'072, 262'144, 300'001, 2'000'003};
}

}  // namespace

TEST_CASE("every exchanged call on GPUs of one node gives the right elements",
          "[req:5.8][req:5.10]") {
  const auto [launch_mode, ranks] =
      GENERATE(std::pair(LaunchMode::threads, 2), std::pair(LaunchMode::threads, 3),
               std::pair(LaunchMode::threads, 4), std::pair(LaunchMode::processes, 2),
               std::pair(LaunchMode::processes, 4));
  if (ranks == 3 && kGpus < 2) return;  // to save time
  INFO(ranks << " ranks as " << name_of(launch_mode) << " on " << kGpus << " GPU(s)");
  const auto counts = counts_of(launch_mode, ranks);
  check_all_ok(run_ranks(
      launch_mode, ranks, [&](TestRanks& test_ranks) { exchange_everything(test_ranks, counts); },
      std::chrono::seconds(60)));
}

TEST_CASE("calls whose long blocks some CTAs copy while the others send give the right elements",
          "[req:5.9]") {
  if (kGpus < 2) {
    WARN("skipped: ranks that share a GPU do not divide their CTAs; needs 2 GPUs");
    return;
  }
  const int ranks = std::min(kGpus, 4);
  // Blocks of 8.4 MiB, of which streams take part, and of 32.4 MiB, of which exchanges do too. Each
  // length in place and not.
  const std::vector<std::size_t> counts = {2'200'001, 2'200'003, 8'500'001, 8'500'003};
  check_all_ok(run_ranks(
      LaunchMode::processes, ranks,
      [&](TestRanks& test_ranks) { exchange_everything(test_ranks, counts); },
      std::chrono::seconds(90)));
}

TEST_CASE("every exchanged call on GPUs of several nodes gives the right elements",
          "[req:5.11][req:5.8][req:5.10]") {
  const auto [ranks, of_a_node] = GENERATE(std::pair(2, 1), std::pair(4, 2), std::pair(3, 2));
  if (ranks == 4 && kGpus < 2) return;  // 3 ranks on two nodes have both kinds of peers too
  INFO(ranks << " ranks, " << of_a_node << " of a node, on " << kGpus << " GPU(s)");
  check_all_ok(run_ranks(
      LaunchMode::processes, ranks,
      [&, of_a_node = of_a_node](TestRanks& test_ranks) {
        const Environment own(of_node(test_ranks.first() / of_a_node));
        exchange_everything(test_ranks, counts_of(LaunchMode::processes, kGpus + 1));
      },
      std::chrono::seconds(90)));
}

TEST_CASE("every exchanged call on unregistered GPU memory of each kind gives the right elements",
          "[req:5.8][req:5.10]") {
  const auto [launch_mode, ranks] =
      GENERATE(std::pair(LaunchMode::threads, 2), std::pair(LaunchMode::threads, 4),
               std::pair(LaunchMode::processes, 2), std::pair(LaunchMode::processes, 4));
  if (launch_mode == LaunchMode::processes && ranks == 4 && kGpus < 4)
    return;  // processes would take turns on a GPU
  INFO(ranks << " ranks as " << name_of(launch_mode) << " on " << kGpus << " GPU(s)");
  check_all_ok(run_ranks(launch_mode, ranks, exchange_in_each_kind, std::chrono::seconds(60)));
}

TEST_CASE("every call gives the right elements where no GPU may map another's memory",
          "[req:5.13]") {
  const auto [launch_mode, ranks] =
      GENERATE(std::pair(LaunchMode::processes, 2), std::pair(LaunchMode::processes, 3));
  INFO(ranks << " ranks on " << kGpus << " GPU(s)");
  check_all_ok(run_ranks(
      launch_mode, ranks,
      [](TestRanks& test_ranks) {
        // Disables P2P on the last rank only, which is enough.
        const Environment own(Variables{
            {"NCCL_P2P_DISABLE", test_ranks.first() == test_ranks.size() - 1 ? "1" : ""}});
        exchange_everything(test_ranks, counts_of(LaunchMode::processes, kGpus + 1));
        send_to_all(test_ranks);
      },
      std::chrono::seconds(90)));
}

TEST_CASE("with NCCL_CTA_POLICY_ZERO on all ranks copy engines move long registered blocks rightly",
          "[req:5.9]") {
  const auto [launch_mode, ranks, all_ask] = GENERATE(
      std::tuple(LaunchMode::threads, 2, true), std::tuple(LaunchMode::threads, 4, true),
      std::tuple(LaunchMode::processes, 2, true), std::tuple(LaunchMode::processes, 4, true),
      std::tuple(LaunchMode::threads, 2, false));
  if (launch_mode == LaunchMode::processes && ranks > kGpus)
    return;  // processes would take turns on a GPU
  INFO(ranks << " ranks as " << name_of(launch_mode) << " on " << kGpus << " GPU(s)");
  check_all_ok(run_ranks(
      launch_mode, ranks,
      [all = all_ask](TestRanks& test_ranks) { copy_by_engines(test_ranks, all); },
      std::chrono::seconds(60)));
}

TEST_CASE("messages between all pairs of GPU ranks in one group on two streams arrive",
          "[req:5.10]") {
  const int ranks = GENERATE(2, 4);
  check_all_ok(run_ranks(natural_cast(ranks), ranks, send_to_all, std::chrono::seconds(60)));
}

}  // namespace oriel::test
