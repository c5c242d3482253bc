// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/network.hpp"
#include "oriel/device/queue.hpp"

#include "kernels/host/hierarchy_ops_host.hpp"
#include "kernels/plan/plan_values.hpp"

/// Tests Hierarchy among ranks that are threads, each on a node of its own (3.16). The wire copies
/// data only when the receiver polls. If a rank overwrites data too early, the wrong bytes arrive.
namespace oriel::test {
namespace {

using device::queue::Region;

/// One posted WQE: `from` is read on delivery, unless `inside` holds inline bytes.
struct PostedWqe {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::uint64_t bytes = 0;
  std::vector<std::byte> inside;
};

class LazyWire {
 public:
  explicit LazyWire(int ranks) : ranks_(ranks), queues_(static_cast<std::size_t>(ranks * ranks)) {}

  void post(int from, int to, PostedWqe wqe) {
    const std::lock_guard lock(mutex_);
    queue(from, to).push_back(std::move(wqe));
  }
  /// Delivers at most one WQE from each rank, each with a probability of one half. The receiver
  /// calls it.
  void deliver(int to, std::mt19937& rng) {
    const std::lock_guard lock(mutex_);
    for (int from = 0; from < ranks_; ++from) {
      auto& queue_of = queue(from, to);
      if (queue_of.empty() || rng() % 2 == 0) continue;
      const PostedWqe& wqe = queue_of.front();
      const std::byte* const source = wqe.inside.empty() ? wqe.from : wqe.inside.data();
      std::memcpy(wqe.to, source, wqe.bytes);
      queue_of.pop_front();
    }
  }

 private:
  std::deque<PostedWqe>& queue(int from, int to) {
    return queues_[static_cast<std::size_t>(from * ranks_ + to)];
  }
  int ranks_;
  std::mutex mutex_;
  std::vector<std::deque<PostedWqe>> queues_;
};

/// State of the rank that the calling thread runs.
struct Self {
  int rank = 0;
  LazyWire* wire = nullptr;
  std::mt19937 rng;
  const std::byte* scratch = nullptr;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t copied = 0;  ///< bytes that the ops have written into the scratch memory
};
thread_local Self* self = nullptr;

struct WireThread : device::Thread {
  using Lead = WireThread;
  static bool leads() { return true; }
};

struct WireMemory : device::Memory {
  static void relax() {
    self->wire->deliver(self->rank, self->rng);
    std::this_thread::yield();
  }
};

/// Counts the bytes that are written into the rank's own scratch memory.
class CountingOps : public kernels::HostHierarchyOps {
 public:
  explicit CountingOps(const kernels::HierarchyArguments& arguments)
      : HostHierarchyOps(arguments),
        element_(arguments.plan.shape.element_bytes),
        sum_(arguments.plan.shape.partial_bytes) {}

  void send(std::byte* to, std::uint64_t first, std::uint64_t count) const {
    note(to, count * element_);
    HostHierarchyOps::send(to, first, count);
  }
  void copy(std::byte* to, const std::byte* from, std::uint64_t count) const {
    note(to, count * element_);
    HostHierarchyOps::copy(to, from, count);
  }
  void fold_inputs(std::byte* to, const kernels::FoldSources& sources, std::uint64_t count) const {
    note(to, count * sum_);
    HostHierarchyOps::fold_inputs(to, sources, count);
  }

 private:
  static void note(const std::byte* to, std::uint64_t bytes) {
    if (to >= self->scratch && to < self->scratch + self->scratch_bytes) self->copied += bytes;
  }
  std::uint64_t element_;
  std::uint64_t sum_;
};

}  // namespace
}  // namespace oriel::test

