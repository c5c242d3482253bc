// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/model/machine.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace oriel::topo {
namespace {

/// New indices of items: `place[old]` is the new index.
using Places = std::vector<int>;

/// Sorts `items` by `less` and returns the new index of each.
template <typename Item, typename Less>
Places sort_and_place(std::vector<Item>& items, const Less& less) {
  Places order(items.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](int index) -> const Item& { return items[static_cast<std::size_t>(index)]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return less(at(a), at(b)); });
  std::vector<Item> sorted;
  sorted.reserve(items.size());
  Places place(items.size());
  for (const int old : order) {
    place[static_cast<std::size_t>(old)] = static_cast<int>(sorted.size());
    sorted.push_back(std::move(items[static_cast<std::size_t>(old)]));
  }
  items = std::move(sorted);
  return place;
}

void move_index(int& index, const Places& place) {
  if (index >= 0) index = place[static_cast<std::size_t>(index)];
}

/// Returns by node its address or the lowest one below it: host bridges may have no address.
std::vector<PciAddress> lowest_addresses(const std::vector<PciNode>& nodes) {
  constexpr PciAddress kNone{UINT32_MAX, 0xff, 0xff, 0xff};
  std::vector<PciAddress> lowest(nodes.size(), kNone);
  for (std::size_t i = nodes.size(); i-- > 0;) {  // parents precede their children
    lowest[i] = std::min(lowest[i], nodes[i].address.value_or(kNone));
    if (nodes[i].parent < 0) continue;
    PciAddress& above = lowest[static_cast<std::size_t>(nodes[i].parent)];
    above = std::min(above, lowest[i]);
  }
  return lowest;
}

/// Sorts the nodes depth first, siblings by address.
Places place_pci_nodes(std::vector<PciNode>& nodes) {
  const std::vector<PciAddress> lowest = lowest_addresses(nodes);
  std::vector<std::vector<int>> children(nodes.size() + 1);  // the last entry: nodes without a
                                                             // parent
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto parent =
        nodes[i].parent < 0 ? nodes.size() : static_cast<std::size_t>(nodes[i].parent);
    children[parent].push_back(static_cast<int>(i));
  }
  const auto later = [&](int a, int b) {
    const auto key = [&](int index) {
      const auto i = static_cast<std::size_t>(index);
      return std::tuple(lowest[i], nodes[i].numa, nodes[i].kind);
    };
    return key(b) < key(a);
  };
  Places place(nodes.size());
  std::vector<PciNode> sorted;
  sorted.reserve(nodes.size());
  std::vector<int> open = children.back();
  std::stable_sort(open.begin(), open.end(), later);
  while (!open.empty()) {
    const auto next = static_cast<std::size_t>(open.back());
    open.pop_back();
    place[next] = static_cast<int>(sorted.size());
    sorted.push_back(nodes[next]);
    std::vector<int>& below = children[next];
    std::stable_sort(below.begin(), below.end(), later);
    open.insert(open.end(), below.begin(), below.end());
  }
  for (PciNode& node : sorted) move_index(node.parent, place);
  nodes = std::move(sorted);
  return place;
}

Places place_numa_nodes(std::vector<NumaNode>& nodes) {
  Places place = sort_and_place(
      nodes, [](const NumaNode& a, const NumaNode& b) { return a.os_index < b.os_index; });
  for (NumaNode& node : nodes) {
    if (node.distances.size() != place.size()) continue;
    std::vector<int> moved(place.size());
    for (std::size_t i = 0; i < place.size(); ++i) {
      moved[static_cast<std::size_t>(place[i])] = node.distances[i];
    }
    node.distances = std::move(moved);
  }
  return place;
}

}  // namespace

Machine canonical(Machine machine) {
  const Places numa = place_numa_nodes(machine.numa);
  for (PciNode& node : machine.pci) move_index(node.numa, numa);
  const Places pci = place_pci_nodes(machine.pci);
  for (Gpu& gpu : machine.gpus) {
    move_index(gpu.numa, numa);
    move_index(gpu.node, pci);
  }
  const Places gpus = sort_and_place(machine.gpus, [](const Gpu& a, const Gpu& b) {
    return std::tie(a.pci, a.mig_instance, a.partition, a.uuid, a.ordinal) <
           std::tie(b.pci, b.mig_instance, b.partition, b.uuid, b.ordinal);
  });
  for (GpuPair& pair : machine.pairs) {
    move_index(pair.from, gpus);
    move_index(pair.to, gpus);
  }
  sort_and_place(machine.pairs, [](const GpuPair& a, const GpuPair& b) {
    return std::tie(a.from, a.to) < std::tie(b.from, b.to);
  });
  for (Nic& nic : machine.nics) {
    move_index(nic.numa, numa);
    move_index(nic.node, pci);
  }
  sort_and_place(machine.nics, [](const Nic& a, const Nic& b) {
    return std::tie(a.pci, a.name, a.port) < std::tie(b.pci, b.name, b.port);
  });
  return machine;
}

const GpuPair* find_pair(const Machine& machine, int from, int to) {
  const auto is_it = [&](const GpuPair& pair) { return pair.from == from && pair.to == to; };
  const auto& pairs = machine.pairs;
  // In a canonical machine, binary search finds every pair.
  const auto place = std::lower_bound(
      pairs.begin(), pairs.end(), std::pair(from, to),
      [](const GpuPair& pair, const auto& key) { return std::pair(pair.from, pair.to) < key; });
  if (place != pairs.end() && is_it(*place)) return &*place;
  const auto found = std::find_if(pairs.begin(), pairs.end(), is_it);
  return found == pairs.end() ? nullptr : &*found;
}

int find_pci_node(const Machine& machine, const PciAddress& address) {
  const auto found = std::find_if(machine.pci.begin(), machine.pci.end(),
                                  [&](const PciNode& node) { return node.address == address; });
  return found == machine.pci.end() ? -1 : static_cast<int>(found - machine.pci.begin());
}

std::string_view name_of(SourceReport::Outcome outcome) {
  switch (outcome) {
    case SourceReport::Outcome::used:
      return "used";
    case SourceReport::Outcome::absent:
      return "absent";
    case SourceReport::Outcome::failed:
      return "failed";
    case SourceReport::Outcome::skipped:
      return "skipped";
  }
  return "unknown";
}

}  // namespace oriel::topo
