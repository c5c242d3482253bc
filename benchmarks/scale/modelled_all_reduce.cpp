// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "scale/modelled_all_reduce.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <ucontext.h>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/network.hpp"
#include "oriel/device/queue.hpp"

#include "base/alignment.hpp"
#include "base/try.hpp"
#include "kernels/algorithms/fold_sources.hpp"
#include "net/fabric/fabric_frame.hpp"
#include "net/wire/wire_format.hpp"

namespace oriel::scale {
namespace {

using device::queue::Region;

constexpr std::uint64_t kSlotBytes = std::uint64_t{4} << 30;  // address range of one rank
constexpr std::uint64_t kScratchBegin = 4096;  // offset of the scratch memory, after the doorbell
constexpr std::uint64_t kScratchBytes = 16 << 20;  // part of it for collectives among LSA teams
constexpr std::size_t kSmallBytesMost = 328;       // largest message that travels in a batch
constexpr std::size_t kStackBytes = 64 << 10;
constexpr std::uint64_t kPage = 4096;

/// One posted WQE: a put (only its length matters), or a word.
struct PostedWqe {
  std::int32_t peer;
  std::uint32_t bytes;
  std::uint64_t* address;  // null for a put
  std::uint64_t value;
};

struct Rank {
  ucontext_t context{};
  std::unique_ptr<std::byte[]> stack;
  Endpoint endpoint;
  std::vector<PostedWqe> posted;
  std::uint64_t wqes = 0;
  bool has_polled = false;  // has polled since its last post or store
  bool has_ended = false;
  bool succeeded = false;
  kernels::HierarchyArguments arguments;
};

/// Event at a rank: a word becomes visible, or a message without a word arrives.
struct Event {
  Duration when;
  std::uint64_t order;
  std::uint64_t* address;
  std::uint64_t value;
  std::int32_t to;
  bool is_message;
  bool operator<(const Event& other) const {
    return std::pair(when, order) > std::pair(other.when, other.order);
  }
};

/// Reserved addresses for every rank. Only the memory before the data slots is readable and
/// writable.
class AddressSpace {
 public:
  AddressSpace(int size, std::uint64_t usable)
      : bytes_(static_cast<std::size_t>(size) * kSlotBytes) {
    void* const got =
        ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) return;
    base_ = static_cast<char*>(got);
    const std::uint64_t pages = round_up(usable, kPage);
    for (int rank = 0; rank < size && is_good_; ++rank) {
      is_good_ = ::mprotect(slot(rank), pages, PROT_READ | PROT_WRITE) == 0;
    }
  }
  ~AddressSpace() {
    if (base_ != nullptr) ::munmap(base_, bytes_);
  }
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  bool is_good() const { return base_ != nullptr && is_good_; }
  char* slot(int rank) const { return base_ + static_cast<std::uint64_t>(rank) * kSlotBytes; }
  int rank_at(const void* address) const {
    return static_cast<int>(static_cast<std::uint64_t>(static_cast<const char*>(address) - base_) /
                            kSlotBytes);
  }

 private:
  std::size_t bytes_;
  char* base_ = nullptr;
  bool is_good_ = true;
};

/// All ranks. One rank runs at a time, until it can only wait.
class World {
 public:
  World(int size, const kernels::HierarchyLayout& layout, const Model& model)
      : model_(model),
        space_(size, layout.regions[0]),
        ranks_(static_cast<std::size_t>(size)),
        batches_(static_cast<std::size_t>(size)) {}

  bool is_good() const { return space_.is_good(); }
  char* slot(int rank) const { return space_.slot(rank); }
  Rank& rank(int number) { return ranks_[static_cast<std::size_t>(number)]; }
  Rank& running() { return ranks_[static_cast<std::size_t>(running_)]; }

  void run();

  // Fibers call the following functions.
  void post(std::int32_t peer, std::uint32_t bytes, std::uint64_t* address, std::uint64_t value) {
    running().posted.push_back({peer, bytes, address, value});
    running().has_polled = false;
  }
  void store_near(std::uint64_t* address, std::uint64_t value) {
    push({running().endpoint.clock + model_.store, 0, address, value, space_.rank_at(address),
          false});
    running().has_polled = false;
  }
  void spend_on(std::uint64_t bytes) {
    running().endpoint.clock += Duration(
        static_cast<std::int64_t>(static_cast<double>(bytes) * model_.nanoseconds_per_copied_byte));
  }
  /// Runs the NIC. If the rank has polled since its last post or store, it then waits.
  void relax();

