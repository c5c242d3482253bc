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

/// Of which a port for maintenance is no match in a pair. A speed that is not known counts as fast.
bool is_slow(double gbps, double fastest) {
  return gbps > 0 && gbps * 2 < fastest;
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
  // What is the same for the whole card does not tell its functions' ports apart.
  const bool of_card = a.card != 0 && a.guid == a.card && a.pci && b.pci && a.pci != b.pci;
  return one_function || (a.guid != 0 && a.guid == b.guid && !of_card);
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

/// How much more a GPU must get of a faster NIC that is farther than the slow one that it leaves,
/// and of one that is as near.
constexpr double kClearlyMore = 4;
constexpr double kMoreAsNear = 2;

using Cost = std::tuple<int, int>;

/// Who uses which NIC.
struct Assignment {
  std::vector<char> usable;                  // of each NIC, whether it was one to choose from
  std::vector<std::vector<int>> candidates;  // of each device, the nearest of those
  std::vector<int> primary;                  // of each device; -1: there is none
  std::vector<double> share;                 // of each device, what it gets of its NIC's speed
};

/// Assigns NICs to devices at places.
class Assigner {
 public:
  Assigner(const Machine& machine, const std::vector<DevicePlace>& devices)
      : machine_(machine), ports_(ports_of(machine, true)), fastest_(fastest_of(machine)) {
    for (const DevicePlace& device : devices) {
      std::vector<Cost>& row = costs_.emplace_back();
      row.reserve(machine.nics.size());
      for (const Nic& nic : machine.nics) row.push_back(nic_cost(machine, device, nic));
    }
  }

  /// Of one link layer for all if none loses clearly by that: ports of two cannot talk to each
  /// other.
  Assignment assign() const {
    Assignment mixed = without_slow([](const Nic&) { return true; });
    std::optional<Assignment> best;
    std::pair<int, double> most{-1, 0};
    for (const Nic::Layer layer : layers_of(mixed)) {
      Assignment one = without_slow([&](const Nic& nic) { return nic.layer == layer; });
      if (loses_clearly(one, mixed)) continue;
      const auto worth = worth_of(one, mixed);
      if (worth <= most) continue;
      most = worth;
      best = std::move(one);
    }
    return best ? *std::move(best) : mixed;
  }

  const Cost& cost(std::size_t device, int nic) const { return costs_[device][at(nic)]; }
  /// The NIC that stands for the port of another; -1 for one that is not active.
  int port_of(int nic) const { return ports_[at(nic)]; }
  /// Of each port the devices that use it.
  std::vector<int> loads_of(const std::vector<int>& primary) const {
    std::vector<int> loads(machine_.nics.size(), 0);
    for (const int nic : primary) {
      if (nic >= 0) ++loads[at(port_of(nic))];
    }
    return loads;
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  double speed_of(int nic) const {
    const double gbps = nic_at(machine_, nic).gbps;
    return gbps > 0 ? gbps : fastest_;
  }

  /// The layers in use, in the order of the enumeration.
  std::vector<Nic::Layer> layers_of(const Assignment& assignment) const {
    std::vector<Nic::Layer> layers;
    for (const int nic : assignment.primary) {
      if (nic >= 0) layers.push_back(nic_at(machine_, nic).layer);
    }
    std::sort(layers.begin(), layers.end());
    layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
    return layers;
  }

  static bool loses_clearly(const Assignment& one, const Assignment& mixed) {
    for (std::size_t device = 0; device < one.primary.size(); ++device) {
      if (one.share[device] * kClearlyMore < mixed.share[device]) return true;
    }
    return false;
  }

  /// How many devices have one as near as in a mix, and the least that one gets.
  std::pair<int, double> worth_of(const Assignment& one, const Assignment& mixed) const {
    int near = 0;
    for (std::size_t device = 0; device < one.primary.size(); ++device) {
      if (cost(device, one.primary[device]) == cost(device, mixed.primary[device])) ++near;
    }
    return {near, *std::min_element(one.share.begin(), one.share.end())};
  }

  /// Leaves out what is too slow, by steps of twice the speed: if those that used it get clearly
  /// more without it, with all that then share.
  template <typename Counts>
  Assignment without_slow(const Counts& counts) const {
    std::vector<char> usable;
    std::vector<double> speeds;
    for (const Nic& nic : machine_.nics) {
      usable.push_back(nic.active && counts(nic) ? 1 : 0);
      if (usable.back() != 0 && nic.gbps > 0) speeds.push_back(nic.gbps);
    }
    std::sort(speeds.begin(), speeds.end());
    Assignment best = among(usable);
    double step = speeds.empty() ? 0 : speeds.front();
    for (const double speed : speeds) {
      if (speed < 2 * step) continue;
      step = speed;
      for (std::size_t nic = 0; nic < usable.size(); ++nic) {
        const double own = machine_.nics[nic].gbps;
        if (own > 0 && own < step) usable[nic] = 0;
      }
      Assignment faster = among(usable);
      if (is_clearly_faster(faster, best)) best = std::move(faster);
    }
    return best;
  }

  bool is_clearly_faster(const Assignment& faster, const Assignment& slower) const {
    for (std::size_t device = 0; device < faster.primary.size(); ++device) {
      const int before = slower.primary[device];
      if (before < 0 || faster.usable[at(before)] != 0) continue;
      const int after = faster.primary[device];
      const bool as_near = after >= 0 && cost(device, after) <= cost(device, before);
      const double factor = as_near ? kMoreAsNear : kClearlyMore;
      if (faster.share[device] < factor * slower.share[device]) return false;
    }
    return true;
  }

  std::vector<int> nearest(std::size_t device, const std::vector<char>& usable) const {
    std::vector<int> nearest;
    Cost least;
    for (int nic = 0; nic < static_cast<int>(usable.size()); ++nic) {
      if (usable[at(nic)] == 0) continue;
      const Cost& own = cost(device, nic);
      if (!nearest.empty() && own > least) continue;
      if (nearest.empty() || own < least) nearest.clear();
      least = own;
      nearest.push_back(nic);
    }
    return nearest;
  }

  /// Distance first, then the fewest users, then speed. Devices with the fewest nearest NICs choose
  /// first.
  Assignment among(const std::vector<char>& usable) const {
    Assignment result;
    result.usable = usable;
    const std::size_t count = costs_.size();
    for (std::size_t device = 0; device < count; ++device) {
      result.candidates.push_back(nearest(device, usable));
    }
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return result.candidates[a].size() < result.candidates[b].size();
    });
    result.primary.resize(count, -1);
    std::vector<int> loads(machine_.nics.size(), 0);
    for (const std::size_t device : order) {
      const auto worth = [&](int nic) {
        return std::tuple(loads[at(port_of(nic))], -nic_at(machine_, nic).gbps,
                          nic_at(machine_, nic).physical.has_value());
      };
      int& own = result.primary[device];
      for (const int nic : result.candidates[device]) {
        if (own < 0 || worth(nic) < worth(own)) own = nic;
      }
      if (own >= 0) ++loads[at(port_of(own))];
    }
    even_out(result, loads);
    for (const int nic : result.primary) {
      result.share.push_back(nic < 0 ? 0 : speed_of(nic) / loads[at(port_of(nic))]);
    }
    return result;
  }

  /// Lets devices change to candidates that have at least two users fewer, until there is none.
  /// Each change makes the users of ports more even, so this ends.
  void even_out(Assignment& result, std::vector<int>& loads) const {
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t device = 0; device < result.primary.size(); ++device) {
        int& own = result.primary[device];
        for (const int other : result.candidates[device]) {
          if (loads[at(port_of(other))] + 1 >= loads[at(port_of(own))]) continue;
          --loads[at(port_of(own))];
          ++loads[at(port_of(other))];
          own = other;
          changed = true;
        }
      }
    }
  }

  const Machine& machine_;
  std::vector<int> ports_;  // of each active NIC the one that stands for its port
  double fastest_ = 0;
  std::vector<std::vector<Cost>> costs_;  // of each device, to each NIC
};