// Specialises the queue's functions, so that posts go to the wire above instead of a ring.
namespace oriel::device::queue {

template <>
inline Posted put<test::WireThread, test::WireMemory>(test::WireThread /*group*/,
                                                      const QueueView& queue,
                                                      const Transfer& transfer,
                                                      const WaitControl& /*control*/) {
  if (!transfer.is_inside()) return {QueueOutcome::refused, 0};
  const auto from = transfer.local.address + transfer.local_offset;
  const auto to = transfer.remote.address + transfer.remote_offset;
  test::self->wire->post(test::self->rank, queue.peer,
                         {.from = reinterpret_cast<const std::byte*>(from),
                          .to = reinterpret_cast<std::byte*>(to),
                          .bytes = transfer.bytes});
  return {};
}

template <>
inline Posted put_bytes<test::WireThread, test::WireMemory>(
    test::WireThread /*group*/, const QueueView& queue, const void* from, std::uint64_t count,
    const Region& remote, std::uint64_t remote_offset, const WaitControl& /*control*/) {
  if (!remote.holds(remote_offset, count)) return {QueueOutcome::refused, 0};
  const auto* const bytes = static_cast<const std::byte*>(from);
  test::self->wire->post(test::self->rank, queue.peer,
                         {.to = reinterpret_cast<std::byte*>(remote.address + remote_offset),
                          .bytes = count,
                          .inside = {bytes, bytes + count}});
  return {};
}

template <>
inline Posted put_value<test::WireThread, std::uint64_t, test::WireMemory>(
    test::WireThread group, const QueueView& queue, const std::uint64_t& value,
    const Region& remote, std::uint64_t remote_offset, const WaitControl& control) {
  return put_bytes<test::WireThread, test::WireMemory>(group, queue, &value, sizeof value, remote,
                                                       remote_offset, control);
}

template <>
inline Posted put_with_value<test::WireThread, std::uint64_t, test::WireMemory>(
    test::WireThread group, const QueueView& queue, const Transfer& transfer,
    const std::uint64_t& value, std::uint64_t value_offset, const WaitControl& control) {
  const Posted data = put<test::WireThread, test::WireMemory>(group, queue, transfer, control);
  if (data.outcome != QueueOutcome::done) return data;
  return put_value<test::WireThread, std::uint64_t, test::WireMemory>(
      group, queue, value, transfer.remote, value_offset, control);
}

template <>
inline Posted put_bytes_with_value<test::WireThread, std::uint64_t, test::WireMemory>(
    test::WireThread group, const QueueView& queue, const void* from, std::uint64_t count,
    const Region& remote, std::uint64_t remote_offset, const std::uint64_t& value,
    std::uint64_t value_offset, const WaitControl& control) {
  const Posted data = put_bytes<test::WireThread, test::WireMemory>(group, queue, from, count,
                                                                    remote, remote_offset, control);
  if (data.outcome != QueueOutcome::done) return data;
  return put_value<test::WireThread, std::uint64_t, test::WireMemory>(group, queue, value, remote,
                                                                      value_offset, control);
}

}  // namespace oriel::device::queue

#include "kernels/algorithms/hierarchy.hpp"
#include "support/seed.hpp"

namespace oriel::test {
namespace {

using kernels::Collective;
using kernels::kCollectives;

constexpr std::uint64_t kScratchBegin = 4096;
constexpr std::uint64_t kUnitBytes = 512;

struct Call {
  Collective collective = Collective::all_reduce;
  DataType type = DataType::i32;
  bool scales = false;
  std::uint64_t count = 0;
  bool in_place = false;
  bool in_windows = false;
  std::uint64_t seed = 0;