 private:
  /// Small messages to one peer that have not left yet.
  struct Batch {
    std::size_t bytes = 0;
    std::size_t behind = 0;  // bytes of the payload that follows the batch
    std::vector<std::pair<std::uint64_t*, std::uint64_t>> words;
  };

  static void enter();
  void resume(int number);
  void leave() { swapcontext(&running().context, &home_); }
  void push(Event event) {
    event.order = order_++;
    events_.push(event);
  }
  void drive_nic();
  void send_batch(std::int32_t peer);

  const Model& model_;
  AddressSpace space_;
  std::vector<Rank> ranks_;
  std::vector<Batch> batches_;  // batches of the running rank, by peer
  std::vector<std::int32_t> with_batch_;
  std::priority_queue<Event> events_;
  std::uint64_t order_ = 0;
  int running_ = 0;
  ucontext_t home_{};
};

World* world = nullptr;  // the running world

/// Policies of the algorithm.
struct ModelThread : device::Thread {
  using Lead = ModelThread;
  static bool leads() { return true; }
};

struct ModelMemory : device::Memory {
  template <device::Order kOrder, device::Scope kScope = device::Scope::system, class T>
  static T load(const T* address) {
    world->running().has_polled = true;
    return device::Memory::load<kOrder, kScope>(address);
  }
  template <device::Order kOrder, device::Scope kScope = device::Scope::system>
  static void store(std::uint64_t* address, std::uint64_t value) {
    world->store_near(address, value);
  }
  static void relax() { world->relax(); }
  static std::uint64_t clock_ns() {
    return static_cast<std::uint64_t>(world->running().endpoint.clock.count());
  }
};

/// Advances the clock by the time that the copies and sums of a rank take.
class ModelOps {
 public:
  explicit ModelOps(const kernels::HierarchyArguments& arguments)
      : element_(arguments.plan.shape.element_bytes), sum_(arguments.plan.shape.partial_bytes) {}

  void begin() const {}
  void send(std::byte* /*to*/, std::uint64_t /*first*/, std::uint64_t count) const {
    world->spend_on(count * element_);
  }
  void copy(std::byte* /*to*/, const std::byte* /*from*/, std::uint64_t count) const {
    world->spend_on(count * element_);
  }
  void fold_inputs(std::byte* /*sums*/, const kernels::FoldSources& sources,
                   std::uint64_t count) const {
    world->spend_on(static_cast<std::uint64_t>(sources.count) * count * element_);
  }
  void fold_all(std::byte* to, const kernels::FoldSources& sources, std::uint64_t count) const {
    fold_inputs(to, sources, count);
  }
  void fold_sums(std::byte* /*to*/, const kernels::FoldSources& sources,
                 std::uint64_t count) const {
    world->spend_on(static_cast<std::uint64_t>(sources.count) * count * sum_);
  }

 private:
  std::uint64_t element_;
  std::uint64_t sum_;
};

}  // namespace
}  // namespace oriel::scale

// Redirects the algorithm's posts to the model instead of a ring.
namespace oriel::device::queue {

template <>
inline Posted put<scale::ModelThread, scale::ModelMemory>(scale::ModelThread /*group*/,
                                                          const QueueView& queue,
                                                          const Transfer& transfer,
                                                          const WaitControl& /*control*/) {
  if (!transfer.is_inside()) return {QueueOutcome::refused, 0};
  scale::world->post(queue.peer, static_cast<std::uint32_t>(transfer.bytes), nullptr, 0);
  return {};
}

template <>
inline Posted put_value<scale::ModelThread, std::uint64_t, scale::ModelMemory>(
    scale::ModelThread /*group*/, const QueueView& queue, const std::uint64_t& value,
    const Region& remote, std::uint64_t remote_offset, const WaitControl& /*control*/) {
  if (!remote.holds(remote_offset, sizeof value)) return {QueueOutcome::refused, 0};
  scale::world->post(queue.peer, sizeof value,
                     reinterpret_cast<std::uint64_t*>(remote.address + remote_offset), value);
  return {};
}

template <>
inline Posted put_with_value<scale::ModelThread, std::uint64_t, scale::ModelMemory>(
    scale::ModelThread group, const QueueView& queue, const Transfer& transfer,
    const std::uint64_t& value, std::uint64_t value_offset, const WaitControl& control) {
  using Memory = scale::ModelMemory;
  const Posted data = put<scale::ModelThread, Memory>(group, queue, transfer, control);
  if (data.outcome != QueueOutcome::done) return data;
  return put_value<scale::ModelThread, std::uint64_t, Memory>(group, queue, value, transfer.remote,
                                                              value_offset, control);
}

template <>
inline Posted put_bytes_with_value<scale::ModelThread, std::uint64_t, scale::ModelMemory>(
    scale::ModelThread group, const QueueView& queue, const void* /*from*/, std::uint64_t count,
    const Region& remote, std::uint64_t remote_offset, const std::uint64_t& value,
    std::uint64_t value_offset, const WaitControl& control) {
  if (!remote.holds(remote_offset, count)) return {QueueOutcome::refused, 0};
  scale::world->post(queue.peer, static_cast<std::uint32_t>(count), nullptr, 0);
  return put_value<scale::ModelThread, std::uint64_t, scale::ModelMemory>(
      group, queue, value, remote, value_offset, control);
}

}  // namespace oriel::device::queue