/// The backup of each device. The first user of a port takes the partner of that port; those that
/// share it spread over others, so that a port that dies does not burden one alone.
std::vector<int> choose_backups(const Machine& machine, const Assigner& assigner,
                                const std::vector<int>& primary) {
  const std::vector<int> partners = backup_nics(machine);
  std::vector<int> loads(machine.nics.size(), 0);
  std::map<std::pair<int, int>, int> shared;  // of a port and its backup, how often
  std::vector<int> backups(primary.size(), -1);
  std::vector<char> used(machine.nics.size(), 0);
  for (std::size_t device = 0; device < primary.size(); ++device) {
    const int own = primary[device];
    if (own < 0) continue;
    const Nic& nic = nic_at(machine, own);
    const int port = assigner.port_of(own);
    const bool first = used[static_cast<std::size_t>(port)] == 0;
    used[static_cast<std::size_t>(port)] = 1;
    const auto worth = [&](int other) {
      const Nic& one = nic_at(machine, other);
      const auto twice = shared.find({port, other});
      return std::tuple(one.layer != nic.layer, is_clearly_slower(one, nic),
                        !(first && other == partners[static_cast<std::size_t>(own)]),
                        assigner.cost(device, other), twice == shared.end() ? 0 : twice->second,
                        loads[static_cast<std::size_t>(other)], -one.gbps);
    };
    int& backup = backups[device];
    for (int other = 0; other < static_cast<int>(machine.nics.size()); ++other) {
      if (assigner.port_of(other) != other || other == port) continue;
      if (backup < 0 || worth(other) < worth(backup)) backup = other;
    }
    if (backup < 0) continue;
    ++loads[static_cast<std::size_t>(backup)];
    ++shared[{port, backup}];
  }
  return backups;
}