  std::uint64_t bytes() const { return count * size_of(type); }
  std::string text() const {
    return std::string(name_of(collective)) + " of " + std::to_string(count) + " x " +
           name_of(type) + (scales ? ", scaled" : "") + (in_place ? ", in place" : "") +
           (in_windows ? ", in windows" : "");
  }
};

/// Returns element i of a rank's input: an integer below 16, so that f32 and bf16 sum exactly.
int element_of(const Call& call, int rank, std::uint64_t i) {
  const std::uint64_t mixed =
      (call.seed + i * 7 + static_cast<std::uint64_t>(rank) * 13) * 2654435761u;
  return static_cast<int>(mixed >> 7 & 15);
}
void store_element(DataType type, std::byte* at, int value) {
  const auto number = static_cast<float>(value);
  if (type == DataType::i32) std::memcpy(at, &value, sizeof value);
  if (type == DataType::f32) std::memcpy(at, &number, sizeof number);
  // bf16 is the upper half of an f32.
  if (type == DataType::bf16) std::memcpy(at, reinterpret_cast<const std::byte*>(&number) + 2, 2);
}

/// State that all ranks share.
struct World {
  World(int size, bool by_rank, std::uint64_t scratch_bytes)
      : ranks(size), deterministic(by_rank), wire(size) {
    const auto made = kernels::make_hierarchy_layout(size, kScratchBegin, scratch_bytes);
    REQUIRE(made.ok());
    layout = made.value();
    for (int rank = 0; rank < size; ++rank) {
      scratch.emplace_back((kScratchBegin + scratch_bytes) / 64 + 1);
      regions.push_back({});
      regions.back().address = reinterpret_cast<std::uint64_t>(scratch.back().data());
      regions.back().bytes = kScratchBegin + scratch_bytes;
      nodes.push_back({by_rank ? size - 1 - rank : rank});
      singles.push_back({rank});
      queues.emplace_back();
      queues.back().peer = rank;
    }
    network.number = 1;
    network.world_size = size;
    network.queues = queues.data();
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  int ranks;
  bool deterministic;  // also reverses the nodes, so that inputs are sent, grouped by rank
  LazyWire wire;
  kernels::HierarchyLayout layout;
  std::vector<std::vector<Line>> scratch;
  std::vector<Region> regions;
  std::vector<std::vector<int>> nodes;
  std::vector<std::vector<int>> singles;
  std::vector<device::queue::QueueView> queues;
  device::NetworkView network;
};

class Rank {
 public:
  Rank(World& world, int rank, std::uint64_t seed)
      : world_(world),
        rank_(rank),
        nodes_(world.nodes, rank),
        singles_(world.singles, rank),
        near_(static_cast<std::size_t>(world.ranks), -1) {
    const auto at = static_cast<std::size_t>(rank);
    near_[at] = 0;
    control_.network = world.network.number;
    control_.local = world.regions[at];
    control_.peers = world.regions.data();
    self_.rank = rank;
    self_.wire = &world.wire;
    self_.rng.seed(static_cast<std::uint32_t>(seed + at));
    self_.scratch = world.scratch[at].front().bytes;
    self_.scratch_bytes = world.regions[at].bytes;
    self = &self_;
  }
  ~Rank() { self = nullptr; }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// Makes the call; returns an empty text if the result is right. Overwrites the buffers as soon
  /// as the call has ended.
  std::string make(const Call& call) {
    const auto ranks = static_cast<std::uint64_t>(world_.ranks);
    const std::uint64_t element = size_of(call.type);
    const bool scatters = call.collective == Collective::reduce_scatter;
    const bool gathers = call.collective == Collective::all_gather;
    const std::uint64_t own = static_cast<std::uint64_t>(rank_) * call.bytes();
    const std::uint64_t sent = scatters ? ranks * call.count : call.count;
    const std::uint64_t received = gathers ? ranks * call.count : call.count;
    buffer_.assign(2 * ranks * call.bytes() + 2 * kSkew, std::byte{0});
    std::byte* input = buffer_.data() + kSkew;
    std::byte* output = input + ranks * call.bytes();
    if (call.in_place) {
      output = input;
      if (gathers) input += own;
      if (scatters) output += own;
    }
    for (std::uint64_t i = 0; i < sent; ++i) {
      store_element(call.type, input + i * element, element_of(call, rank_, i));
    }
    const bool ran = run(call, input, output);
    const std::vector<std::byte> result(output, output + received * element);
    std::fill(buffer_.begin(), buffer_.end(), std::byte{0x7e});
    if (!ran) return call.text() + " was given up";
    for (std::uint64_t i = 0; i < received; ++i) {
      std::byte wanted[8] = {};
      store_element(call.type, wanted, wanted_of(call, i));
      if (std::memcmp(wanted, result.data() + i * element, element) == 0) continue;
      return call.text() + ": element " + std::to_string(i) + " of rank " + std::to_string(rank_);
    }
    return {};
  }

