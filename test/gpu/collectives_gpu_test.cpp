// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "comm/communicator/collective_calls.hpp"
#include "gpu/gpu_ranks.hpp"
#include "gpu/graph.hpp"
#include "support/seed.hpp"

/// Tests collectives of GPUs on one node and on several, against a reference (3.16, 3.17, 3.18).
/// The ranks of one machine play the nodes. Data goes by direct copy, memfd rings or libfabric,
/// with and without graphs.
namespace oriel::test {
namespace {

const int kGpus = gpus();  // skips the program without a GPU

class GpuPlace final : public CallPlace {
 public:
  GpuPlace(int rank, bool in_graphs) : gpu_(rank), in_graphs_(in_graphs) {}

  std::byte* allocate(std::size_t bytes) override { return gpu_.allocate(bytes, false); }
  void write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes != 0) gpu_.copy_in(to, from, bytes);
  }
  void read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes != 0) gpu_.copy_out(to, from, bytes);
  }
  void run(Communicator& comm, const std::function<void(void* stream)>& call) override {
    std::optional<Graph> graph;  // kept alive until the call has ended
    if (in_graphs_) {
      graph = Graph::capture(gpu_.stream(), [&] { call(gpu_.stream()); });
      graph->launch(gpu_.stream());
    } else {
      call(gpu_.stream());
    }
    wait(comm);
  }

 private:
  void wait(const Communicator& comm) const {
    if (gpu_.done(gpu_.stream())) return;
    const auto error = comm.async_error();
    require(false, "the call has ended" + (error ? "; " + error->to_string() : std::string()));
  }
  RankGpu gpu_;
  bool in_graphs_;
};

/// Path between GPUs of different nodes.
struct Path {
  const char* name;
  Variables variables;
};
const std::vector<Path> kPaths = {
    {"direct copy", {{"NCCL_P2P_DISABLE", "0"}}},
    {"memfd ring", {{"NCCL_P2P_DISABLE", "1"}}},  // makes each GPU a team of its own
    {"libfabric tcp", {{"ORIEL_WIRE", "fabric"}, {"ORIEL_FABRIC_PROVIDER", "tcp"}}},
};

bool is_there(const Path& path) {
  static void* const library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  return path.variables.front().first != "ORIEL_WIRE" || library != nullptr;
}

void run_gpus(const Nodes& nodes, Variables variables, const Path& path, const Body& body,
              int line) {
  // Ranks are processes. Those that share a GPU take turns on it, which is slow but correct.
  if (static_cast<int>(nodes.size()) > kGpus) {
    WARN("nodes " << text_of(nodes) << " share " << kGpus << " GPUs");
  }
  if (!is_there(path)) {
    WARN("skipped " << path.name << ": libfabric is not installed");
    return;
  }
  INFO(path.name);
  variables.insert(variables.end(), path.variables.begin(), path.variables.end());
  variables.emplace_back("ORIEL_COLLECTIVE_TIMEOUT", "15");
  run_on(nodes, variables, body, line);
}

const std::vector<Nodes> kSplits = {{0, 1},       {0, 0},    {0, 0, 1, 1}, {0, 1, 1, 1},
                                    {0, 1, 2, 3}, {0, 0, 1}, {0, 1, 0, 1}};

/// Leaves out node layouts, to save time. Leaves out most of them for libfabric always, and for the
/// memfd ring if ranks share a GPU. Leaves out some for direct copies if ranks share a GPU.
bool is_left_out(const Path& path, const Nodes& nodes) {
  const bool is_slow = &path == &kPaths[2];
  if (!is_slow && static_cast<int>(nodes.size()) <= kGpus) return false;
  if (nodes == kSplits[0] || nodes == kSplits[2]) return false;
  if (&path == &kPaths[0]) return nodes != kSplits[3] && nodes != kSplits[5];
  return is_slow || nodes != kSplits[5];
}

/// Returns the stride in the list of calls: `shared` if ranks share a GPU, where calls take
/// milliseconds, else `alone`.
int stride_of(const Nodes& nodes, int alone, int shared) {
  return static_cast<int>(nodes.size()) > kGpus ? shared : alone;
}

/// Checks about one of `stride` pairs of type and operation. Collective, count, buffers and
/// alignment are drawn.
void call_everything(TestRanks& test_ranks, std::uint64_t seed, bool exact, int stride) {
  constexpr std::size_t kMost = 70'000;
  Caller caller(test_ranks, (kMost + 8) * 8,
                std::make_unique<GpuPlace>(test_ranks.first(), mix(seed, 1) % 2 == 0));
  const std::size_t counts[] = {1, 777, 9'001, kMost};
  std::uint64_t step = 0;
  for (const DataType type : kTypes) {
    for (const ReduceOp op : kOps) {
      const std::uint64_t drawn = mix(seed, ++step);
      if (drawn / 4096 % static_cast<unsigned>(stride) != 0) continue;
      Call call;
      call.kind = static_cast<Kind>(drawn / 1024 % 3);
      call.type = type;
      call.op = op;
      call.count = counts[drawn % 4];
      call.buffers = static_cast<Buffers>(drawn / 4 % 4);
      call.skew = drawn / 16 % 8;
      if (exact) call.inputs = static_cast<Inputs>(drawn / 128 % 3);
      call.seed = drawn;
      const std::uint64_t hash = caller.check(call, exact);
      if (call.kind == Kind::all_reduce && step % 5 == 0) agree(test_ranks, hash, call.text());
    }
  }
  Call nothing;
  caller.check(nothing, exact);
  test_ranks.barrier();
}

}  // namespace