#include "kernels/algorithms/hierarchy.hpp"

namespace oriel::scale {
namespace {

void World::enter() {
  Rank& self = world->running();
  self.succeeded = kernels::Hierarchy<ModelThread, ModelOps, ModelMemory>(self.arguments).run();
  world->drive_nic();
  self.has_ended = true;
  world->leave();
}

void World::resume(int number) {
  running_ = number;
  swapcontext(&home_, &rank(number).context);
}

void World::run() {
  world = this;
  for (int number = 0; number < static_cast<int>(ranks_.size()); ++number) {
    Rank& next = rank(number);
    next.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
    getcontext(&next.context);
    next.context.uc_stack.ss_sp = next.stack.get();
    next.context.uc_stack.ss_size = kStackBytes;
    next.context.uc_link = nullptr;
    makecontext(&next.context, &World::enter, 0);
    resume(number);
  }
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    Rank& next = rank(event.to);
    if (event.is_message) {
      next.endpoint.receive(model_, event.when);
    } else {
      next.endpoint.clock = std::max(next.endpoint.clock, event.when);
    }
    if (event.address == nullptr) continue;
    device::Memory::store<device::Order::relaxed>(event.address, event.value);
    if (!next.has_ended) resume(event.to);
  }
  world = nullptr;
}

void World::relax() {
  drive_nic();
  if (running().has_polled) leave();
}

void World::drive_nic() {
  Rank& self = running();
  for (const PostedWqe& wqe : self.posted) {
    Batch& batch = batches_[static_cast<std::size_t>(wqe.peer)];
    // The payload of a longer message follows the batch; a batch can have one such payload.
    const bool is_behind = wqe.bytes > kSmallBytesMost;
    const std::size_t bytes = net::kWireHeadBytesMost + (is_behind ? 0 : wqe.bytes);
    const bool is_full = batch.bytes + bytes > net::kBatchBytesMost;
    if (is_full || (is_behind && batch.behind != 0)) send_batch(wqe.peer);
    if (batch.bytes == 0) with_batch_.push_back(wqe.peer);
    batch.bytes += bytes;
    if (is_behind) batch.behind = wqe.bytes;
    if (wqe.address != nullptr) batch.words.emplace_back(wqe.address, wqe.value);
  }
  for (const std::int32_t peer : with_batch_) send_batch(peer);
  with_batch_.clear();
  self.wqes += self.posted.size();
  self.posted.clear();
}

void World::send_batch(std::int32_t peer) {
  Batch& batch = batches_[static_cast<std::size_t>(peer)];
  if (batch.bytes == 0) return;
  const Duration arrival =
      running().endpoint.send(model_, net::kFrameHeadBytes + batch.bytes + batch.behind);
  if (batch.words.empty()) push({arrival, 0, nullptr, 0, peer, true});
  for (std::size_t i = 0; i < batch.words.size(); ++i) {
    push({arrival, 0, batch.words[i].first, batch.words[i].second, peer, i == 0});
  }
  batch.bytes = batch.behind = 0;
  batch.words.clear();
}

std::vector<std::vector<int>> nodes_of(int size, int ranks_of_node) {
  std::vector<std::vector<int>> nodes;
  for (int rank = 0; rank < size; ++rank) {
    if (rank % ranks_of_node == 0) nodes.emplace_back();
    nodes.back().push_back(rank);
  }
  return nodes;
}

kernels::HierarchyFacts facts_of(std::uint64_t bytes) {
  kernels::HierarchyFacts facts;
  facts.type = DataType::f32;
  facts.count = bytes / sizeof(float);
  return facts;
}

/// Facts that all ranks know of each other, as the communicator passes them to the algorithm.
class Surroundings {
 public:
  Surroundings(const World& all, int size, int group_size)
      : size_(size),
        group_size_(group_size),
        groups_(nodes_of(size, group_size), 0),
        queues_(static_cast<std::size_t>(size)),
        regions_(queues_.size()),
        windows_(queues_.size()) {
    for (std::size_t at = 0; at < queues_.size(); ++at) {
      queues_[at].peer = static_cast<std::int32_t>(at);
      regions_[at].address = reinterpret_cast<std::uint64_t>(all.slot(queues_[at].peer));
      regions_[at].bytes = kScratchBegin + kScratchBytes;
      windows_[at].local = regions_[at];
      windows_[at].peers = regions_.data();
      const std::size_t node = at / kRanksOfNode;
      if (at % kRanksOfNode == 0) indexes_.emplace_back(queues_.size(), -1);
      indexes_[node][at] = static_cast<std::int32_t>(at % kRanksOfNode);
    }
    network_.world_size = size;
    network_.queues = queues_.data();
  }
  Surroundings(const Surroundings&) = delete;
  Surroundings& operator=(const Surroundings&) = delete;