  std::uint64_t copied() const { return self_.copied; }
  std::uint64_t rounds() const { return rounds_; }

 private:
  static constexpr std::uint64_t kSkew = 64;

  int wanted_of(const Call& call, std::uint64_t i) const {
    if (call.collective == Collective::all_gather) {
      return element_of(call, static_cast<int>(i / call.count), i % call.count);
    }
    const bool scatters = call.collective == Collective::reduce_scatter;
    const std::uint64_t first = scatters ? static_cast<std::uint64_t>(rank_) * call.count : 0;
    int sum = 0;
    for (int rank = 0; rank < world_.ranks; ++rank) {
      sum += element_of(call, rank, first + i) * (call.scales ? rank + 1 : 1);
    }
    return sum;
  }

  bool run(const Call& call, const std::byte* input, std::byte* output) {
    kernels::HierarchyFacts facts;
    facts.collective = call.collective;
    facts.type = call.type;
    facts.count = call.count;
    facts.deterministic = world_.deterministic;
    facts.unit_bytes_most = kUnitBytes;
    const auto plan = kernels::plan_hierarchy(facts, world_.layout, nodes_, singles_);
    if (!plan.ok()) return false;
    kernels::HierarchyArguments arguments;
    arguments.collective = call.collective;
    arguments.type = call.type;
    arguments.op = call.scales ? ReduceOp::premul_sum : ReduceOp::sum;
    arguments.input = input;
    arguments.output = output;
    arguments.count = call.count;
    store_element(call.type, reinterpret_cast<std::byte*>(&arguments.scalar_bits), rank_ + 1);
    arguments.signature =
        static_cast<std::uint32_t>(call.seed * 2654435761u) & ((1u << kernels::kSignatureBits) - 1);
    arguments.plan = plan.value();
    const bool by_rank = plan->grouped_by == kernels::GroupedBy::rank;
    arguments.grouping = by_rank ? singles_.view() : nodes_.view();
    arguments.layout = world_.layout;
    arguments.comm.world_rank = rank_;
    arguments.comm.world_size = world_.ranks;
    arguments.comm.lsa_size = 1;
    arguments.comm.control_base =
        reinterpret_cast<char*>(world_.scratch[static_cast<std::size_t>(rank_)].data());
    arguments.comm.lsa_index_of = near_.data();
    arguments.comm.network = &world_.network;
    arguments.comm.control_network = &control_;
    arguments.comm.wait.timeout_ns = 20'000'000'000;
    arguments.comm.wait.spin_ns = 4'000'000'000;  // practically no sleep
    show_window(call, arguments);
    rounds_ = plan->rounds;
    return kernels::Hierarchy<WireThread, CountingOps, WireMemory>(arguments).run();
  }

  /// If the call uses windows, puts input and output into one window.
  void show_window(const Call& call, kernels::HierarchyArguments& arguments) {
    if (!call.in_windows) return;
    window_.local.address = reinterpret_cast<std::uint64_t>(buffer_.data());
    window_.local.bytes = buffer_.size();
    const auto source_at = [&](const std::byte* at) {
      return kernels::NicSource{&window_, static_cast<std::uint64_t>(at - buffer_.data())};
    };
    arguments.nic_input = source_at(arguments.input);
    arguments.nic_output = source_at(arguments.output);
  }

