// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/interface_choice.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/settings.hpp"
#include "base/try.hpp"
#include "topo/nic_choice.hpp"
#include "topo/numa_sysfs.hpp"
#include "topo/process_machine.hpp"

namespace oriel::topo {
namespace {

bool share_port(const NetworkInterface& a, const NetworkInterface& b) {
  return std::any_of(a.ports.begin(), a.ports.end(), [&](const NetworkPort& port) {
    return std::any_of(b.ports.begin(), b.ports.end(),
                       [&](const NetworkPort& other) { return port.same_as(other); });
  });
}

/// Whether it may be used at all.
bool is_fit(const NetworkInterface& one, const std::vector<std::string>& usable) {
  if (usable.empty()) return !one.loopback && !one.part;
  return std::find(usable.begin(), usable.end(), one.name) != usable.end();
}

/// Those whose hardware is there, and down: they keep their place in a pair.
std::vector<NetworkInterface> dead_ones_of(const std::vector<NetworkInterface>& interfaces,
                                           const std::vector<std::string>& usable) {
  std::vector<NetworkInterface> dead;
  std::copy_if(interfaces.begin(), interfaces.end(), std::back_inserter(dead),
               [&](const NetworkInterface& one) {
                 return is_fit(one, usable) && !one.up && !one.ports.empty();
               });
  return dead;
}

std::vector<NetworkInterface> candidates_of(const std::vector<NetworkInterface>& interfaces,
                                            const std::vector<std::string>& usable) {
  std::vector<NetworkInterface> candidates;
  for (const NetworkInterface& one : interfaces) {
    if (is_fit(one, usable) && one.up) candidates.push_back(one);
  }
  for (const std::string& name : usable) {
    const auto is_it = [&](const NetworkInterface& one) { return one.name == name; };
    if (std::any_of(interfaces.begin(), interfaces.end(), is_it)) continue;
    if (std::any_of(candidates.begin(), candidates.end(), is_it)) continue;
    NetworkInterface unknown;
    unknown.name = name;
    candidates.push_back(std::move(unknown));
  }
  return candidates;
}

/// An interface as a NIC, so that one rule chooses among both. A bond counts as its first port.
Nic as_nic(const Machine& machine, const NetworkInterface& one) {
  Nic nic;
  nic.name = one.name;
  nic.interface = one.name;
  nic.layer = one.layer;
  nic.gbps = one.gbps;
  if (one.ports.empty()) return nic;
  const NetworkPort& port = one.ports.front();
  nic.pci = port.pci;
  nic.physical = port.physical;
  if (nic.pci) nic.node = find_pci_node(machine, *nic.pci);
  if (nic.node < 0 && nic.physical) nic.node = find_pci_node(machine, *nic.physical);
  if (nic.node >= 0) nic.numa = machine.pci[static_cast<std::size_t>(nic.node)].numa;
  if (nic.numa < 0) nic.numa = numa_index(machine, port.numa);
  return nic;
}

/// Of each interface a number that it has in common with those that share hardware with it, be it
/// through a third (a bond of two ports joins what is on either); from 1.
std::vector<int> port_numbers(const std::vector<const NetworkInterface*>& interfaces) {
  std::vector<int> numbers(interfaces.size());
  std::iota(numbers.begin(), numbers.end(), 1);
  for (std::size_t i = 0; i < interfaces.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (numbers[i] == numbers[j] || !share_port(*interfaces[i], *interfaces[j])) continue;
      std::replace(numbers.begin(), numbers.end(), std::max(numbers[i], numbers[j]),
                   std::min(numbers[i], numbers[j]));
    }
  }
  return numbers;
}

/// Where an interface stands among others of its class: of those on one port that is first which is
/// no part of another, and built upon the fewest.
auto place_in_order(const NetworkInterface& one) {
  const auto pci = one.ports.empty() ? std::nullopt : one.ports.front().pci;
  const int number = one.ports.empty() ? 0 : one.ports.front().number;
  return std::tuple(!pci, pci, number, one.part, one.floor, std::string_view(one.name));
}

DevicePlace place_of_user(const Machine& machine, const InterfaceUser& user) {
  for (const Gpu& gpu : machine.gpus) {
    if (user.gpu && gpu.pci == user.gpu) return place_of(gpu);
  }
  return {user.gpu ? find_pci_node(machine, *user.gpu) : -1, numa_index(machine, user.numa)};
}

/// Of a machine's NICs those of one user, who shares them with others.
NicChoice choose_nic_for(const Machine& machine, const InterfaceUser& user) {
  for (std::size_t i = 0; i < machine.gpus.size() && user.gpu; ++i) {
    if (machine.gpus[i].pci == user.gpu) return choose_nics(machine)[i];
  }
  const auto own = static_cast<std::size_t>(user.place);
  if (user.gpu || own >= user.numa_of_ranks.size()) {
    return choose_nic_at(machine, place_of_user(machine, user), user.place);
  }
  std::vector<DevicePlace> places;
  for (const int numa : user.numa_of_ranks) places.push_back({-1, numa_index(machine, numa)});
  return choose_nics_at(machine, places)[own];
}

class Chooser {
 public:
  Chooser(const Machine& machine, std::vector<NetworkInterface> candidates,
          std::vector<NetworkInterface> dead, const InterfaceUser& user)
      : machine_(machine), candidates_(std::move(candidates)), dead_(std::move(dead)), user_(user) {
    machine_.nics.clear();
    std::sort(candidates_.begin(), candidates_.end(), [&](const auto& a, const auto& b) {
      return std::pair(class_of(a), place_in_order(a)) < std::pair(class_of(b), place_in_order(b));
    });
    for (const NetworkInterface& one : candidates_) machine_.nics.push_back(as_nic(machine_, one));
  }

