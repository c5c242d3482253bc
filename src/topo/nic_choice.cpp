// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/nic_choice.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "topo/nic_layer.hpp"

namespace oriel::topo {
namespace {

const Nic& nic_at(const Machine& machine, int index) {
  return machine.nics[static_cast<std::size_t>(index)];
}

using Cost = std::tuple<int, int>;

/// Assigns NICs to devices at places.
class Assigner {
 public:
  Assigner(const Machine& machine, const std::vector<DevicePlace>& devices)
      : machine_(machine), speeds_(machine), layer_(layer_for_all(machine, speeds_)) {
    for (const DevicePlace& device : devices) {
      std::vector<Cost>& row = costs_.emplace_back();
      row.reserve(machine.nics.size());
      for (const Nic& nic : machine.nics) row.push_back(nic_cost(machine, device, nic));
      candidates_.push_back(nearest(row));
    }
    users_.resize(machine.nics.size());
    used_.resize(devices.size(), nullptr);
    for (std::size_t device = 0; device < devices.size(); ++device) assign(device);
  }

  /// The NIC of a device; -1: there is none.
  int primary(std::size_t device) const {
    return used_[device] == nullptr ? -1 : used_[device]->nic;
  }
  /// How many devices, that one among them, use the port of a device's NIC.
  std::size_t users(std::size_t device) const { return users_[at(used_[device]->port)].size(); }
  /// How many ports are as near to a device as the one that it uses.
  std::size_t as_near(std::size_t device) const { return candidates_[device].size(); }
  const Cost& cost(std::size_t device, int nic) const { return costs_[device][at(nic)]; }
  /// The NIC that stands for the port of another; -1 for one that is not active.
  int port_of(int nic) const { return speeds_.port_of(nic); }
  bool is_slow(int nic) const { return speeds_.is_slow(nic); }
  Nic::Layer layer() const { return layer_; }

 private:
  /// A port, and the NIC by which a device uses it: one of those that stand for the port.
  struct Candidate {
    int port;
    int nic;
  };
  /// A port that some device could change to. Where a device comes from, it leaves room.
  struct Step {
    const Candidate* to;
    std::size_t device;
    int from;  // the step whose port the device leaves; -1: it has none yet
  };

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  /// A speed that is not known counts as the fastest.
  double speed_of(int port) const {
    const double gbps = speeds_.gbps(port);
    return gbps > 0 ? gbps : speeds_.fastest() > 0 ? speeds_.fastest() : 1;
  }
  /// Whether a device may use a port by this NIC: its own layer is the port's.
  bool is_fit(int nic) const {
    const int port = port_of(nic);
    return port >= 0 && !is_slow(port) && nic_at(machine_, port).layer == layer_ &&
           nic_at(machine_, nic).layer == layer_;
  }

  /// The nearest ports of the layer, slow ones left out.
  std::vector<Candidate> nearest(const std::vector<Cost>& costs) const {
    std::map<int, int> nearest;  // of each port the NIC
    const Cost* least = nullptr;
    for (int nic = 0; nic < static_cast<int>(costs.size()); ++nic) {
      if (!is_fit(nic)) continue;
      const int port = port_of(nic);
      if (least != nullptr && costs[at(nic)] > *least) continue;
      if (least == nullptr || costs[at(nic)] < *least) nearest.clear();
      least = &costs[at(nic)];
      int& own = nearest.try_emplace(port, nic).first->second;
      if (nic == port) own = nic;
    }
    std::vector<Candidate> candidates;
    candidates.reserve(nearest.size());
    for (const auto& [port, nic] : nearest) candidates.push_back({port, nic});
    return candidates;
  }

  /// What one more user makes of two ports: the one where more is left for each is better, of equal
  /// ones that with fewer users.
  bool is_better(int port, int other) const {
    const auto users = static_cast<double>(users_[at(port)].size() + 1);
    const auto others = static_cast<double>(users_[at(other)].size() + 1);
    const double left = speed_of(port) * others;
    const double left_there = speed_of(other) * users;
    return left > left_there || (left == left_there && users < others);
  }

  /// Gives a device a port so that the least shares stay as great as they can be: of all ports that
  /// come free for one more, if other devices change to ports that are as near to them, the best.
  /// (The shortest such path at each step; the assignment is then the best one of all so far.)
  void assign(std::size_t device) {
    const std::vector<Step> steps = steps_from(device);
    if (steps.empty()) return;
    int step = 0;
    for (int i = 1; i < static_cast<int>(steps.size()); ++i) {
      if (is_better(steps[at(i)].to->port, steps[at(step)].to->port)) step = i;
    }
    for (; step >= 0; step = steps[at(step)].from) {
      const Step& change = steps[at(step)];
      if (change.from >= 0) users_[at(used_[change.device]->port)].erase(change.device);
      used_[change.device] = change.to;
      users_[at(change.to->port)].insert(change.device);
    }
  }

  /// All ports that could be the end, those that take the fewest changes first.
  std::vector<Step> steps_from(std::size_t device) const {
    std::vector<Step> steps;
    std::vector<char> seen(machine_.nics.size(), 0);
    const auto add = [&](std::size_t mover, int from) {
      for (const Candidate& one : candidates_[mover]) {
        if (seen[at(one.port)] != 0) continue;
        seen[at(one.port)] = 1;
        steps.push_back({&one, mover, from});
      }
    };
    add(device, -1);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const std::size_t user : users_[at(steps[i].to->port)]) add(user, static_cast<int>(i));
    }
    return steps;
  }

