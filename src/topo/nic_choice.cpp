// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/nic_choice.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include <fmt/format.h>

namespace oriel::topo {
namespace {

const Nic& nic_at(const Machine& machine, int index) {
  return machine.nics[static_cast<std::size_t>(index)];
}

/// The active NICs that are nearest to a device, in their order.
std::vector<int> nearest_nics(const Machine& machine, DevicePlace device) {
  std::vector<int> nearest;
  std::tuple<int, int> least;
  for (int i = 0; i < static_cast<int>(machine.nics.size()); ++i) {
    if (!nic_at(machine, i).active) continue;
    const auto own = nic_cost(machine, device, nic_at(machine, i));
    if (!nearest.empty() && own > least) continue;
    if (nearest.empty() || own < least) nearest.clear();
    least = own;
    nearest.push_back(i);
  }
  return nearest;
}

/// The function that has the port: of a virtual one, the physical one.
std::optional<PciAddress> function_of(const Nic& nic) {
  return nic.physical ? nic.physical : nic.pci;
}

/// Devices that stand for one port: virtual functions beside the physical one.
bool same_port(const Nic& a, const Nic& b) {
  if (a.port != b.port) return false;
  const bool one_function =
      (a.physical || b.physical) && function_of(a) && function_of(a) == function_of(b);
  return one_function || (a.guid != 0 && a.guid == b.guid);
}

/// For each NIC the one that stands for its port: the physical function before virtual ones, then
/// the first. -1 for those that are not active.
std::vector<int> ports_of(const Machine& machine) {
  const auto count = static_cast<int>(machine.nics.size());
  std::vector<int> ports(machine.nics.size(), -1);
  for (const bool is_virtual : {false, true}) {
    for (int i = 0; i < count; ++i) {
      const Nic& nic = nic_at(machine, i);
      int& port = ports[static_cast<std::size_t>(i)];
      if (!nic.active || port >= 0 || nic.physical.has_value() != is_virtual) continue;
      for (int j = 0; j < count; ++j) {
        int& other = ports[static_cast<std::size_t>(j)];
        const Nic& twin = nic_at(machine, j);
        if (other < 0 && twin.active && (i == j || same_port(nic, twin))) other = i;
      }
    }
  }
  return ports;
}

std::string reason_for(const Machine& machine, const NicChoice& choice, std::size_t candidates,
                       int load) {
  if (choice.primary < 0) return "there is no active NIC";
  const Nic& nic = nic_at(machine, choice.primary);
  std::string text = fmt::format("{} is ", nic.name);
  text += candidates == 1 ? "the nearest" : fmt::format("one of {} equally near", candidates);
  text += fmt::format(" ({})", name_of(choice.distance));
  if (load > 0) text += fmt::format(", shared with {} other{}", load, load == 1 ? "" : "s");
  if (choice.backup < 0) return text + "; no other fault domain to fall back on";
  const Nic& backup = nic_at(machine, choice.backup);
  return text + fmt::format("; backup {}, {}", backup.name,
                            same_card(nic, backup) ? "the other port of its card" : "another card");
}

/// Chooses for devices at these places.
std::vector<NicChoice> choose(const Machine& machine, const std::vector<DevicePlace>& devices) {
  std::vector<std::vector<int>> candidates;
  candidates.reserve(devices.size());
  for (const DevicePlace& device : devices) candidates.push_back(nearest_nics(machine, device));
  std::vector<std::size_t> order(devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return candidates[a].size() < candidates[b].size();
  });
  const std::vector<int> backups = backup_nics(machine);
  const std::vector<int> ports = ports_of(machine);
  std::vector<int> load(machine.nics.size(), 0);  // of ports, by the NIC that stands for each
  const auto load_of = [&](int nic) -> int& {
    return load[static_cast<std::size_t>(ports[static_cast<std::size_t>(nic)])];
  };
  std::vector<NicChoice> choices(devices.size());
  for (const std::size_t device : order) {
    NicChoice& choice = choices[device];
    for (const int nic : candidates[device]) {
      const auto worth = [&](int index) {
        return std::tuple(load_of(index), -nic_at(machine, index).gbps,
                          nic_at(machine, index).physical.has_value());
      };
      if (choice.primary < 0 || worth(nic) < worth(choice.primary)) choice.primary = nic;
    }
    if (choice.primary < 0) continue;
    const Nic& primary = nic_at(machine, choice.primary);
    choice.backup = backups[static_cast<std::size_t>(choice.primary)];
    choice.distance = route_between(machine, devices[device], place_of(primary)).distance;
    ++load_of(choice.primary);
  }
  for (std::size_t device = 0; device < choices.size(); ++device) {
    NicChoice& choice = choices[device];
    const int sharers = choice.primary < 0 ? 0 : load_of(choice.primary) - 1;
    choice.reason = reason_for(machine, choice, candidates[device].size(), sharers);
  }
  return choices;
}

}  // namespace

