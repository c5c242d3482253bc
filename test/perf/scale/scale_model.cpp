// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
/// What one rank holds and waits for in communicators of up to 65,536 ranks: the library's own code
/// for groups, links, layouts and plans, over a modelled network. Prints one JSON object a line;
/// docs/scale.md is made of its output.
///
/// usage: scale_model [RANKS...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>

#include "oriel/device/queue/region.hpp"
#include "oriel/device/queue/send_queue.hpp"

#include "base/try.hpp"
#include "boot/group.hpp"
#include "boot/rendezvous.hpp"
#include "comm/network_message.hpp"
#include "kernels/hierarchy.hpp"
#include "topo/rank_info.hpp"

namespace oriel {
namespace {

using namespace std::chrono_literals;

constexpr int kRanksOfNode = 8;
constexpr std::uint64_t kMessages[] = {8, 64 << 10, 64 << 20};  // of all-reduces

/// A network of hosts: a message takes the sender's time to hand it over, waits until the sender's
/// link is free, and arrives after the latency. Constants of a data centre's Ethernet and TCP.
struct Model {
  Duration latency = 20us;
  Duration per_message = 2us;         // of the sender's processor
  double nanoseconds_per_byte = 0.5;  // one connection: 2 GB/s
};

/// `size` ranks in one thread. Each transport knows nothing but whom to hand a message to.
class ModelledNetwork {
 public:
  ModelledNetwork(int size, Model model) : model_(model) {
    for (int rank = 0; rank < size; ++rank) ranks_.push_back(std::make_unique<Rank>(*this, rank));
  }

  boot::Transport& transport(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  Duration now() const { return now_; }
  std::uint64_t messages(int rank) const { return ranks_[static_cast<std::size_t>(rank)]->sent; }
  std::uint64_t bytes(int rank) const { return ranks_[static_cast<std::size_t>(rank)]->bytes; }

  /// Runs one task of each rank to its end; false if some never end or one fails.
  template <class T>
  bool run(std::vector<Task<T>>& tasks) {
    for (auto& task : tasks) task.start();
    while (!events_.empty()) {
      Event event = events_.top();
      events_.pop();
      now_ = std::max(now_, event.when);
      Rank& rank = *ranks_[static_cast<std::size_t>(event.to)];
      rank.clock = std::max(rank.clock, event.when);
      rank.inbox[event.from].push_back(std::move(*event.message));
      if (rank.waiting) std::exchange(rank.waiting, nullptr).resume();
    }
    return std::all_of(tasks.begin(), tasks.end(),
                       [](auto& task) { return task.done() && task.take().ok(); });
  }

 private:
  struct Rank final : boot::Transport {
    Rank(ModelledNetwork& of, int number) : network(of), rank(number) {}

    Task<Status> send(int peer, Bytes message) override {
      ++sent;
      bytes += message.size();
      const Model& model = network.model_;
      clock += model.per_message;
      const auto transfer = Duration(static_cast<std::int64_t>(static_cast<double>(message.size()) *
                                                               model.nanoseconds_per_byte));
      link_free = std::max(link_free, clock) + transfer;
      network.events_.push({link_free + model.latency, network.order_++, peer, rank,
                            std::make_shared<Bytes>(std::move(message))});
      co_return Status();
    }
    Task<Result<Bytes>> receive(int peer) override {
      auto& messages = inbox[peer];
      while (messages.empty()) co_await Park{this};
      Bytes message = std::move(messages.front());
      messages.pop_front();
      co_return message;
    }

    struct Park {
      Rank* rank;
      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<> handle) const noexcept { rank->waiting = handle; }
      void await_resume() const noexcept {}
    };

    ModelledNetwork& network;
    int rank;
    std::coroutine_handle<> waiting = nullptr;
    Duration clock{};      // this rank's own time
    Duration link_free{};  // when its link can take the next message
    std::uint64_t sent = 0, bytes = 0;
    std::map<int, std::deque<Bytes>> inbox;
  };
  struct Event {
    Duration when;
    std::uint64_t order;
    int to;
    int from;
    std::shared_ptr<Bytes> message;
    bool operator<(const Event& other) const {
      return std::pair(when, order) > std::pair(other.when, other.order);
    }
  };

