// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include "oriel/device/queue/region.hpp"
#include "oriel/device/queue/send_queue.hpp"

#include "base/task.hpp"
#include "base/try.hpp"
#include "boot/auth/socket_address.hpp"
#include "boot/link/rank_group.hpp"
#include "boot/session/rendezvous.hpp"
#include "comm/network/network_message.hpp"
#include "scale/model.hpp"
#include "scale/model_results.hpp"
#include "scale/modelled_all_reduce.hpp"
#include "scale/modelled_network.hpp"
#include "scale/modelled_start.hpp"
#include "scale/nic_turns.hpp"
#include "scale/wire_memory.hpp"
#include "topo/choice/rank_info.hpp"

namespace oriel::scale {

bench::Bench& results() {
  static bench::Bench bench(
      "scale_model",
      "models what one rank holds and waits for in communicators of up to 65,536 ranks: the "
      "library's own code\nfor the rendezvous, authentication, groups, links, layouts, plans and "
      "collectives, over a modelled network.\ndocs/scale.md is made of its output. Exit status: 0, "
      "2 after misuse.");
  return bench;
}

namespace {

constexpr std::uint64_t kMessages[] = {8, 64 << 10, 64 << 20};  // sizes of all-reduces, in bytes
/// Maximum number of bytes on all ranks together; --short skips larger all-reduces.
constexpr std::uint64_t kShortBytes = std::uint64_t{1} << 30;

double milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

double peak_gigabytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1e6;
}

/// Returns the groups of all ranks; they share one list of members.
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

/// Maximum over all ranks.
struct Most {
  std::uint64_t messages = 0, bytes = 0;
  Duration clock{};
};
Most most_of(const ModelledNetwork& network, int size) {
  Most most;
  for (int rank = 0; rank < size; ++rank) {
    const Endpoint& endpoint = network.endpoint(rank);
    most.messages = std::max(most.messages, endpoint.messages);
    most.bytes = std::max(most.bytes, endpoint.bytes);
    most.clock = std::max(most.clock, endpoint.clock);
  }
  return most;
}

void report_protocol(const char* name, int size, std::size_t payload,
                     const ModelledNetwork& network, bool ok) {
  const Most most = most_of(network, size);
  results().result(name, bench::Fields().add("ranks", size).add("payload_bytes", payload), "ms",
                   milliseconds(most.clock),
                   bench::Fields()
                       .add("ok", ok)
                       .add("messages_a_rank", most.messages)
                       .add("bytes_a_rank", most.bytes)
                       .add("host_gb", peak_gigabytes()));
}

/// Runs one barrier and one agreement of all ranks. Returns the milliseconds of the agreement.
double run_small_protocols(int size) {
  {
    ModelledNetwork network(size, Model{});
    auto groups = groups_of(network, size);
    std::vector<Task<Status>> tasks;
    tasks.reserve(groups.size());
    for (auto& group : groups) tasks.push_back(group.barrier(boot::Operation::test));
    const bool ok = network.run(tasks);
    report_protocol("barrier", size, 0, network, ok);
  }
  ModelledNetwork network(size, Model{});
  auto groups = groups_of(network, size);
  std::vector<Task<Status>> tasks;
  tasks.reserve(groups.size());
  for (auto& group : groups) {
    std::vector<boot::AgreedField> none;
    tasks.push_back(group.agree(boot::Operation::test, Status(), std::move(none)));
  }
  const bool ok = network.run(tasks);
  report_protocol("agreement", size, 0, network, ok);
  return milliseconds(most_of(network, size).clock);
}

/// Returns whether this machine can hold the data of all ranks of an all-gather.
bool fits_here(int size, std::size_t payload) {
  return static_cast<double>(size) * size * (static_cast<double>(payload) + 48) < 12e9;
}

/// Estimated cost of an all-gather for one rank. Each rank sends and receives the payload of every
/// other rank once, in ceil(log2 ranks) messages.
struct Estimate {
  double ms = 0;
  double bytes = 0;
};
Estimate estimate_all_gather(int size, std::size_t payload) {
  const Model model;
  const double bytes = static_cast<double>(size - 1) * static_cast<double>(payload + 4);
  const auto rounds = static_cast<int>(std::bit_width(static_cast<unsigned>(size - 1)));
  const Duration round = model.latency + 2 * model.message;
  return {bytes * model.nanoseconds_per_byte / 1e6 + rounds * milliseconds(round), bytes};
}

void report_estimate(const char* name, int size, std::size_t payload, const Estimate& estimate) {
  results().result(name, bench::Fields().add("ranks", size).add("payload_bytes", payload), "ms",
                   estimate.ms,
                   bench::Fields().add("estimated", true).add("bytes_a_rank", estimate.bytes));
}

/// Runs an all-gather of `payload` bytes per rank. If this machine cannot hold the data of all
/// ranks, it reports an estimate.
void run_all_gather(const char* name, int size, std::size_t payload) {
  if (!fits_here(size, payload)) {
    report_estimate(name, size, payload, estimate_all_gather(size, payload));
    return;
  }
  ModelledNetwork network(size, Model{});
  auto groups = groups_of(network, size);
  std::vector<Task<Result<std::vector<Bytes>>>> tasks;
  tasks.reserve(groups.size());
  for (auto& group : groups) {
    Bytes mine(payload);
    tasks.push_back(group.all_gather(boot::Operation::test, std::move(mine)));
  }
  const bool ok = network.run(tasks);
  report_protocol(name, size, payload, network, ok);
}

/// Sizes of messages of a start, from the library's encoders.
std::size_t topology_bytes() {
  return topo::encode(topo::RankInfo{}).size();
}
std::size_t hello_bytes() {
  comm::NetworkHello hello;
  hello.fabrics.emplace_back(96);
  hello.windows.keys.resize(2);
  return comm::encode(hello).size();
}
/// Returns the size of a message with two windows that were registered earlier.
std::size_t earlier_bytes() {
  comm::KeysMessage keys;
  keys.keys.resize(2);
  return comm::encode(keys).size();
}

/// Exchanges the messages with which ranks create their software NICs, in the order of
/// comm::SoftNetwork::make. First come places and hellos. After two agreements the windows
/// registered earlier follow.
Task<Status> make_network(boot::Group& group) {
  constexpr auto kOperation = boot::Operation::network;
  std::vector<boot::AgreedField> none[3];
  Bytes place = comm::encode(comm::NetworkPlace{});
  auto places = co_await group.all_gather(kOperation, std::move(place));
  if (!places.ok()) co_return std::move(places).error();
  Bytes hello(hello_bytes());
  auto hellos = co_await group.all_gather(kOperation, std::move(hello));
  if (!hellos.ok()) co_return std::move(hellos).error();
  ORIEL_CO_CHECK(co_await group.agree(kOperation, Status(), std::move(none[0])));
  ORIEL_CO_CHECK(co_await group.agree(kOperation, Status(), std::move(none[1])));
  hellos.value() = {};
  Bytes earlier(earlier_bytes());
  auto windows = co_await group.all_gather(kOperation, std::move(earlier));
  if (!windows.ok()) co_return std::move(windows).error();
  co_return co_await group.agree(kOperation, Status(), std::move(none[2]));
}

/// Runs the creation of the network. `agreement_ms`: time of one agreement of the same number of
/// ranks.
void run_network(int size, double agreement_ms) {
  const std::size_t payloads[] = {comm::encode(comm::NetworkPlace{}).size(), hello_bytes(),
                                  earlier_bytes()};
  std::size_t payload = 0;
  for (const std::size_t each : payloads) payload += each;
  if (!fits_here(size, hello_bytes())) {
    Estimate all{3 * agreement_ms, 0};
    for (const std::size_t each : payloads) {
      const Estimate part = estimate_all_gather(size, each);
      all.ms += part.ms;
      all.bytes += part.bytes;
    }
    report_estimate("network", size, payload, all);
    return;
  }
  ModelledNetwork network(size, Model{});
  auto groups = groups_of(network, size);
  std::vector<Task<Status>> tasks;
  tasks.reserve(groups.size());
  for (auto& group : groups) tasks.push_back(make_network(group));
  const bool ok = network.run(tasks);
  report_protocol("network", size, payload, network, ok);
}

void report_holdings(int size) {
  const int others = size - std::min(size, kRanksOfNode);
  const std::size_t links = boot::link_neighbours(0, size).size();
  const double queue_kib = 40.0 * others;  // comm/network/network_soft.hpp
  const double ring_mib = 0.5 * others;    // shared memory, if peers are on this machine
  const double regions = static_cast<double>(sizeof(device::queue::Region)) * size;
  results().result(
      "holdings", bench::Fields().add("ranks", size), "MiB", queue_kib / 1024,
      bench::Fields()
          .add("links", links)
          .add("queues", others)
          .add("ring_mib_if_near", ring_mib)
          .add("view_kib", static_cast<double>(sizeof(device::queue::QueueView)) * size / 1024)
          .add("keys_of_a_window_kib", regions / 1024)
          .add("hello_bytes", hello_bytes())
          .add("hellos_mib", static_cast<double>(hello_bytes()) * size / (1 << 20)));
}

/// Measures from the moment at which all ranks begin to join until the last rank has joined.
void run_start(int size, int turn) {
  const bool gathers = fits_here(size, boot::SocketAddress::kEncodedBytes);
  ModelledStart start(size, Model{}, gathers, turn);
  const bool ok = start.run();
  const Most most = most_of(start.network(), size);
  const Endpoint& root = start.network().endpoint(start.root());
  results().result(
      "start",
      bench::Fields().add("ranks", size).add("gathers_addresses", gathers).add("root_turn", turn),
      "ms", milliseconds(most.clock),
      bench::Fields()
          .add("ok", ok)
          .add("linked_ms", milliseconds(start.linked()))
          .add("links", start.most_links())
          .add("messages_a_rank", most.messages)
          .add("bytes_a_rank", most.bytes)
          .add("root_connections", start.root_connections())
          .add("root_messages", root.messages)
          .add("root_bytes", root.bytes)
          .add("root_processor_ms_here", start.root_processor().count() * 1e3));
}

/// Reports the maximum number of ranks for which an all-reduce of this size is not refused.
void report_limit(std::uint64_t bytes) {
  int most = 1, refused = 65536 / kRanksOfNode + 1;
  while (refused - most > 1) {
    const int nodes = (most + refused) / 2;
    (plan_all_reduce(nodes * kRanksOfNode, bytes).ok() ? most : refused) = nodes;
  }
  results().result("limit", bench::Fields().add("bytes", bytes), "ranks", most * kRanksOfNode);
}

void report_all_reduce(int size, std::uint64_t bytes) {
  const auto plan = plan_all_reduce(size, bytes);
  const auto parameters = bench::Fields().add("ranks", size).add("bytes", bytes);
  if (!plan.ok()) {
    results().result("all_reduce", parameters, "ms", 0,
                     bench::Fields().add("refused", plan.error().message()));
    return;
  }
  const AllReduceRun run = run_all_reduce(size, bytes, plan.value(), Model{});
  results().result("all_reduce", parameters, "ms", milliseconds(run.time),
                   bench::Fields()
                       .add("ok", run.ok)
                       .add("one_hop", plan->one_hop)
                       .add("rounds", plan->rounds)
                       .add("unit_bytes", plan->shape.unit * plan->shape.element_bytes)
                       .add("wqes_a_rank", run.wqes)
                       .add("messages_a_rank", run.messages)
                       .add("bytes_a_rank", run.bytes)
                       .add("host_gb", peak_gigabytes()));
}

void model(int size, bool is_short, int turn) {
  report_holdings(size);
  run_start(size, turn);
  const double agreement_ms = run_small_protocols(size);
  run_all_gather("addresses", size, boot::SocketAddress::kEncodedBytes);
  run_all_gather("topology", size, topology_bytes());
  run_network(size, agreement_ms);
  for (const std::uint64_t bytes : kMessages) {
    const std::uint64_t all = bytes * static_cast<std::uint64_t>(size);
    if (!is_short || all <= kShortBytes) report_all_reduce(size, bytes);
  }
}

}  // namespace
}  // namespace oriel::scale

int main(int argc, char** argv) {
  using namespace oriel;
  std::vector<std::int64_t> ranks = {16, 256, 4096, 65536};
  std::int64_t turn = scale::kTurnMost;
  bool is_short = false;
  bench::Bench& bench = scale::results();
  bench.flag("--ranks", ranks, 2, 65536, "sizes of communicators");
  bench.flag("--turn", turn, 1, 1 << 20,
             "messages that the root service takes between two looks at the clock");
  bench.flag("--short", is_short,
             "without large all-reduces among many ranks and without wires of libfabric");
  if (const auto status = bench.parse(argc, argv)) return *status;
  // Runs these first, while this process is small.
  for (const std::int64_t size : ranks) {
    if (!is_short) scale::report_wire(static_cast<int>(size));
    scale::report_nic_turn(static_cast<int>(size));
  }
  for (const std::int64_t size : ranks) {
    scale::model(static_cast<int>(size), is_short, static_cast<int>(turn));
  }
  for (const std::uint64_t bytes : scale::kMessages) scale::report_limit(bytes);
  return 0;
}