std::tuple<int, int> nic_cost(const Machine& machine, DevicePlace device, const Nic& nic) {
  const Route route = route_between(machine, device, place_of(nic));
  int numa_distance = 0;
  if (device.numa >= 0 && nic.numa >= 0) {
    const auto& distances = machine.numa[static_cast<std::size_t>(device.numa)].distances;
    numa_distance = distances.empty() ? (device.numa == nic.numa ? 10 : 20)
                                      : distances[static_cast<std::size_t>(nic.numa)];
  }
  return {static_cast<int>(route.distance), numa_distance};
}

bool same_card(const Nic& a, const Nic& b) {
  if (a.card != 0 && b.card != 0) return a.card == b.card;
  const auto one = function_of(a);
  const auto other = function_of(b);
  return one && other &&
         std::tie(one->domain, one->bus, one->device) ==
             std::tie(other->domain, other->bus, other->device);
}

std::vector<int> backup_nics(const Machine& machine) {
  const std::vector<int> ports = ports_of(machine);
  std::vector<int> active;  // one device for each port
  std::vector<int> backups(machine.nics.size(), -1);
  std::vector<int> alone;  // without another active port on their card
  for (int i = 0; i < static_cast<int>(machine.nics.size()); ++i) {
    if (ports[static_cast<std::size_t>(i)] == i) active.push_back(i);
  }
  for (const int i : active) {
    std::vector<int> card;
    std::copy_if(active.begin(), active.end(), std::back_inserter(card), [&](int other) {
      return same_card(nic_at(machine, i), nic_at(machine, other)) || other == i;
    });
    if (card.size() < 2) {
      alone.push_back(i);
      continue;
    }
    const auto self = std::find(card.begin(), card.end(), i) - card.begin();
    const auto next = static_cast<std::size_t>(self) ^ 1;
    backups[static_cast<std::size_t>(i)] = next < card.size() ? card[next] : card.front();
  }
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const Nic& nic = nic_at(machine, alone[i]);
    int& backup = backups[static_cast<std::size_t>(alone[i])];
    if ((i ^ 1) < alone.size()) {
      backup = alone[i ^ 1];
      continue;
    }
    for (const int other : active) {
      if (other == alone[i]) continue;
      const auto own = nic_cost(machine, place_of(nic), nic_at(machine, other));
      if (backup < 0 || own < nic_cost(machine, place_of(nic), nic_at(machine, backup))) {
        backup = other;
      }
    }
  }
  for (std::size_t i = 0; i < ports.size(); ++i) {
    if (ports[i] >= 0) backups[i] = backups[static_cast<std::size_t>(ports[i])];
  }
  return backups;
}

std::vector<NicChoice> choose_nics(const Machine& machine) {
  // MIG instances and partitions stand at the place of their GPU, and count once.
  std::vector<DevicePlace> places;
  std::vector<std::size_t> place_index;
  std::map<PciAddress, std::size_t> known;
  for (const Gpu& gpu : machine.gpus) {
    if (gpu.pci && (gpu.mig_instance >= 0 || gpu.partition >= 0)) {
      const auto [entry, fresh] = known.try_emplace(*gpu.pci, places.size());
      place_index.push_back(entry->second);
      if (!fresh) continue;
    } else {
      place_index.push_back(places.size());
    }
    places.push_back(place_of(gpu));
  }
  const std::vector<NicChoice> by_place = choose(machine, places);
  std::vector<NicChoice> choices;
  choices.reserve(place_index.size());
  for (const std::size_t index : place_index) choices.push_back(by_place[index]);
  return choices;
}

std::vector<NicChoice> choose_nics_of_numa_nodes(const Machine& machine) {
  std::vector<DevicePlace> places;
  places.reserve(machine.numa.size());
  for (int i = 0; i < static_cast<int>(machine.numa.size()); ++i) places.push_back({-1, i});
  return choose(machine, places);
}

NicChoice choose_nic_at(const Machine& machine, DevicePlace place, int before) {
  // As many have chosen as make a difference: equally near NICs are taken by turns.
  const std::size_t near = nearest_nics(machine, place).size();
  const std::size_t turns = near == 0 || before < 0 ? 0 : static_cast<std::size_t>(before) % near;
  return choose(machine, std::vector<DevicePlace>(turns + 1, place)).back();
}

}  // namespace oriel::topo
