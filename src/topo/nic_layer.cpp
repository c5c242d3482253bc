// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/nic_layer.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "topo/nic_choice.hpp"

namespace oriel::topo {
namespace {

/// What counts for a layer.
struct Tally {
  int devices = 0;   ///< those to which one of its ports is as near as any
  int distance = 0;  ///< of these to it, together
  int active = 0;
  int dead = 0;
  double gbps = 0;        ///< of the active ports together
  double least_gbps = 0;  ///< of the slowest active one; 0: none is known
};

/// Of each NIC whether it counts: those of active ports that are not slow, and of dead ports.
std::vector<char> that_count(const Machine& machine, const PortSpeeds& speeds,
                             const std::vector<int>& hardware) {
  const auto at = [](int index) { return static_cast<std::size_t>(index); };
  std::vector<char> is_alive(hardware.size(), 0);  // of each port
  std::vector<char> counts(hardware.size(), 0);
  for (std::size_t nic = 0; nic < hardware.size(); ++nic) {
    if (machine.nics[nic].active) is_alive[at(hardware[nic])] = 1;
  }
  for (std::size_t nic = 0; nic < hardware.size(); ++nic) {
    const bool active = machine.nics[nic].active;
    counts[nic] =
        active ? !speeds.is_slow(static_cast<int>(nic)) : is_alive[at(hardware[nic])] == 0;
  }
  return counts;
}

/// The places that everything is near to or far from.
std::vector<DevicePlace> places_that_count(const Machine& machine) {
  std::vector<std::size_t> index;
  std::vector<DevicePlace> places = places_of_gpus(machine, index);
  if (!places.empty()) return places;
  for (int i = 0; i < static_cast<int>(machine.numa.size()); ++i) places.push_back({-1, i});
  return places;
}

}  // namespace

Nic::Layer layer_for_all(const Machine& machine, const PortSpeeds& speeds) {
  const std::vector<int> hardware = ports_of(machine, false);
  const std::vector<char> counts = that_count(machine, speeds, hardware);
  const auto count = static_cast<int>(machine.nics.size());
  const auto nic_at = [&](int nic) -> const Nic& {
    return machine.nics[static_cast<std::size_t>(nic)];
  };
  std::map<Nic::Layer, Tally> tallies;  // of the layers that can be used
  for (int nic = 0; nic < count; ++nic) {
    if (speeds.port_of(nic) != nic || speeds.is_slow(nic)) continue;
    Tally& tally = tallies[nic_at(nic).layer];
    const double gbps = speeds.gbps(nic);
    ++tally.active;
    tally.gbps += gbps;
    if (tally.least_gbps == 0 || (gbps > 0 && gbps < tally.least_gbps)) tally.least_gbps = gbps;
  }
  if (tallies.size() < 2) return tallies.empty() ? Nic::Layer::other : tallies.begin()->first;
  std::vector<int> members;  // that count, of these layers
  for (int nic = 0; nic < count; ++nic) {
    const auto tally = tallies.find(nic_at(nic).layer);
    if (counts[static_cast<std::size_t>(nic)] == 0 || tally == tallies.end()) continue;
    members.push_back(nic);
    const bool stands_for_port = hardware[static_cast<std::size_t>(nic)] == nic;
    if (!nic_at(nic).active && stands_for_port) ++tally->second.dead;
  }
  for (const DevicePlace& place : places_that_count(machine)) {
    std::optional<std::tuple<int, int>> least;
    std::set<Nic::Layer> nearest;
    for (const int nic : members) {
      const auto cost = nic_cost(machine, place, nic_at(nic));
      if (least && cost > *least) continue;
      if (!least || cost < *least) nearest.clear();
      least = cost;
      nearest.insert(nic_at(nic).layer);
    }
    for (const Nic::Layer layer : nearest) {
      ++tallies[layer].devices;
      tallies[layer].distance += std::get<0>(*least);
    }
  }
  const auto worth = [](const Tally& tally) {
    return std::tuple(tally.devices, -tally.distance, tally.active >= tally.dead,
                      tally.gbps + tally.dead * tally.least_gbps);
  };
  return std::max_element(
             tallies.begin(), tallies.end(),
             [&](const auto& a, const auto& b) { return worth(a.second) < worth(b.second); })
      ->first;
}

}  // namespace oriel::topo