  World& world_;
  int rank_;
  kernels::GroupingTables nodes_;
  kernels::GroupingTables singles_;
  std::vector<std::int32_t> near_;
  device::NetworkWindow control_;
  device::NetworkWindow window_;
  std::vector<std::byte> buffer_;
  Self self_;
  std::uint64_t rounds_ = 0;
};

/// Runs `body(own, rank)` on a thread for each rank; `body` returns an error text or none.
template <class Body>
void on_ranks(World& world, std::uint64_t seed, const Body& body) {
  std::vector<std::string> wrong(static_cast<std::size_t>(world.ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < world.ranks; ++rank) {
      threads.emplace_back([&, rank] {
        Rank own(world, rank, seed);
        wrong[static_cast<std::size_t>(rank)] = body(own, rank);
      });
    }
  }
  for (const std::string& one : wrong) CHECK(one == "");
}

Call drawn_call(std::uint64_t drawn, int ranks) {
  constexpr DataType kTypesHere[] = {DataType::i32, DataType::f32, DataType::bf16};
  Call call;
  call.collective = kCollectives[drawn % 3];
  call.type = kTypesHere[drawn / 4 % 3];
  call.scales = drawn / 16 % 4 == 0 && call.collective != Collective::all_gather;
  const std::uint64_t most[] = {8, 500, 5'000};  // for inline bytes, one hop, several rounds
  call.count = 1 + drawn / 64 % most[drawn / 65'536 % 3];
  if (drawn / (1 << 20) % 4 == 0) call.count *= static_cast<std::uint64_t>(ranks);
  call.in_place = drawn / (1 << 22) % 2 == 0;
  call.seed = drawn;
  return call;
}

}  // namespace

TEST_CASE("nothing that the NIC has yet to read is overwritten", "[req:3.16]") {
  for (const int ranks : {2, 3}) {
    for (const bool by_rank : {false, true}) {
      const std::uint64_t seed = test_seed();
      INFO("ranks " << ranks << ", by rank " << by_rank);
      World world(ranks, by_rank, 1 << 20);
      on_ranks(world, seed, [&](Rank& own, int rank) {
        std::mt19937_64 calls(seed);
        for (int i = 0; i < 120; ++i) {
          const std::uint64_t drawn = calls();
          Call call = drawn_call(drawn, ranks);
          call.in_windows = (drawn >> (40 + rank) & 1) == 0;
          const std::string wrong = own.make(call);
          if (!wrong.empty()) return "call " + std::to_string(i) + ": " + wrong;
        }
        return std::string();
      });
    }
  }
}

TEST_CASE("data in a window are sent among teams without a copy", "[req:3.16]") {
  constexpr std::uint64_t kRanks = 2;
  constexpr std::uint64_t kRounds = 40;  // together more bytes than go in one hop
  constexpr std::uint64_t kLast = 2;  // last rounds, which no later round of the call acknowledges
  struct Case {
    Collective collective;
    DataType type;
    bool scales;
    std::uint64_t plain;    // units copied in all rounds, outside of windows
    std::uint64_t windows;  // units copied in all rounds, in windows
  };
  // An all-reduce sends one unit of input and one unit of results in each round.
  const Case cases[] = {
      {Collective::all_reduce, DataType::i32, false, 2 * kRounds, kLast},
      {Collective::all_reduce, DataType::i32, true, 2 * kRounds, kRounds + kLast},
      // Sums of bf16 take two units, this rank's own sums too. No input is sent without a copy.
      {Collective::all_reduce, DataType::bf16, false, 5 * kRounds, 4 * kRounds + kLast},
      {Collective::all_gather, DataType::i32, false, kRounds, kLast},
      {Collective::reduce_scatter, DataType::i32, false, kRounds, kLast},
  };
  for (const bool by_rank : {false, true}) {
    for (const Case& one : cases) {
      if (by_rank && one.type == DataType::bf16) continue;
      for (const bool in_windows : {false, true}) {
        for (const bool in_place : {false, true}) {
          World world(kRanks, by_rank, 1 << 20);
          on_ranks(world, 1, [&](Rank& own, int) {
            const bool shares = one.collective == Collective::all_reduce;
            const Call call{
                .collective = one.collective,
                .type = one.type,
                .scales = one.scales,
                .count = kRounds * (shares ? kRanks : 1) * kUnitBytes / size_of(one.type),
                .in_place = in_place,
                .in_windows = in_windows};
            const std::string wrong = own.make(call);
            if (!wrong.empty()) return wrong;
            const std::uint64_t wanted = (in_windows ? one.windows : one.plain) * kUnitBytes;
            if (own.rounds() == kRounds && own.copied() == wanted) return std::string();
            return call.text() + ": " + std::to_string(own.copied()) + " bytes copied in " +
                   std::to_string(own.rounds()) + " rounds instead of " + std::to_string(wanted);
          });
        }
      }
    }
  }
}

}  // namespace oriel::test
