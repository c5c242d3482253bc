// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/interface_choice.hpp"

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
#include "topo/choice/nic_assigner.hpp"
#include "topo/choice/nic_choice.hpp"
#include "topo/choice/nic_ports.hpp"
#include "topo/machine/process_machine.hpp"
#include "topo/sources/numa_sysfs.hpp"

namespace oriel::topo {
namespace {

bool share_port(const NetworkInterface& a, const NetworkInterface& b) {
  return std::any_of(a.ports.begin(), a.ports.end(), [&](const NetworkPort& port) {
    return std::any_of(b.ports.begin(), b.ports.end(),
                       [&](const NetworkPort& other) { return port.same_as(other); });
  });
}

/// Returns whether the interface may be used at all.
bool is_fit(const NetworkInterface& one, const std::vector<std::string>& usable) {
  if (usable.empty()) return !one.loopback && !one.part;
  return std::find(usable.begin(), usable.end(), one.name) != usable.end();
}

/// Returns interfaces that are down but have hardware: they keep their place in pairs. Ignores
/// `usable`, because users do not list dead interfaces.
std::vector<NetworkInterface> dead_ones_of(const std::vector<NetworkInterface>& interfaces) {
  std::vector<NetworkInterface> dead;
  std::copy_if(interfaces.begin(), interfaces.end(), std::back_inserter(dead),
               [&](const NetworkInterface& one) {
                 return is_fit(one, {}) && !one.up && !one.ports.empty();
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

/// Converts an interface to NICs, so that one rule serves both: one for each port, or one if no
/// port is known.
std::vector<Nic> as_nics(const Machine& machine, const NetworkInterface& one) {
  Nic nic;
  nic.name = one.name;
  nic.interface = one.name;
  nic.layer = one.layer;
  nic.gbps = one.gbps;
  std::vector<Nic> nics;
  for (const NetworkPort& port : one.ports) {
    Nic& own = nics.emplace_back(nic);
    own.pci = port.pci;
    own.physical = port.physical;
    if (own.pci) own.node = find_pci_node(machine, *own.pci);
    if (own.node < 0 && own.physical) own.node = find_pci_node(machine, *own.physical);
    if (own.node >= 0) own.numa = machine.pci[static_cast<std::size_t>(own.node)].numa;
    if (own.numa < 0) own.numa = numa_index(machine, port.numa);
  }
  if (nics.empty()) nics.push_back(nic);
  return nics;
}

/// Returns the sort key of an interface in its class. Of the interfaces on one port, those that are
/// no part of another come first, then those built upon the fewest.
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

/// Chooses a NIC of the machine for one user, who shares the NICs with others.
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
    for (const NetworkInterface& one : candidates_) nics_.push_back(as_nics(machine_, one));
    for (const std::vector<Nic>& nics : nics_) machine_.nics.push_back(nics.front());
    const auto is_less = [&](const NetworkInterface& one) {
      return class_of(one) != class_of(candidates_.front());
    };
    best_ = static_cast<std::size_t>(std::find_if(candidates_.begin(), candidates_.end(), is_less) -
                                     candidates_.begin());
    is_slow_ = slow_ones();
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
      const auto i = static_cast<std::size_t>(index);
      choice.all.push_back(candidates_[i].name);
      const bool alike = hardware_of(candidates_[i]) == hardware_of(candidates_[primary]) &&
                         machine_.nics[i].layer == machine_.nics[primary].layer;
      if (alike && is_slow_[i] == 0) choice.for_data.push_back(candidates_[i].name);
    }
    choice.reason = reason_for(primary, backup);
    return choice;
  }

 private:
  enum class Hardware { there, usb, none };

  static Hardware hardware_of(const NetworkInterface& one) {
    if (one.ports.empty()) return Hardware::none;
    const bool usb = std::all_of(one.ports.begin(), one.ports.end(),
                                 [](const NetworkPort& port) { return port.usb; });
    return usb ? Hardware::usb : Hardware::there;
  }

  /// Returns the class of an interface by step 1 of choose_interfaces(); smaller is better.
  static std::pair<Hardware, bool> class_of(const NetworkInterface& one) {
    return {hardware_of(one), hardware_of(one) == Hardware::none && !one.way_out};
  }

  /// Returns the primary and its partner among the candidates of the best class; -1: none.
  std::pair<int, int> choose_primary() const {
    std::vector<std::pair<const NetworkInterface*, int>> row;  // index in candidates_, or -1
    for (std::size_t i = 0; i < best_; ++i) row.emplace_back(&candidates_[i], static_cast<int>(i));
    for (const NetworkInterface& one : dead_) {
      if (hardware_of(one) == hardware_of(candidates_.front())) row.emplace_back(&one, -1);
    }
    std::sort(row.begin(), row.end(), [](const auto& a, const auto& b) {
      return place_in_order(*a.first) < place_in_order(*b.first);
    });
    const std::vector<int> groups = groups_of(row.size(), [&](std::size_t i, std::size_t j) {
      return share_port(*row[i].first, *row[j].first);
    });
    Machine machine = machine_;
    machine.nics.clear();
    std::vector<int> candidate;  // index in candidates_ by NIC
    for (std::size_t i = 0; i < row.size(); ++i) {
      for (Nic& nic : as_nics(machine, *row[i].first)) {
        nic.active = row[i].second >= 0;
        // These two fields, both needed, make NICs stand for one port.
        nic.port = groups[i] + 1;
        nic.guid = static_cast<std::uint64_t>(nic.port);
        machine.nics.push_back(std::move(nic));
        candidate.push_back(row[i].second);
      }
    }
    const NicChoice chosen = choose_nic_for(machine, user_);
    const auto candidate_of = [&](int nic) {
      return nic < 0 ? -1 : candidate[static_cast<std::size_t>(nic)];
    };
    return {candidate_of(chosen.primary), candidate_of(chosen.backup)};
  }

  /// Returns the partner if it is a candidate with other hardware, else the nearest such candidate.
  /// If the primary's hardware is unknown, any other candidate fits.
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

  /// Orders all candidates by class, with the primary's link layer first, then fast ones first.
  /// Equal ones are ordered by nearness to `from`, then by index.
  std::vector<int> by_nearness(DevicePlace from, std::size_t primary) const {
    using Rank = std::tuple<std::pair<Hardware, bool>, bool, char, NicCost>;
    std::vector<Rank> ranks;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      ranks.emplace_back(class_of(candidates_[i]),
                         machine_.nics[i].layer != machine_.nics[primary].layer, is_slow_[i],
                         cost_of(from, i));
    }
    std::vector<int> order(candidates_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return ranks[static_cast<std::size_t>(a)] < ranks[static_cast<std::size_t>(b)];
    });
    return order;
  }

