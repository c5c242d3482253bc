// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/nic_choice.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "topo/choice/nic_assigner.hpp"
#include "topo/choice/nic_layer.hpp"

namespace oriel::topo {
namespace {

const Nic& nic_at(const Machine& machine, int index) {
  return machine.nics[static_cast<std::size_t>(index)];
}

/// Data needed before NICs can be assigned to devices at given places.
struct Ground {
  Ground(const Machine& machine, const std::vector<DevicePlace>& devices)
      : speeds(machine),
        layer(layer_for_all(machine, speeds)),
        costs(nic_costs(machine, devices)) {}

  PortSpeeds speeds;
  Nic::Layer layer;
  NicCosts costs;
};

/// Returns the backups of devices with these primaries.
std::vector<int> choose_backups(const Machine& machine, const std::vector<DevicePlace>& devices,
                                const std::vector<int>& primary) {
  const auto at = [](int index) { return static_cast<std::size_t>(index); };
  const PortSpeeds speeds(machine);
  const std::vector<int> partners = partners_by_place(machine);
  std::vector<int> loads(machine.nics.size(), 0);
  std::vector<int> backups(primary.size(), -1);
  std::vector<char> taken(machine.nics.size(), 0);  // by port: its partner is used as a backup
  for (std::size_t device = 0; device < primary.size(); ++device) {
    if (primary[device] < 0) continue;
    const int port = speeds.port_of(primary[device]);
    const int partner = partners[at(port)];
    if (partner < 0 || taken[at(port)] != 0) continue;
    if (speeds.is_slow(partner)) continue;
    if (nic_at(machine, partner).layer != nic_at(machine, port).layer) continue;
    taken[at(port)] = 1;
    backups[device] = partner;
    ++loads[at(partner)];
  }
  for (std::size_t device = 0; device < primary.size(); ++device) {
    if (primary[device] < 0 || backups[device] >= 0) continue;
    const int port = speeds.port_of(primary[device]);
    const auto worth = [&](int other) {
      const Nic& nic = nic_at(machine, other);
      return std::tuple(nic.layer != nic_at(machine, port).layer, speeds.is_slow(other),
                        nic_cost(machine, devices[device], nic), loads[at(other)],
                        -speeds.gbps(other));
    };
    int& backup = backups[device];
    for (int other = 0; other < static_cast<int>(partners.size()); ++other) {
      if (speeds.port_of(other) != other || other == port) continue;
      if (backup < 0 || worth(other) < worth(backup)) backup = other;
    }
    if (backup >= 0) ++loads[at(backup)];
  }
  return backups;
}

/// Returns the qualifier for the reason text when a NIC at least as near was rejected.
std::string passed_by(const Ground& ground, const Machine& machine, std::size_t device, int own) {
  bool slow = false;
  bool other_layer = false;
  const std::vector<NicCost>& costs = ground.costs[device];
  for (int nic = 0; nic < static_cast<int>(machine.nics.size()); ++nic) {
    const auto i = static_cast<std::size_t>(nic);
    if (!machine.nics[i].active || costs[i] > costs[static_cast<std::size_t>(own)]) continue;
    slow = slow || ground.speeds.is_slow(nic);
    other_layer = other_layer || machine.nics[i].layer != ground.layer;
  }
  return slow ? " of those fast enough" : other_layer ? " of the link layer that all use" : "";
}

std::string reason_for(const Machine& machine, const NicChoice& choice, const Ground& ground,
                       const NicAssigner& assigner, std::size_t device) {
  const Nic& nic = nic_at(machine, choice.primary);
  const std::size_t as_near = assigner.as_near(device);
  const std::size_t sharers = assigner.users(device) - 1;
  std::string text = fmt::format("{} is ", nic.name);
  text += as_near == 1 ? "the nearest" : fmt::format("one of {} equally near", as_near);
  text += passed_by(ground, machine, device, choice.primary) +
          fmt::format(" ({})", name_of(choice.distance));
  if (sharers > 0)
    text += fmt::format(", shared with {} other{}", sharers, sharers == 1 ? "" : "s");
  if (choice.backup < 0) return text + "; no other fault domain to fall back on";
  const Nic& backup = nic_at(machine, choice.backup);
  return text + fmt::format("; backup {}, {}", backup.name,
                            same_card(nic, backup) ? "the other port of its card" : "another card");
}

/// Chooses NICs for devices at these places.
std::vector<NicChoice> choose(const Machine& machine, const std::vector<DevicePlace>& devices) {
  const Ground ground(machine, devices);
  const NicAssigner assigner(machine, ground.speeds, ground.layer, ground.costs);
  std::vector<int> primaries;
  for (std::size_t device = 0; device < devices.size(); ++device) {
    primaries.push_back(assigner.primary(device));
  }
  const std::vector<int> backups = choose_backups(machine, devices, primaries);
  std::vector<NicChoice> choices(devices.size());
  for (std::size_t device = 0; device < choices.size(); ++device) {
    NicChoice& choice = choices[device];
    choice.primary = primaries[device];
    choice.backup = backups[device];
    if (choice.primary < 0) {
      choice.reason = "there is no active NIC";
      continue;
    }
    const Nic& primary = nic_at(machine, choice.primary);
    choice.distance = route_between(machine, devices[device], place_of(primary)).distance;
    choice.reason = reason_for(machine, choice, ground, assigner, device);
  }
  return choices;
}

}  // namespace

NicCost nic_cost(const Machine& machine, DevicePlace device, const Nic& nic) {
  const Route route = route_between(machine, device, place_of(nic));
  int numa_distance = 0;
  if (device.numa >= 0 && nic.numa >= 0) {
    const auto& distances = machine.numa[static_cast<std::size_t>(device.numa)].distances;
    numa_distance = distances.empty() ? (device.numa == nic.numa ? 10 : 20)
                                      : distances[static_cast<std::size_t>(nic.numa)];
  }
  return {static_cast<int>(route.distance), numa_distance};
}

std::vector<DevicePlace> places_of_gpus(const Machine& machine, std::vector<std::size_t>& index) {
  std::vector<DevicePlace> places;
  std::map<PciAddress, std::size_t> known;
  index.clear();
  for (const Gpu& gpu : machine.gpus) {
    if (gpu.pci && (gpu.mig_instance >= 0 || gpu.partition >= 0)) {
      const auto [entry, fresh] = known.try_emplace(*gpu.pci, places.size());
      index.push_back(entry->second);
      if (!fresh) continue;
    } else {
      index.push_back(places.size());
    }
    places.push_back(place_of(gpu));
  }
  return places;
}

std::vector<NicChoice> choose_nics(const Machine& machine) {
  std::vector<std::size_t> place_index;
  const std::vector<NicChoice> by_place = choose(machine, places_of_gpus(machine, place_index));
  std::vector<NicChoice> choices;
  choices.reserve(place_index.size());
  for (const std::size_t index : place_index) choices.push_back(by_place[index]);
  return choices;
}

std::vector<DevicePlace> places_of_processors(const Machine& machine) {
  const bool any = std::any_of(machine.numa.begin(), machine.numa.end(),
                               [](const NumaNode& node) { return !node.cpus.empty(); });
  std::vector<DevicePlace> places;
  for (int i = 0; i < static_cast<int>(machine.numa.size()); ++i) {
    if (!any || !machine.numa[static_cast<std::size_t>(i)].cpus.empty()) places.push_back({-1, i});
  }
  return places;
}

std::vector<NicChoice> choose_nics_of_numa_nodes(const Machine& machine) {
  const std::vector<DevicePlace> places = places_of_processors(machine);
  const std::vector<NicChoice> by_place = choose(machine, places);
  NicChoice none;
  none.reason = "there are no processors";
  std::vector<NicChoice> choices(machine.numa.size(), none);
  for (std::size_t i = 0; i < places.size(); ++i) {
    choices[static_cast<std::size_t>(places[i].numa)] = by_place[i];
  }
  return choices;
}

std::vector<NicChoice> choose_nics_at(const Machine& machine,
                                      const std::vector<DevicePlace>& places) {
  return choose(machine, places);
}

NicChoice choose_nic_at(const Machine& machine, DevicePlace place, int before) {
  // Adds only as many users as matter: equally near NICs are taken in turn.
  const Ground ground(machine, {place});
  const std::size_t near =
      NicAssigner(machine, ground.speeds, ground.layer, ground.costs).as_near(0);
  const std::size_t turns = near == 0 || before < 0 ? 0 : static_cast<std::size_t>(before) % near;
  return choose(machine, std::vector<DevicePlace>(turns + 1, place)).back();
}

}  // namespace oriel::topo