TEST_CASE("all-reduce, all-gather and reduce-scatter of a GPU on each of two nodes are right",
          "[req:3.16][req:3.18]") {
  for (const Path& path : kPaths) {
    for (const bool in_graphs : {false, true}) {
      if (in_graphs && kGpus < 2 && &path != &kPaths[0]) continue;  // to save time
      run_gpus(
          {0, 1}, {}, path,
          [&](TestRanks& test_ranks) {
            Caller caller(test_ranks, 4'000'000,
                          std::make_unique<GpuPlace>(test_ranks.first(), in_graphs));
            Call call;
            for (const std::size_t count : {1, 1000, 20'000, kGpus < 2 ? 200'000 : 1'000'000}) {
              for (const Kind kind : {Kind::all_reduce, Kind::all_gather, Kind::reduce_scatter}) {
                call.kind = kind;
                call.count = count;
                call.seed = count;
                caller.check(call, false);
              }
            }
            test_ranks.barrier();
          },
          __LINE__);
    }
  }
}

TEST_CASE("every type and operation is right among GPUs of all splits into nodes",
          "[req:3.16][req:3.18]") {
  const std::uint64_t seed = test_seed();
  WARN("ORIEL_TEST_SEED=" << seed);
  for (const Path& path : kPaths) {
    for (const Nodes& nodes : kSplits) {
      if (is_left_out(path, nodes)) continue;
      const bool is_direct = &path == &kPaths[0];
      run_gpus(
          nodes, {{"ORIEL_CHUNK", "8192"}, {"ORIEL_SCRATCH_SIZE", "16M"}}, path,
          [&](TestRanks& test_ranks) {
            call_everything(test_ranks, mix(seed, nodes.size() + path.name[0]), false,
                            nodes == kSplits[0] ? stride_of(nodes, 1, is_direct ? 2 : 6)
                                                : stride_of(nodes, 3, 15));
          },
          __LINE__);
    }
  }
}

TEST_CASE("with ORIEL_DETERMINISTIC the bits of GPUs do not depend on the nodes",
          "[req:3.17][req:5.12]") {
  const std::uint64_t seed = test_seed();
  WARN("ORIEL_TEST_SEED=" << seed);
  for (const Nodes& nodes : kSplits) {
    if (is_left_out(kPaths[1], nodes)) continue;
    run_gpus(
        nodes, {{"ORIEL_DETERMINISTIC", "1"}, {"ORIEL_CHUNK", "8192"}}, kPaths[0],
        [&](TestRanks& test_ranks) {
          call_everything(test_ranks, mix(seed, nodes.size()), true,
                          nodes.size() == 2 ? stride_of(nodes, 2, 4) : stride_of(nodes, 4, 12));
        },
        __LINE__);
  }
}

TEST_CASE("collectives of large messages of GPUs, whose rounds overlap, are right",
          "[req:3.16][req:3.18]") {
  const std::uint64_t seed = test_seed();
  WARN("ORIEL_TEST_SEED=" << seed);
  for (const Path& path : kPaths) {
    for (const Nodes& nodes : {Nodes{0, 1}, Nodes{0, 0, 1, 1}, Nodes{0, 1, 1}}) {
      if (is_left_out(path, nodes)) continue;
      run_gpus(
          nodes, {}, path,
          [&](TestRanks& test_ranks) {
            const std::size_t most = kGpus < 2 ? 1'200'000 : 5'000'000;
            Caller caller(test_ranks, (most + 8) * 4,
                          std::make_unique<GpuPlace>(test_ranks.first(), false));
            std::uint64_t step = seed;
            for (const Kind kind : {Kind::all_reduce, Kind::all_gather, Kind::reduce_scatter}) {
              for (const DataType type : {DataType::f32, DataType::bf16}) {
                Call call;
                call.kind = kind;
                call.type = type;
                call.count = most / (kind == Kind::all_reduce ? 1 : 4) - step % 1000;
                call.buffers = step % 2 == 0 ? Buffers::apart : Buffers::window_in_place;
                call.seed = ++step;
                caller.check(call, false);
              }
            }
            test_ranks.barrier();
          },
          __LINE__);
    }
  }
}

TEST_CASE("ranks of GPUs may leave as soon as their last call has ended", "[req:3.16]") {
  run_gpus(
      {0, 1}, {}, kPaths[1],
      [](TestRanks& test_ranks) {
        for (int i = 0; i < (kGpus < 2 ? 4 : 6); ++i) {
          Caller caller(test_ranks, 400'000, std::make_unique<GpuPlace>(test_ranks.first(), false));
          Call call;
          call.kind = static_cast<Kind>(i % 3);
          call.count = i < 3 ? 10 : 90'000;
          call.seed = static_cast<std::uint64_t>(i);
          caller.check(call, false);
        }
      },
      __LINE__);
}

}  // namespace oriel::test