  InterfaceChoice choose() {
    InterfaceChoice choice;
    if (candidates_.empty()) {
      choice.reason = "there is no network interface that is up";
      return choice;
    }
    const auto [chosen, partner] = choose_primary();
    const auto primary = static_cast<std::size_t>(std::max(chosen, 0));  // there is a candidate
    const int backup = backup_of(primary, partner);
    choice.primary = candidates_[primary].name;
    if (backup >= 0) choice.backup = candidates_[static_cast<std::size_t>(backup)].name;
    for (const int index : order_of_all(primary, backup)) {
      choice.all.push_back(candidates_[static_cast<std::size_t>(index)].name);
    }
    choice.reason = reason_for(primary, backup);
    return choice;
  }

 private:
  /// What step 1 says of an interface; smaller is better.
  static int class_of(const NetworkInterface& one) {
    return !one.ports.empty() ? 0 : one.way_out ? 1 : 2;
  }

  /// The primary and its partner, among the candidates of the best class; -1: none.
  std::pair<int, int> choose_primary() const {
    std::vector<std::pair<const NetworkInterface*, int>> row;  // with the place in candidates_
    for (const NetworkInterface& one : candidates_) {
      if (class_of(one) != class_of(candidates_.front())) break;
      row.emplace_back(&one, static_cast<int>(row.size()));
    }
    for (const NetworkInterface& one : dead_) row.emplace_back(&one, -1);
    std::sort(row.begin(), row.end(), [](const auto& a, const auto& b) {
      return place_in_order(*a.first) < place_in_order(*b.first);
    });
    Machine machine = machine_;
    machine.nics.clear();
    std::vector<const NetworkInterface*> interfaces;
    interfaces.reserve(row.size());
    for (const auto& [one, place] : row) interfaces.push_back(one);
    const std::vector<int> numbers = port_numbers(interfaces);
    for (std::size_t i = 0; i < row.size(); ++i) {
      Nic nic = as_nic(machine, *row[i].first);
      nic.active = row[i].second >= 0;
      // By these two, and no less, devices stand for one port.
      nic.port = numbers[i];
      nic.guid = static_cast<std::uint64_t>(numbers[i]);
      machine.nics.push_back(std::move(nic));
    }
    const NicChoice chosen = choose_nic_for(machine, user_);
    const auto candidate = [&](int nic) {
      return nic < 0 ? -1 : row[static_cast<std::size_t>(nic)].second;
    };
    return {candidate(chosen.primary), candidate(chosen.backup)};
  }

  /// The partner among the best if it has other hardware, else the nearest that has. Where nothing
  /// is known of the primary's hardware, any other will have to do.
  int backup_of(std::size_t primary, int partner) const {
    const auto fits = [&](int index) {
      const auto other = static_cast<std::size_t>(index);
      return other != primary && !share_port(candidates_[primary], candidates_[other]);
    };
    if (partner >= 0 && fits(partner)) return partner;
    for (const int index : by_nearness(place_of(machine_.nics[primary]), primary)) {
      if (fits(index)) return index;
    }
    return -1;
  }

