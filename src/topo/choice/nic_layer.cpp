// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/nic_layer.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "topo/choice/nic_assigner.hpp"
#include "topo/choice/nic_choice.hpp"

namespace oriel::topo {
namespace {

/// Properties of a layer that decide.
struct Tally {
  int active = 0;
  int dead = 0;
  double gbps = 0;             ///< sum over all active ports
  double least_gbps = 0;       ///< bandwidth of the slowest active port; 0: none is known
  double share = 0;            ///< smallest share of a device
  std::vector<NicCost> costs;  ///< by device, to the port that it would use
  int devices = 0;             ///< number of devices to which one of its ports is nearest
  int distance = 0;            ///< sum of the distances of these devices
};
using Tallies = std::map<Nic::Layer, Tally>;

/// Returns the usable layers: those with active ports that are not slow.
Tallies usable_layers(const Machine& machine, const PortSpeeds& speeds) {
  Tallies tallies;
  for (int nic = 0; nic < static_cast<int>(machine.nics.size()); ++nic) {
    if (speeds.port_of(nic) != nic || speeds.is_slow(nic)) continue;
    Tally& tally = tallies[machine.nics[static_cast<std::size_t>(nic)].layer];
    const double gbps = speeds.gbps(nic);
    if (tally.active == 0 || gbps < tally.least_gbps) tally.least_gbps = gbps;
    ++tally.active;
    tally.gbps += gbps;
  }
  return tallies;
}

/// Returns the machine with the dead ports of these layers active, at the speed of the layer's
/// slowest port. Counts these ports.
Machine with_dead_ports_alive(Machine machine, Tallies& tallies) {
  const std::vector<int> ports = ports_of(machine, false);
  const auto port_of = [&](std::size_t nic) { return static_cast<std::size_t>(ports[nic]); };
  std::vector<char> is_alive(ports.size(), 0);  // by port
  for (std::size_t nic = 0; nic < ports.size(); ++nic) {
    if (machine.nics[nic].active) is_alive[port_of(nic)] = 1;
  }
  for (std::size_t nic = 0; nic < ports.size(); ++nic) {
    const auto tally = tallies.find(machine.nics[port_of(nic)].layer);
    if (is_alive[port_of(nic)] != 0 || tally == tallies.end()) continue;
    machine.nics[nic].active = true;
    machine.nics[nic].gbps = tally->second.least_gbps;
    if (port_of(nic) == nic) ++tally->second.dead;
  }
  return machine;
}

/// Drops the layers whose smallest share is less than half of the best layer's.
void drop_poor_layers(Tallies& tallies) {
  double best = 0;
  for (const auto& [layer, tally] : tallies) best = std::max(best, tally.share);
  std::erase_if(tallies, [&](const auto& entry) { return entry.second.share * 2 < best; });
}

}  // namespace

Nic::Layer layer_for_all(const Machine& machine, const PortSpeeds& speeds) {
  Tallies tallies = usable_layers(machine, speeds);
  if (tallies.size() < 2) return tallies.empty() ? Nic::Layer::other : tallies.begin()->first;
  const Machine whole = with_dead_ports_alive(machine, tallies);
  const PortSpeeds whole_speeds(whole);
  std::vector<std::size_t> index;
  std::vector<DevicePlace> places = places_of_gpus(machine, index);
  if (places.empty()) places = places_of_processors(machine);
  const NicCosts costs = nic_costs(whole, places);
  for (auto& [layer, tally] : tallies) {
    const NicAssigner assigner(whole, whole_speeds, layer, costs);
    tally.share = assigner.least_share();
    for (std::size_t i = 0; i < places.size(); ++i) tally.costs.push_back(assigner.cost(i));
  }
  drop_poor_layers(tallies);
  for (std::size_t i = 0; i < places.size(); ++i) {
    NicCost least = tallies.begin()->second.costs[i];
    for (const auto& [layer, tally] : tallies) least = std::min(least, tally.costs[i]);
    for (auto& [layer, tally] : tallies) {
      if (tally.costs[i] != least) continue;
      ++tally.devices;
      tally.distance += std::get<0>(least);
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
