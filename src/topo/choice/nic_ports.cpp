// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/nic_ports.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>

namespace oriel::topo {
namespace {

const Nic& port_at(const Machine& machine, int index) {
  return machine.nics[static_cast<std::size_t>(index)];
}

/// Returns the function that has the port: the physical one for a virtual function.
std::optional<PciAddress> function_of(const Nic& nic) {
  return nic.physical ? nic.physical : nic.pci;
}

/// Returns whether two devices stand for one port, such as a virtual function and its physical one.
bool same_port(const Nic& a, const Nic& b) {
  if (a.port != b.port) return false;
  const bool one_function =
      (a.physical || b.physical) && function_of(a) && function_of(a) == function_of(b);
  // A GUID shared by a whole card does not distinguish the ports of its functions.
  const bool of_card = a.card != 0 && a.guid == a.card && a.pci && b.pci && a.pci != b.pci;
  return one_function || (a.guid != 0 && a.guid == b.guid && !of_card);
}

/// Pairs of a machine's ports, dead or not, each identified by the NIC that stands for it.
class Pairing {
 public:
  explicit Pairing(const Machine& machine)
      : machine_(machine), hardware_(ports_of(machine, false)) {
    partner_.resize(machine.nics.size(), -1);
    std::map<Nic::Layer, std::vector<int>> singles;
    for (int i = 0; i < static_cast<int>(hardware_.size()); ++i) {
      if (hardware_[at(i)] == i) ports_.push_back(i);
    }
    for (const int port : ports_) {
      const std::vector<int> card = card_of(port);
      if (card.size() == 1) {
        singles[port_at(machine, port).layer].push_back(port);
        continue;
      }
      const auto self =
          static_cast<std::size_t>(std::find(card.begin(), card.end(), port) - card.begin());
      if ((self ^ 1) < card.size()) partner_[at(port)] = card[self ^ 1];
    }
    for (const auto& [layer, alike] : singles) pair_by_place(alike);
  }

  std::vector<int> partners_of_active() const {
    const std::vector<int> active = ports_of(machine_, true);
    std::vector<int> in_use(hardware_.size(), -1);  // by port: the NIC in use, or -1
    for (std::size_t i = 0; i < hardware_.size(); ++i) {
      int& used = in_use[at(hardware_[i])];
      if (used < 0) used = active[i];
    }
    std::vector<int> partners(hardware_.size(), -1);
    for (const int port : ports_) {
      if (in_use[at(port)] < 0 || partner_[at(port)] < 0) continue;
      partners[at(in_use[at(port)])] = in_use[at(partner_[at(port)])];
    }
    return partners;
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  /// Returns the ports on the card of `port`.
  std::vector<int> card_of(int port) const {
    std::vector<int> card;
    std::copy_if(ports_.begin(), ports_.end(), std::back_inserter(card), [&](int other) {
      return other == port || same_card(port_at(machine_, port), port_at(machine_, other));
    });
    return card;
  }

  /// Pairs cards with one port in their order; returns the unpaired one, or -1.
  int pair_up(std::vector<int>& cards) {
    std::sort(cards.begin(), cards.end());
    for (std::size_t i = 0; i + 1 < cards.size(); i += 2) {
      partner_[at(cards[i])] = cards[i + 1];
      partner_[at(cards[i + 1])] = cards[i];
    }
    return cards.size() % 2 == 0 ? -1 : cards.back();
  }

  void pair_by_place(const std::vector<int>& cards) {
    std::vector<std::vector<int>> below(machine_.pci.size());
    std::map<int, std::vector<int>> of_numa;
    std::vector<int> rest;
    for (const int card : cards) {
      const Nic& nic = port_at(machine_, card);
      (nic.node >= 0 ? below[at(nic.node)] : of_numa[nic.numa]).push_back(card);
    }
    for (std::size_t node = below.size(); node-- > 0;) {  // children come after their parents
      const int left = pair_up(below[node]);
      if (left < 0) continue;
      const int parent = machine_.pci[node].parent;
      (parent >= 0 ? below[at(parent)] : of_numa[port_at(machine_, left).numa]).push_back(left);
    }
    for (auto& [numa, here] : of_numa) {
      const int left = pair_up(here);
      if (left >= 0) rest.push_back(left);
    }
    pair_up(rest);
  }

  const Machine& machine_;
  std::vector<int> hardware_;  // by NIC: its port
  std::vector<int> ports_;
  std::vector<int> partner_;  // by port; -1: none
};

}  // namespace

std::vector<int> ports_of(const Machine& machine, bool only_active) {
  const std::size_t count = machine.nics.size();
  const std::vector<int> groups = groups_of(count, [&](std::size_t i, std::size_t j) {
    return same_port(machine.nics[i], machine.nics[j]);
  });
  const auto group = [&](std::size_t nic) { return static_cast<std::size_t>(groups[nic]); };
  std::vector<int> first(count, -1);  // by group: the NIC that stands for it
  for (const bool is_virtual : {false, true}) {
    for (std::size_t i = 0; i < count; ++i) {
      const Nic& nic = machine.nics[i];
      if (first[group(i)] >= 0 || nic.physical.has_value() != is_virtual) continue;
      if (nic.active || !only_active) first[group(i)] = static_cast<int>(i);
    }
  }
  std::vector<int> ports(count, -1);
  for (std::size_t i = 0; i < count; ++i) {
    if (machine.nics[i].active || !only_active) ports[i] = first[group(i)];
  }
  return ports;
}

PortSpeeds::PortSpeeds(const Machine& machine)
    : machine_(machine), ports_(ports_of(machine, true)), gbps_(machine.nics.size(), 0) {
  for (std::size_t nic = 0; nic < ports_.size(); ++nic) {
    if (ports_[nic] < 0) continue;
    const double own = port_at(machine, ports_[nic]).gbps;
    double& gbps = gbps_[static_cast<std::size_t>(ports_[nic])];
    gbps = own > 0 ? own : std::max(gbps, machine.nics[nic].gbps);
    fastest_ = std::max(fastest_, gbps);
    if (gbps > 0) known_.insert(port_at(machine, ports_[nic]).layer);
  }
}

bool PortSpeeds::is_slow(int nic) const {
  const int port = port_of(nic);
  return port >= 0 && is_slow(port_at(machine_, port).layer, gbps(nic));
}

double PortSpeeds::gbps(int nic) const {
  const int port = port_of(nic);
  return port < 0 ? 0 : gbps_[static_cast<std::size_t>(port)];
}

bool same_card(const Nic& a, const Nic& b) {
  if (a.card != 0 && b.card != 0) return a.card == b.card;
  const auto one = function_of(a);
  const auto other = function_of(b);
  return one && other &&
         std::tie(one->domain, one->bus, one->device) ==
             std::tie(other->domain, other->bus, other->device);
}

std::vector<int> partners_by_place(const Machine& machine) {
  return Pairing(machine).partners_of_active();
}

}  // namespace oriel::topo