  /// All candidates: by class, those of the primary's link layer first, then those that are not
  /// slow, then by nearness to a place, then as they stand.
  std::vector<int> by_nearness(DevicePlace from, std::size_t primary) const {
    std::vector<int> order(candidates_.size());
    const auto first_of_rest =
        std::find_if(candidates_.begin(), candidates_.end(), [&](const NetworkInterface& one) {
          return class_of(one) != class_of(candidates_.front());
        });
    const auto best = static_cast<std::size_t>(first_of_rest - candidates_.begin());
    Machine machine = machine_;
    machine.nics.resize(best);
    const PortSpeeds speeds(machine);
    std::iota(order.begin(), order.end(), 0);
    const auto rank_of = [&](int index) {
      const auto i = static_cast<std::size_t>(index);
      return std::tuple(
          class_of(candidates_[i]), machine_.nics[i].layer != machine_.nics[primary].layer,
          i < best ? speeds.is_slow(index) : is_slow(machine_.nics[i].gbps, speeds.fastest()),
          nic_cost(machine_, from, machine_.nics[i]));
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return rank_of(a) < rank_of(b); });
    return order;
  }

  std::vector<int> order_of_all(std::size_t primary, int backup) const {
    std::vector<int> order{static_cast<int>(primary)};
    if (backup >= 0) order.push_back(backup);
    for (const int index : by_nearness(place_of_user(machine_, user_), primary)) {
      if (std::find(order.begin(), order.end(), index) == order.end()) order.push_back(index);
    }
    return order;
  }

  std::string reason_for(std::size_t primary, int backup) const {
    const NetworkInterface& own = candidates_[primary];
    std::string text = own.name;
    if (own.ports.empty()) {
      text += ", without hardware of its own";
    } else {
      const Distance distance =
          route_between(machine_, place_of_user(machine_, user_), place_of(machine_.nics[primary]))
              .distance;
      text += fmt::format(" on {} ({})", own.ports.front().hardware, name_of(distance));
    }
    if (backup < 0) return text + "; no backup on other hardware";
    const NetworkInterface& other = candidates_[static_cast<std::size_t>(backup)];
    if (other.ports.empty() || own.ports.empty()) {
      return text + fmt::format("; backup {}, of which nothing says on what hardware it rests",
                                other.ports.empty() ? other.name : own.name);
    }
    const bool one_card =
        same_card(machine_.nics[primary], machine_.nics[static_cast<std::size_t>(backup)]);
    return text + fmt::format("; backup {}, {}", other.name,
                              one_card ? "the other port of the card" : "another card");
  }

  Machine machine_;  // with the interfaces as its NICs, in the order of the candidates
  std::vector<NetworkInterface> candidates_;
  std::vector<NetworkInterface> dead_;
  InterfaceUser user_;
};

}  // namespace

InterfaceUser interface_user(const std::vector<RankInfo>& ranks, std::size_t own) {
  const RankInfo& self = ranks[own];
  InterfaceUser user;
  user.numa = self.numa;
  if (!self.pci_id.empty()) {
    if (const auto address = parse_pci_address(self.pci_id); address.ok()) user.gpu = *address;
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankInfo& other = ranks[rank];
    if (other.node != self.node || other.kind != self.kind) continue;
    // Of a GPU that is not listed no more is known than the NUMA node.
    const bool gpu = self.kind != DeviceKind::host;
    if (rank < own && (!gpu || other.numa == self.numa)) ++user.place;
    if (!gpu) user.numa_of_ranks.push_back(other.numa);
  }
  return user;
}

InterfaceChoice choose_interfaces(const Machine& machine,
                                  const std::vector<NetworkInterface>& interfaces,
                                  const InterfaceUser& user,
                                  const std::vector<std::string>& usable) {
  return Chooser(machine, candidates_of(interfaces, usable), dead_ones_of(interfaces, usable), user)
      .choose();
}

Result<InterfaceChoice> own_interfaces(const InterfaceUser& user,
                                       const std::vector<std::string>& usable) {
  ORIEL_TRY(const Settings* settings, process_settings());
  ORIEL_TRY(const auto network, process_machine().network(*settings));
  return choose_interfaces(network->machine, network->interfaces, user, usable);
}

Result<Nic> own_adapter(const InterfaceUser& user, const Settings& settings) {
  ORIEL_TRY(const auto machine, process_machine().whole(settings));
  const NicChoice chosen = choose_nic_for(*machine, user);
  if (chosen.primary < 0) {
    return Error(ErrorCode::system, "this machine has no RDMA port that is active")
        .with_hint("ORIEL_TOPO_FILE describes a machine; ORIEL_NIC=soft needs no adapter");
  }
  const Nic& nic = machine->nics[static_cast<std::size_t>(chosen.primary)];
  Log().info("adapter {} port {}: {}", nic.name, nic.port, chosen.reason);
  return nic;
}

}  // namespace oriel::topo