  void describe(const World& all, int rank, kernels::HierarchyArguments& call) const {
    call.grouping = groups_.view();
    call.grouping.own = rank / group_size_;
    call.grouping.own_index = rank % group_size_;
    const int node = rank / kRanksOfNode;
    call.comm.world_rank = rank;
    call.comm.world_size = size_;
    call.comm.lsa_rank = rank % kRanksOfNode;
    call.comm.lsa_size = std::min(kRanksOfNode, size_ - node * kRanksOfNode);
    call.comm.control_base = all.slot(node * kRanksOfNode);
    call.comm.control_stride_4g = 1;
    call.comm.lsa_index_of = indexes_[static_cast<std::size_t>(node)].data();
    call.comm.network = &network_;
    call.comm.control_network = &windows_[static_cast<std::size_t>(rank)];
    call.comm.wait.spin_ns = std::numeric_limits<std::uint32_t>::max();  // waits never sleep
  }

 private:
  int size_;
  int group_size_;
  kernels::GroupingTables groups_;
  std::vector<device::queue::QueueView> queues_;
  std::vector<Region> regions_;
  std::vector<device::NetworkWindow> windows_;
  std::vector<std::vector<std::int32_t>> indexes_;  // for each node, each rank's index in its node
  device::NetworkView network_;
};

}  // namespace

Result<kernels::HierarchyPlan> plan_all_reduce(int size, std::uint64_t bytes) {
  const kernels::GroupingTables by_team(nodes_of(size, kRanksOfNode), 0);
  const kernels::GroupingTables by_rank(nodes_of(size, 1), 0);
  ORIEL_TRY(const auto layout, kernels::make_hierarchy_layout(size, kScratchBegin, kScratchBytes));
  return kernels::plan_hierarchy(facts_of(bytes), layout, by_team, by_rank);
}

AllReduceRun run_all_reduce(int size, std::uint64_t bytes, const kernels::HierarchyPlan& plan,
                            const Model& model) {
  const auto layout = kernels::make_hierarchy_layout(size, kScratchBegin, kScratchBytes);
  if (!layout.ok()) return {};
  World all(size, layout.value(), model);
  if (!all.is_good()) return {};
  const bool by_rank = plan.grouped_by == kernels::GroupedBy::rank;
  const Surroundings around(all, size, by_rank ? 1 : kRanksOfNode);
  for (int rank = 0; rank < size; ++rank) {
    kernels::HierarchyArguments& call = all.rank(rank).arguments;
    call.type = DataType::f32;
    call.input = call.output = reinterpret_cast<std::byte*>(all.slot(rank));  // never accessed
    call.count = facts_of(bytes).count;
    call.plan = plan;
    call.layout = layout.value();
    around.describe(all, rank, call);
  }
  all.run();

  AllReduceRun result;
  result.ok = true;
  for (int rank = 0; rank < size; ++rank) {
    const Rank& ended = all.rank(rank);
    result.ok = result.ok && ended.has_ended && ended.succeeded;
    result.time = std::max(result.time, ended.endpoint.clock);
    result.messages = std::max(result.messages, ended.endpoint.messages);
    result.bytes = std::max(result.bytes, ended.endpoint.bytes);
    result.wqes = std::max(result.wqes, ended.wqes);
  }
  return result;
}

}  // namespace oriel::scale