  const Machine& machine_;
  PortSpeeds speeds_;
  Nic::Layer layer_;
  std::vector<std::vector<Cost>> costs_;            // of each device, to each NIC
  std::vector<std::vector<Candidate>> candidates_;  // of each device
  std::vector<std::set<std::size_t>> users_;        // of each port
  std::vector<const Candidate*> used_;              // of each device, or null
};

/// The backups of devices with these primaries.
std::vector<int> choose_backups(const Machine& machine, const std::vector<DevicePlace>& devices,
                                const std::vector<int>& primary) {
  const auto at = [](int index) { return static_cast<std::size_t>(index); };
  const PortSpeeds speeds(machine);
  const std::vector<int> partners = partners_by_place(machine);
  std::vector<int> loads(machine.nics.size(), 0);
  std::vector<int> backups(primary.size(), -1);
  std::vector<char> taken(machine.nics.size(), 0);  // of each port, whether its partner is
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

/// Of what the one chosen is the nearest, where another as near was passed by.
std::string passed_by(const Assigner& assigner, const Machine& machine, std::size_t device) {
  const int own = assigner.primary(device);
  bool slow = false;
  bool other_layer = false;
  for (int nic = 0; nic < static_cast<int>(machine.nics.size()); ++nic) {
    if (assigner.port_of(nic) < 0 || assigner.cost(device, nic) > assigner.cost(device, own)) {
      continue;
    }
    slow = slow || assigner.is_slow(nic);
    other_layer = other_layer || nic_at(machine, nic).layer != assigner.layer();
  }
  return slow ? " of those fast enough" : other_layer ? " of the link layer that all use" : "";
}

std::string reason_for(const Machine& machine, const NicChoice& choice, const Assigner& assigner,
                       std::size_t device) {
  const Nic& nic = nic_at(machine, choice.primary);
  const std::size_t as_near = assigner.as_near(device);
  const std::size_t sharers = assigner.users(device) - 1;
  std::string text = fmt::format("{} is ", nic.name);
  text += as_near == 1 ? "the nearest" : fmt::format("one of {} equally near", as_near);
  text += passed_by(assigner, machine, device) + fmt::format(" ({})", name_of(choice.distance));
  if (sharers > 0)
    text += fmt::format(", shared with {} other{}", sharers, sharers == 1 ? "" : "s");
  if (choice.backup < 0) return text + "; no other fault domain to fall back on";
  const Nic& backup = nic_at(machine, choice.backup);
  return text + fmt::format("; backup {}, {}", backup.name,
                            same_card(nic, backup) ? "the other port of its card" : "another card");
}

/// Chooses for devices at these places.
std::vector<NicChoice> choose(const Machine& machine, const std::vector<DevicePlace>& devices) {
  const Assigner assigner(machine, devices);
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
    choice.reason = reason_for(machine, choice, assigner, device);
  }
  return choices;
}

}  // namespace

Cost nic_cost(const Machine& machine, DevicePlace device, const Nic& nic) {
  const Route route = route_between(machine, device, place_of(nic));
  int numa_distance = 0;
  if (device.numa >= 0 && nic.numa >= 0) {
    const auto& distances = machine.numa[static_cast<std::size_t>(device.numa)].distances;
    numa_distance = distances.empty() ? (device.numa == nic.numa ? 10 : 20)
                                      : distances[static_cast<std::size_t>(nic.numa)];
  }
  return {static_cast<int>(route.distance), numa_distance};
}

std::vector<int> backup_nics(const Machine& machine) {
  const std::vector<int> ports = ports_of(machine, true);
  std::vector<DevicePlace> places;
  std::vector<int> primary;
  for (int nic = 0; nic < static_cast<int>(ports.size()); ++nic) {
    places.push_back(place_of(nic_at(machine, nic)));
    primary.push_back(ports[static_cast<std::size_t>(nic)] == nic ? nic : -1);
  }
  std::vector<int> backups = choose_backups(machine, places, primary);
  for (std::size_t nic = 0; nic < ports.size(); ++nic) {
    if (ports[nic] >= 0) backups[nic] = backups[static_cast<std::size_t>(ports[nic])];
  }
  return backups;
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

std::vector<NicChoice> choose_nics_of_numa_nodes(const Machine& machine) {
  std::vector<DevicePlace> places;
  places.reserve(machine.numa.size());
  for (int i = 0; i < static_cast<int>(machine.numa.size()); ++i) places.push_back({-1, i});
  return choose(machine, places);
}

std::vector<NicChoice> choose_nics_at(const Machine& machine,
                                      const std::vector<DevicePlace>& places) {
  return choose(machine, places);
}

NicChoice choose_nic_at(const Machine& machine, DevicePlace place, int before) {
  // As many have chosen as make a difference: equally near NICs are taken by turns.
  const std::size_t near = Assigner(machine, {place}).as_near(0);
  const std::size_t turns = near == 0 || before < 0 ? 0 : static_cast<std::size_t>(before) % near;
  return choose(machine, std::vector<DevicePlace>(turns + 1, place)).back();
}

}  // namespace oriel::topo
