// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/model/distance.hpp"

#include <algorithm>
#include <vector>

namespace oriel::topo {
namespace {

/// Returns the node and all nodes above it, itself first.
std::vector<int> way_up(const Machine& machine, int node) {
  std::vector<int> way;
  for (; node >= 0; node = machine.pci[static_cast<std::size_t>(node)].parent) way.push_back(node);
  return way;
}

void narrow(double& narrowest, double gbps) {
  if (gbps > 0 && (narrowest == 0 || gbps < narrowest)) narrowest = gbps;
}

Distance by_numa(DevicePlace a, DevicePlace b) {
  if (a.numa < 0 || b.numa < 0) return Distance::unknown;
  return a.numa == b.numa ? Distance::numa_node : Distance::system;
}

/// Returns the distance of two devices with `below_a` and `below_b` bridges below their common
/// node.
Distance below(PciNode::Kind shared, std::size_t below_a, std::size_t below_b) {
  if (shared == PciNode::Kind::host_bridge) return Distance::host_bridge;
  return below_a <= 1 && below_b <= 1 ? Distance::one_switch : Distance::switches;
}

}  // namespace

std::string_view name_of(Distance distance) {
  switch (distance) {
    case Distance::same:
      return "X";
    case Distance::one_switch:
      return "PIX";
    case Distance::switches:
      return "PXB";
    case Distance::host_bridge:
      return "PHB";
    case Distance::numa_node:
      return "NODE";
    case Distance::system:
      return "SYS";
    case Distance::unknown:
      break;
  }
  return "?";
}

Route route_between(const Machine& machine, DevicePlace a, DevicePlace b) {
  Route route;
  if (a.node < 0 || b.node < 0) {
    route.distance = by_numa(a, b);
    return route;
  }
  if (a.node == b.node) {
    route.distance = Distance::same;
    return route;
  }
  const std::vector<int> up_a = way_up(machine, a.node);
  const std::vector<int> up_b = way_up(machine, b.node);
  const auto meet_a = std::find_first_of(up_a.begin(), up_a.end(), up_b.begin(), up_b.end());
  const auto meet_b =
      meet_a == up_a.end() ? up_b.end() : std::find(up_b.begin(), up_b.end(), *meet_a);
  const auto steps_a = static_cast<std::size_t>(meet_a - up_a.begin());
  const auto steps_b = static_cast<std::size_t>(meet_b - up_b.begin());
  for (std::size_t i = 0; i < steps_a; ++i) {
    narrow(route.link_gbps, machine.pci[static_cast<std::size_t>(up_a[i])].link_gbps);
  }
  for (std::size_t i = 0; i < steps_b; ++i) {
    narrow(route.link_gbps, machine.pci[static_cast<std::size_t>(up_b[i])].link_gbps);
  }
  if (meet_a == up_a.end()) {
    route.distance = by_numa(a, b);
    route.bridges = static_cast<int>(steps_a + steps_b) - 2;  // without the devices themselves
    return route;
  }
  const std::size_t below_a = steps_a == 0 ? 0 : steps_a - 1;
  const std::size_t below_b = steps_b == 0 ? 0 : steps_b - 1;
  route.distance = below(machine.pci[static_cast<std::size_t>(*meet_a)].kind, below_a, below_b);
  route.bridges = static_cast<int>(below_a + below_b) + 1;
  return route;
}

}  // namespace oriel::topo
