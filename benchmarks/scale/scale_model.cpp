// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
/// What one rank holds and waits for in communicators of up to 65,536 ranks: the library's own code
/// for the rendezvous, proofs, groups, links, layouts, plans and collectives, over a modelled
/// network. Prints one JSON object a line; docs/scale.md is made of its output.
///
/// usage: scale_model [--short] [--turn=MESSAGES] [RANKS...]
/// --short: without large all-reduces among many ranks and without wires of libfabric.
/// --turn: how many messages the root service takes between two looks at the clock, 128 at most.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
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
#include "scale/modelled_all_reduce.hpp"
#include "scale/modelled_network.hpp"
#include "scale/modelled_start.hpp"
#include "scale/nic_turns.hpp"
#include "scale/wire_memory.hpp"
#include "topo/choice/rank_info.hpp"

namespace oriel::scale {
namespace {

constexpr std::uint64_t kMessages[] = {8, 64 << 10, 64 << 20};  // of all-reduces
/// --short leaves out what has more bytes on all ranks together.
constexpr std::uint64_t kShortBytes = std::uint64_t{1} << 30;

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

/// Of any rank.
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

void print_protocol(const char* name, int size, std::size_t payload, const ModelledNetwork& network,
                    bool ok) {
  const Most most = most_of(network, size);
  fmt::print(
      "{{\"kind\": \"protocol\", \"name\": \"{}\", \"ranks\": {}, \"payload_bytes\": {}, \"ok\": "
      "{}, \"ms\": {:.3f}, \"messages_a_rank\": {}, \"bytes_a_rank\": {}, \"host_gb\": {:.1f}}}\n",
      name, size, payload, ok, milliseconds(most.clock), most.messages, most.bytes,
      peak_gigabytes());
  std::fflush(stdout);
}

/// One barrier and one agreement of all ranks. The milliseconds of the agreement.
double run_small_protocols(int size) {
  {
    ModelledNetwork network(size, Model{});
    auto groups = groups_of(network, size);
    std::vector<Task<Status>> tasks;
    tasks.reserve(groups.size());
    for (auto& group : groups) tasks.push_back(group.barrier(boot::Operation::test));
    const bool ok = network.run(tasks);
    print_protocol("barrier", size, 0, network, ok);
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
  print_protocol("agreement", size, 0, network, ok);
  return milliseconds(most_of(network, size).clock);
}

/// Whether this machine can hold what all ranks of a gathering would.
bool fits_here(int size, std::size_t payload) {
  return static_cast<double>(size) * size * (static_cast<double>(payload) + 48) < 12e9;
}

/// What the runs of fewer ranks show: each rank sends and receives all but its own once, in
/// ceil(log2) messages.
struct Reckoned {
  double ms = 0;
  double bytes = 0;
};
Reckoned reckon_gathering(int size, std::size_t payload) {
  const Model model;
  const double bytes = static_cast<double>(size - 1) * static_cast<double>(payload + 4);
  const auto rounds = static_cast<int>(std::bit_width(static_cast<unsigned>(size - 1)));
  const Duration round = model.latency + 2 * model.message;
  return {bytes * model.nanoseconds_per_byte / 1e6 + rounds * milliseconds(round), bytes};
}

void print_reckoned(const char* name, int size, std::size_t payload, const Reckoned& reckoned) {
  fmt::print(
      "{{\"kind\": \"protocol\", \"name\": \"{}\", \"ranks\": {}, \"payload_bytes\": {}, "
      "\"reckoned\": true, \"ms\": {:.3f}, \"bytes_a_rank\": {:.0f}}}\n",
      name, size, payload, reckoned.ms, reckoned.bytes);
}

/// A gathering of `payload` bytes of each rank, if this machine can hold what all ranks would.
void run_gathering(const char* name, int size, std::size_t payload) {
  if (!fits_here(size, payload)) {
    print_reckoned(name, size, payload, reckon_gathering(size, payload));
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
/// Two windows are there from before.
std::size_t earlier_bytes() {
  comm::KeysMessage keys;
  keys.keys.resize(2);
  return comm::encode(keys).size();
}

/// What ranks tell each other while their software NICs are made, in the order of
/// comm::SoftNetwork::make: places, hellos, and once all have agreed twice, the windows from
/// before.
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

/// `agreement_ms`: of one agreement of as many ranks.
void run_network(int size, double agreement_ms) {
  const std::size_t payloads[] = {comm::encode(comm::NetworkPlace{}).size(), hello_bytes(),
                                  earlier_bytes()};
  std::size_t payload = 0;
  for (const std::size_t each : payloads) payload += each;
  if (!fits_here(size, hello_bytes())) {
    Reckoned all{3 * agreement_ms, 0};
    for (const std::size_t each : payloads) {
      const Reckoned part = reckon_gathering(size, each);
      all.ms += part.ms;
      all.bytes += part.bytes;
    }
    print_reckoned("network", size, payload, all);
    return;
  }
  ModelledNetwork network(size, Model{});
  auto groups = groups_of(network, size);
  std::vector<Task<Status>> tasks;
  tasks.reserve(groups.size());
  for (auto& group : groups) tasks.push_back(make_network(group));
  const bool ok = network.run(tasks);
  print_protocol("network", size, payload, network, ok);
}

void print_holdings(int size) {
  const int others = size - std::min(size, kRanksOfNode);
  const std::size_t links = boot::link_neighbours(0, size).size();
  const double queue_kib = 40.0 * others;  // comm/network/network_soft.hpp
  const double ring_mib = 0.5 * others;    // shared memory, where peers are on this machine
  const double regions = static_cast<double>(sizeof(device::queue::Region)) * size;
  fmt::print(
      "{{\"kind\": \"holdings\", \"ranks\": {}, \"links\": {}, "
      "\"queues\": {}, \"queue_mib\": {:.1f}, \"ring_mib_if_near\": {:.1f}, \"view_kib\": {:.1f}, "
      "\"keys_of_a_window_kib\": {:.1f}, \"hello_bytes\": {}, \"hellos_mib\": {:.1f}}}\n",
      size, links, others, queue_kib / 1024, ring_mib,
      static_cast<double>(sizeof(device::queue::QueueView)) * size / 1024, regions / 1024,
      hello_bytes(), static_cast<double>(hello_bytes()) * size / (1 << 20));
}

/// From the moment at which all ranks begin to join until the last one has.
void run_start(int size, int turn) {
  const bool gathers = fits_here(size, boot::SocketAddress::kEncodedBytes);
  ModelledStart start(size, Model{}, gathers, turn);
  const bool ok = start.run();
  const Most most = most_of(start.network(), size);
  const Endpoint& root = start.network().endpoint(start.root());
  fmt::print(
      "{{\"kind\": \"start\", \"ranks\": {}, \"gathers_addresses\": {}, \"ok\": {}, \"linked_ms\": "
      "{:.3f}, \"ms\": {:.3f}, \"links\": {}, \"messages_a_rank\": {}, \"bytes_a_rank\": {}, "
      "\"root_connections\": {}, \"root_messages\": {}, \"root_bytes\": {}, "
      "\"root_turn\": {}, \"root_processor_ms_here\": {:.1f}}}\n",
      size, gathers, ok, milliseconds(start.linked()), milliseconds(most.clock), start.most_links(),
      most.messages, most.bytes, start.root_connections(), root.messages, root.bytes, turn,
      start.root_processor().count() * 1e3);
  std::fflush(stdout);
}

/// The most ranks among which an all-reduce of this size is not refused.
void print_limit(std::uint64_t bytes) {
  int most = 1, refused = 65536 / kRanksOfNode + 1;
  while (refused - most > 1) {
    const int nodes = (most + refused) / 2;
    (plan_all_reduce(nodes * kRanksOfNode, bytes).ok() ? most : refused) = nodes;
  }
  fmt::print("{{\"kind\": \"limit\", \"bytes\": {}, \"ranks\": {}}}\n", bytes, most * kRanksOfNode);
}

void print_all_reduce(int size, std::uint64_t bytes) {
  const auto plan = plan_all_reduce(size, bytes);
  if (!plan.ok()) {
    fmt::print("{{\"kind\": \"all_reduce\", \"ranks\": {}, \"bytes\": {}, \"refused\": \"{}\"}}\n",
               size, bytes, plan.error().message());
    return;
  }
  const AllReduceRun run = run_all_reduce(size, bytes, plan.value(), Model{});
  fmt::print(
      "{{\"kind\": \"all_reduce\", \"ranks\": {}, \"bytes\": {}, \"one_hop\": {}, \"rounds\": {}, "
      "\"unit_bytes\": {}, \"ok\": {}, \"ms\": {:.3f}, \"entries_a_rank\": {}, "
      "\"messages_a_rank\": {}, \"bytes_a_rank\": {}, \"host_gb\": {:.1f}}}\n",
      size, bytes, plan->one_hop, plan->rounds, plan->shape.unit * plan->shape.element_bytes,
      run.ok, milliseconds(run.time), run.entries, run.messages, run.bytes, peak_gigabytes());
  std::fflush(stdout);
}

void model(int size, bool is_short, int turn) {
  print_holdings(size);
  run_start(size, turn);
  const double agreement_ms = run_small_protocols(size);
  run_gathering("addresses", size, boot::SocketAddress::kEncodedBytes);
  run_gathering("topology", size, topology_bytes());
  run_network(size, agreement_ms);
  for (const std::uint64_t bytes : kMessages) {
    const std::uint64_t all = bytes * static_cast<std::uint64_t>(size);
    if (!is_short || all <= kShortBytes) print_all_reduce(size, bytes);
  }
}

}  // namespace
}  // namespace oriel::scale

int main(int argc, char** argv) {
  std::vector<int> sizes;
  bool is_short = false;
  int turn = oriel::scale::kTurnMost;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--short") {
      is_short = true;
    } else if (std::string_view(argv[i]).starts_with("--turn=")) {
      turn = std::atoi(argv[i] + std::string_view("--turn=").size());
    } else {
      sizes.push_back(std::atoi(argv[i]));
    }
  }
  if (turn < 1) {
    std::fprintf(stderr, "MESSAGES is 1 or more\n");
    return 2;
  }
  if (sizes.empty()) sizes = {16, 256, 4096, 65536};
  for (const int size : sizes) {
    if (size < 2 || size > 65536) {
      std::fprintf(stderr, "RANKS is 2 to 65536\n");
      return 2;
    }
  }
  // First, while this process is small.
  for (const int size : sizes) {
    if (!is_short) oriel::scale::print_wire(size);
    oriel::scale::print_nic_turn(size);
  }
  for (const int size : sizes) oriel::scale::model(size, is_short, turn);
  for (const std::uint64_t bytes : oriel::scale::kMessages) oriel::scale::print_limit(bytes);
  return 0;
}
