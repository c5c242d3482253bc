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

double fastest_of(const Machine& machine) {
  double fastest = 0;
  for (const Nic& nic : machine.nics) fastest = std::max(fastest, nic.active ? nic.gbps : 0);
  return fastest;
}

/// A speed that is not known counts as fast.
bool is_slow(double gbps, double fastest) {
  return gbps > 0 && gbps * 2 < fastest;
}

/// Of the active NICs that are not slow, those nearest to a device, in their order.
std::vector<int> nearest_nics(const Machine& machine, DevicePlace device) {
  std::vector<int> nearest;
  std::tuple<int, int> least;
  const double fastest = fastest_of(machine);
  for (int i = 0; i < static_cast<int>(machine.nics.size()); ++i) {
    const Nic& nic = nic_at(machine, i);
    if (!nic.active || is_slow(nic.gbps, fastest)) continue;
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
/// the first. Of active ones among themselves (-1 for others), or of all, active or not.
std::vector<int> ports_of(const Machine& machine, bool only_active) {
  const auto count = static_cast<int>(machine.nics.size());
  const auto counts = [&](const Nic& nic) { return nic.active || !only_active; };
  std::vector<int> ports(machine.nics.size(), -1);
  for (const bool is_virtual : {false, true}) {
    for (int i = 0; i < count; ++i) {
      const Nic& nic = nic_at(machine, i);
      int& port = ports[static_cast<std::size_t>(i)];
      if (!counts(nic) || port >= 0 || nic.physical.has_value() != is_virtual) continue;
      for (int j = 0; j < count; ++j) {
        int& other = ports[static_cast<std::size_t>(j)];
        const Nic& twin = nic_at(machine, j);
        if (other < 0 && counts(twin) && (i == j || same_port(nic, twin))) other = i;
      }
    }
  }
  return ports;
}

/// Row B3 for the ports of a machine, each called by the NIC that stands for it.
class Pairing {
 public:
  explicit Pairing(const Machine& machine)
      : machine_(machine),
        hardware_(ports_of(machine, false)),
        active_(ports_of(machine, true)),
        fastest_(fastest_of(machine)) {
    in_use_.resize(machine.nics.size(), -1);
    load_.resize(machine.nics.size(), 0);
    partner_.resize(machine.nics.size(), -1);
    for (int i = 0; i < static_cast<int>(hardware_.size()); ++i) {
      const int port = hardware_[at(i)];
      if (port == i) ports_.push_back(i);
      if (in_use_[at(port)] < 0) in_use_[at(port)] = active_[at(i)];
    }
    std::map<std::pair<Nic::Layer, bool>, std::vector<int>> singles;
    for (const int port : ports_) {
      const Nic& nic = nic_at(machine, port);
      if (card_of(port).size() > 1) continue;
      singles[{nic.layer, is_slow(speed_of(port), fastest_)}].push_back(port);
    }
    for (const auto& [kind, alike] : singles) pair_by_place(alike);
  }

  /// Of each NIC; -1 where there is none, or the NIC is not active.
  std::vector<int> backups() {
    std::vector<int> backups(machine_.nics.size(), -1);
    std::vector<int> left;  // whose partner is dead, or who have none
    for (const int port : ports_) {
      const int own = in_use_[at(port)];
      if (own < 0) continue;
      const int backup = partner_of(port);
      if (backup < 0) {
        left.push_back(own);
        continue;
      }
      backups[at(own)] = backup;
      ++load_[at(backup)];
    }
    for (const int own : left) {
      const int backup = nearest_to(own);
      backups[at(own)] = backup;
      if (backup >= 0) ++load_[at(backup)];
    }
    for (std::size_t i = 0; i < backups.size(); ++i) {
      if (active_[i] >= 0) backups[i] = backups[at(active_[i])];
    }
    return backups;
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  /// The ports of a port's card, dead ones too.
  std::vector<int> card_of(int port) const {
    std::vector<int> card;
    std::copy_if(ports_.begin(), ports_.end(), std::back_inserter(card), [&](int other) {
      return other == port || same_card(nic_at(machine_, port), nic_at(machine_, other));
    });
    return card;
  }

  /// What the kernel tells of a dead port's speed is not true; its PCIe link stays.
  double speed_of(int port) const {
    const int used = in_use_[at(port)];
    if (used >= 0) return nic_at(machine_, used).gbps;
    const int node = nic_at(machine_, port).node;
    return node < 0 ? 0 : machine_.pci[at(node)].link_gbps;
  }

  /// Pairs cards with one port in their order; yields the one that is left over, or -1.
  int pair_up(std::vector<int>& cards) {
    std::sort(cards.begin(), cards.end());
    for (std::size_t i = 0; i + 1 < cards.size(); i += 2) {
      partner_[at(cards[i])] = cards[i + 1];
      partner_[at(cards[i + 1])] = cards[i];
    }
    return cards.size() % 2 == 0 ? -1 : cards.back();
  }

  /// Pairs those below one PCIe bridge, the lowest bridges first; who is left over is paired at
  /// its NUMA node, then in its package, then with anyone.
  void pair_by_place(const std::vector<int>& cards) {
    std::vector<std::vector<int>> below(machine_.pci.size());
    std::map<int, std::vector<int>> of_numa;
    std::map<int, std::vector<int>> of_package;
    std::vector<int> rest;
    const auto numa_of = [&](int card) {
      const int numa = nic_at(machine_, card).numa;
      return numa < static_cast<int>(machine_.numa.size()) ? numa : -1;  // or a mere list of NICs
    };
    for (const int card : cards) {
      const int node = nic_at(machine_, card).node;
      (node >= 0 ? below[at(node)] : of_numa[numa_of(card)]).push_back(card);
    }
    for (std::size_t node = below.size(); node-- > 0;) {  // children come after their parents
      const int left = pair_up(below[node]);
      const int parent = machine_.pci[node].parent;
      if (left >= 0) (parent >= 0 ? below[at(parent)] : of_numa[numa_of(left)]).push_back(left);
    }
    // What stands at places that are not known is not near each other.
    for (auto& [numa, here] : of_numa) {
      if (numa < 0) rest.insert(rest.end(), here.begin(), here.end());
      const int left = numa < 0 ? -1 : pair_up(here);
      if (left >= 0) of_package[machine_.numa[at(numa)].package].push_back(left);
    }
    for (auto& [package, here] : of_package) {
      if (package < 0) rest.insert(rest.end(), here.begin(), here.end());
      const int left = package < 0 ? -1 : pair_up(here);
      if (left >= 0) rest.push_back(left);
    }
    pair_up(rest);
  }

  /// The partner by place alone, so that a port that dies leaves other pairs as they are. If it is
  /// dead, another port of the card; -1 if there is none that is active.
  int partner_of(int port) const {
    const std::vector<int> card = card_of(port);
    int partner = partner_[at(port)];
    if (card.size() > 1) {
      const auto self =
          static_cast<std::size_t>(std::find(card.begin(), card.end(), port) - card.begin());
      partner = (self ^ 1) < card.size() ? card[self ^ 1] : -1;
    }
    if (partner >= 0 && in_use_[at(partner)] >= 0) return in_use_[at(partner)];
    for (const int other : card) {
      if (other != port && in_use_[at(other)] >= 0) return in_use_[at(other)];
    }
    return -1;
  }

  /// Of those that are not slow and of the same layer, if there are any, the nearest; of equally
  /// near ones the one that is the backup of the fewest, of these the fastest.
  int nearest_to(int own) const {
    const DevicePlace place = place_of(nic_at(machine_, own));
    const Nic::Layer layer = nic_at(machine_, own).layer;
    const auto worth = [&](int other) {
      const Nic& nic = nic_at(machine_, other);
      return std::tuple(is_slow(nic.gbps, fastest_), nic.layer != layer,
                        nic_cost(machine_, place, nic), load_[at(other)], -nic.gbps);
    };
    int nearest = -1;
    for (const int port : ports_) {
      const int other = in_use_[at(port)];
      if (other < 0 || other == own) continue;
      if (nearest < 0 || worth(other) < worth(nearest)) nearest = other;
    }
    return nearest;
  }

  const Machine& machine_;
  std::vector<int> hardware_;  // of each NIC the port
  std::vector<int> active_;    // of each active NIC the one that is used for its port
  std::vector<int> ports_;
  std::vector<int> in_use_;   // of each port the NIC that is used, or -1: it is dead
  std::vector<int> partner_;  // of each card's one port the other of its pair, dead or not; or -1
  std::vector<int> load_;     // of each NIC, how often it is a backup
  double fastest_ = 0;        // of the active ones
};

/// Whether an active NIC that is too slow to be used is nearer than the one that is.
bool passes_by_slow_one(const Machine& machine, DevicePlace device, const Nic& used) {
  const double fastest = fastest_of(machine);
  return std::any_of(machine.nics.begin(), machine.nics.end(), [&](const Nic& nic) {
    return nic.active && is_slow(nic.gbps, fastest) &&
           nic_cost(machine, device, nic) < nic_cost(machine, device, used);
  });
}

std::string reason_for(const Machine& machine, const NicChoice& choice, DevicePlace device,
                       std::size_t candidates, int load) {
  if (choice.primary < 0) return "there is no active NIC";
  const Nic& nic = nic_at(machine, choice.primary);
  std::string text = fmt::format("{} is ", nic.name);
  text += candidates == 1 ? "the nearest" : fmt::format("one of {} equally near", candidates);
  if (passes_by_slow_one(machine, device, nic)) text += " of those fast enough";
  text += fmt::format(" ({})", name_of(choice.distance));
  if (load > 0) text += fmt::format(", shared with {} other{}", load, load == 1 ? "" : "s");
  if (choice.backup < 0) return text + "; no other fault domain to fall back on";
  const Nic& backup = nic_at(machine, choice.backup);
  return text + fmt::format("; backup {}, {}", backup.name,
                            same_card(nic, backup) ? "the other port of its card" : "another card");
}

/// Lets devices change to candidates that have at least two users fewer, until there is none. Each
/// change makes the users of ports more even, so this ends.
template <typename LoadOf>
void even_out(const std::vector<std::vector<int>>& candidates, std::vector<NicChoice>& choices,
              const LoadOf& load_of) {
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t device = 0; device < choices.size(); ++device) {
      int& own = choices[device].primary;
      for (const int other : candidates[device]) {
        if (load_of(other) + 1 >= load_of(own)) continue;
        --load_of(own);
        ++load_of(other);
        own = other;
        changed = true;
      }
    }
  }
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
  const std::vector<int> ports = ports_of(machine, true);
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
    if (choice.primary >= 0) ++load_of(choice.primary);
  }
  even_out(candidates, choices, load_of);
  for (std::size_t device = 0; device < choices.size(); ++device) {
    NicChoice& choice = choices[device];
    const int sharers = choice.primary < 0 ? 0 : load_of(choice.primary) - 1;
    if (choice.primary >= 0) {
      const Nic& primary = nic_at(machine, choice.primary);
      choice.backup = backups[static_cast<std::size_t>(choice.primary)];
      choice.distance = route_between(machine, devices[device], place_of(primary)).distance;
    }
    choice.reason =
        reason_for(machine, choice, devices[device], candidates[device].size(), sharers);
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
  return Pairing(machine).backups();
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