/// Of what the one chosen is the nearest, where a nearer one was passed by.
std::string passed_by(const Assigner& assigner, const Machine& machine, const Assignment& chosen,
                      std::size_t device) {
  const int own = chosen.primary[device];
  std::string text;
  for (int nic = 0; nic < static_cast<int>(machine.nics.size()); ++nic) {
    const bool nearer =
        nic_at(machine, nic).active && assigner.cost(device, nic) < assigner.cost(device, own);
    if (!nearer) continue;
    if (nic_at(machine, nic).layer == nic_at(machine, own).layer) return " of those fast enough";
    text = " of the link layer that all can use";
  }
  return text;
}

std::string reason_for(const Machine& machine, const NicChoice& choice, const std::string& passed,
                       std::size_t candidates, int sharers) {
  const Nic& nic = nic_at(machine, choice.primary);
  std::string text = fmt::format("{} is ", nic.name);
  text += candidates == 1 ? "the nearest" : fmt::format("one of {} equally near", candidates);
  text += passed + fmt::format(" ({})", name_of(choice.distance));
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
  const Assignment chosen = assigner.assign();
  const std::vector<int> backups = choose_backups(machine, assigner, chosen.primary);
  const std::vector<int> loads = assigner.loads_of(chosen.primary);
  std::vector<NicChoice> choices(devices.size());
  for (std::size_t device = 0; device < choices.size(); ++device) {
    NicChoice& choice = choices[device];
    choice.primary = chosen.primary[device];
    choice.backup = backups[device];
    if (choice.primary < 0) {
      choice.reason = "there is no active NIC";
      continue;
    }
    const Nic& primary = nic_at(machine, choice.primary);
    const int port = assigner.port_of(choice.primary);
    choice.distance = route_between(machine, devices[device], place_of(primary)).distance;
    choice.reason =
        reason_for(machine, choice, passed_by(assigner, machine, chosen, device),
                   chosen.candidates[device].size(), loads[static_cast<std::size_t>(port)] - 1);
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

bool is_clearly_slower(const Nic& nic, const Nic& other) {
  return nic.gbps > 0 && nic.gbps * kClearlyMore <= other.gbps;
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
  const std::size_t near = Assigner(machine, {place}).assign().candidates.front().size();
  const std::size_t turns = near == 0 || before < 0 ? 0 : static_cast<std::size_t>(before) % near;
  return choose(machine, std::vector<DevicePlace>(turns + 1, place)).back();
}

}  // namespace oriel::topo