  /// Returns the cost of the nearest of a candidate's ports.
  NicCost cost_of(DevicePlace from, std::size_t index) const {
    NicCost least = nic_cost(machine_, from, machine_.nics[index]);
    for (const Nic& nic : nics_[index]) least = std::min(least, nic_cost(machine_, from, nic));
    return least;
  }

  /// Returns for each candidate whether it is slow compared with the best class.
  std::vector<char> slow_ones() const {
    Machine machine = machine_;
    machine.nics.resize(best_);
    const PortSpeeds speeds(machine);
    std::vector<char> is_slow;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const Nic& nic = machine_.nics[i];
      is_slow.push_back(i < best_ ? speeds.is_slow(static_cast<int>(i))
                                  : speeds.is_slow(nic.layer, nic.gbps));
    }
    return is_slow;
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
      const auto distance =
          static_cast<Distance>(std::get<0>(cost_of(place_of_user(machine_, user_), primary)));
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

  Machine machine_;  // NICs of machine_: the interfaces, in the order of candidates_
  std::vector<NetworkInterface> candidates_;
  std::vector<std::vector<Nic>> nics_;  // by candidate; machine_ has the first of each
  std::size_t best_ = 0;                // number of candidates of the best class
  std::vector<char> is_slow_;           // by candidate
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
    // For a GPU that is not listed, counts the earlier ranks at the same NUMA node.
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
  return Chooser(machine, candidates_of(interfaces, usable), dead_ones_of(interfaces), user)
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