  Model model_;
  Duration now_{};
  std::uint64_t order_ = 0;
  std::priority_queue<Event> events_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

double milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

double peak_gigabytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1e6;
}

/// The groups of all ranks; the list of members is one for all.
std::vector<boot::Group> groups_of(ModelledNetwork& network, int size) {
  auto members = std::make_shared<std::vector<int>>(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) (*members)[static_cast<std::size_t>(i)] = i;
  std::vector<boot::Group> groups;
  groups.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    groups.push_back(boot::Group::sharing(network.transport(rank), members, rank));
  }
  return groups;
}

void print_protocol(const char* name, int size, std::size_t payload, const ModelledNetwork& network,
                    bool ok) {
  std::uint64_t messages = 0, bytes = 0;
  for (int rank = 0; rank < size; ++rank) {
    messages = std::max(messages, network.messages(rank));
    bytes = std::max(bytes, network.bytes(rank));
  }
  fmt::print(
      "{{\"kind\": \"protocol\", \"name\": \"{}\", \"ranks\": {}, \"payload_bytes\": {}, \"ok\": "
      "{}, \"ms\": {:.3f}, \"messages_a_rank\": {}, \"bytes_a_rank\": {}, \"host_gb\": {:.1f}}}\n",
      name, size, payload, ok, milliseconds(network.now()), messages, bytes, peak_gigabytes());
  std::fflush(stdout);
}

/// One agreement or barrier of all ranks.
void run_small_protocols(int size) {
  {
    ModelledNetwork network(size, Model{});
    auto groups = groups_of(network, size);
    std::vector<Task<Status>> tasks;
    for (auto& group : groups) tasks.push_back(group.barrier(boot::Operation::test));
    const bool ok = network.run(tasks);
    print_protocol("barrier", size, 0, network, ok);
  }
  ModelledNetwork network(size, Model{});
  auto groups = groups_of(network, size);
  std::vector<Task<Status>> tasks;
  for (auto& group : groups) {
    std::vector<boot::AgreedField> none;
    tasks.push_back(group.agree(boot::Operation::test, Status(), std::move(none)));
  }
  const bool ok = network.run(tasks);
  print_protocol("agreement", size, 0, network, ok);
}

/// A gathering of `payload` bytes of each rank, if this machine can hold what all ranks would.
void run_gathering(const char* name, int size, std::size_t payload) {
  const double held = static_cast<double>(size) * size * (static_cast<double>(payload) + 48);
  if (held > 12e9) {
    // Each rank sends and receives all but its own once, in ceil(log2) messages: as the runs of
    // fewer ranks show.
    const double bytes = static_cast<double>(size - 1) * static_cast<double>(payload + 4);
    fmt::print(
        "{{\"kind\": \"protocol\", \"name\": \"{}\", \"ranks\": {}, \"payload_bytes\": {}, "
        "\"reckoned\": true, \"ms\": {:.3f}, \"bytes_a_rank\": {:.0f}}}\n",
        name, size, payload, bytes * Model{}.nanoseconds_per_byte / 1e6 + 0.022 * 16, bytes);
    return;
  }
  ModelledNetwork network(size, Model{});
  auto groups = groups_of(network, size);
  std::vector<Task<Result<std::vector<Bytes>>>> tasks;
  for (auto& group : groups) {
    Bytes mine(payload);
    tasks.push_back(group.all_gather(boot::Operation::test, std::move(mine)));
  }
  const bool ok = network.run(tasks);
  print_protocol(name, size, payload, network, ok);
}

/// Messages of a start, as their encoders make them.
std::size_t topology_bytes() {
  return topo::encode(topo::RankInfo{}).size();
}
std::size_t hello_bytes() {
  comm::NetworkHello hello;
  hello.fabrics.emplace_back(96);
  hello.windows.keys.resize(2);
  return comm::encode(hello).size();
}

void print_holdings(int size) {
  const int others = size - std::min(size, kRanksOfNode);
  const std::size_t links = boot::link_neighbours(0, size).size();
  const double queue_kib = 40.0 * others;  // comm/network.hpp
  const double ring_mib = 0.5 * others;    // shared memory, where peers are on this machine
  const double regions = static_cast<double>(sizeof(device::queue::Region)) * size;
  fmt::print(
      "{{\"kind\": \"holdings\", \"ranks\": {}, \"links\": {}, \"root_connections\": {}, "
      "\"queues\": {}, \"queue_mib\": {:.1f}, \"ring_mib_if_near\": {:.1f}, \"view_kib\": {:.1f}, "
      "\"keys_of_a_window_kib\": {:.1f}, \"hello_bytes\": {}, \"hellos_mib\": {:.1f}}}\n",
      size, links, size, others, queue_kib / 1024, ring_mib,
      static_cast<double>(sizeof(device::queue::QueueView)) * size / 1024, regions / 1024,
      hello_bytes(), static_cast<double>(hello_bytes()) * size / (1 << 20));
}

Result<kernels::HierarchyPlan> plan_of(int size, std::uint64_t bytes) {
  constexpr std::uint64_t kScratch = 16 << 20;  // what of it a CPU rank has for this
  std::vector<std::vector<int>> teams, singles;
  for (int rank = 0; rank < size; ++rank) {
    if (rank % kRanksOfNode == 0) teams.emplace_back();
    teams.back().push_back(rank);
    singles.push_back({rank});
  }
  const kernels::GroupingTables by_team(teams, 0), by_rank(singles, 0);
  ORIEL_TRY(const auto layout, kernels::make_hierarchy_layout(size, 0, kScratch));
  kernels::HierarchyFacts facts;
  facts.type = DataType::f32;
  facts.count = bytes / sizeof(float);
  return kernels::plan_hierarchy(facts, layout, by_team, by_rank);
}

/// The most nodes among which an all-reduce of this size is not refused.
void print_limit(std::uint64_t bytes) {
  int most = 1, refused = 65536 / kRanksOfNode + 1;
  while (refused - most > 1) {
    const int nodes = (most + refused) / 2;
    (plan_of(nodes * kRanksOfNode, bytes).ok() ? most : refused) = nodes;
  }
  fmt::print("{{\"kind\": \"limit\", \"bytes\": {}, \"ranks\": {}}}\n", bytes, most * kRanksOfNode);
}

/// How an all-reduce among nodes of 8 is cut up, and what one rank then sends.
void print_plan(int size, std::uint64_t bytes) {
  const auto plan = plan_of(size, bytes);
  if (!plan.ok()) {
    fmt::print("{{\"kind\": \"all_reduce\", \"ranks\": {}, \"bytes\": {}, \"refused\": \"{}\"}}\n",
               size, bytes, plan.error().message());
    return;
  }
  const auto& shape = plan->shape;
  const auto groups = static_cast<std::uint64_t>(shape.groups);
  // Sums to each other group and results back, of one unit each, by every lane.
  const std::uint64_t messages =
      plan->one_hop ? static_cast<std::uint64_t>(size - 1) : 2 * (groups - 1) * plan->rounds;
  const std::uint64_t message_bytes =
      plan->one_hop ? bytes : shape.unit * (shape.partial_bytes + shape.element_bytes) / 2;
  const Model model;
  const double wire = static_cast<double>(messages) *
                      (static_cast<double>(model.per_message.count()) +
                       static_cast<double>(message_bytes) * model.nanoseconds_per_byte);
  const double trips = static_cast<double>(model.latency.count()) * (plan->one_hop ? 1 : 2);
  fmt::print(
      "{{\"kind\": \"all_reduce\", \"ranks\": {}, \"bytes\": {}, \"one_hop\": {}, \"rounds\": {}, "
      "\"unit_bytes\": {}, \"messages_a_rank\": {}, \"ms\": {:.3f}}}\n",
      size, bytes, plan->one_hop, plan->rounds, shape.unit * shape.element_bytes, messages,
      (wire + trips) / 1e6);
}

void model(int size) {
  print_holdings(size);
  run_small_protocols(size);
  run_gathering("addresses", size, 28);
  run_gathering("topology", size, topology_bytes());
  run_gathering("network", size, hello_bytes());
  for (const std::uint64_t bytes : kMessages) print_plan(size, bytes);
}

}  // namespace
}  // namespace oriel

int main(int argc, char** argv) {
  std::vector<int> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {16, 256, 4096, 65536};
  for (const int size : sizes) {
    if (size < 1 || size > 65536) {
      std::fprintf(stderr, "RANKS is 1 to 65536\n");
      return 2;
    }
    oriel::model(size);
  }
  for (const std::uint64_t bytes : oriel::kMessages) oriel::print_limit(bytes);
  return 0;
}
