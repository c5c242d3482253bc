// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <set>
#include <tuple>
#include <vector>

#include "topo/choice/nic_ports.hpp"
#include "topo/model/distance.hpp"
#include "topo/model/machine.hpp"

/// Which ports of one link layer devices use.
namespace oriel::topo {

/// What the distance of a NIC is worth (nic_cost()): smaller is nearer.
using NicCost = std::tuple<int, int>;
/// Of each device to each NIC.
using NicCosts = std::vector<std::vector<NicCost>>;
NicCosts nic_costs(const Machine& machine, const std::vector<DevicePlace>& devices);

/// Gives each device its nearest port of a link layer that is not slow, so that the least share of
/// a port's speed is as great as it can be. The arguments have to outlive it.
class NicAssigner {
 public:
  NicAssigner(const Machine& machine, const PortSpeeds& speeds, Nic::Layer layer,
              const NicCosts& costs);

  /// The NIC of a device; -1: there is none.
  int primary(std::size_t device) const {
    return used_[device] == nullptr ? -1 : used_[device]->nic;
  }
  /// How many devices, that one among them, use the port of a device's NIC.
  std::size_t users(std::size_t device) const { return users_[at(used_[device]->port)].size(); }
  /// How many ports are as near to a device as the one that it uses.
  std::size_t as_near(std::size_t device) const { return candidates_[device].size(); }
  /// What is left of its port's speed for the device that gets the least; 0 where there is none.
  double least_share() const;
  /// What the nearest port costs a device, which has one.
  const NicCost& cost(std::size_t device) const {
    return costs_[device][at(candidates_[device].front().nic)];
  }

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
  double speed_of(int port) const;
  bool is_fit(int nic) const;
  std::vector<Candidate> nearest(const std::vector<NicCost>& costs) const;
  bool is_better(int port, int other) const;
  void assign(std::size_t device);
  std::vector<Step> steps_from(std::size_t device) const;

  const Machine& machine_;
  const PortSpeeds& speeds_;
  Nic::Layer layer_;
  const NicCosts& costs_;
  std::vector<std::vector<Candidate>> candidates_;  // of each device
  std::vector<std::set<std::size_t>> users_;        // of each port
  std::vector<int> cards_;                          // of each port the card, a number
  std::vector<int> card_users_;                     // of each card
  std::vector<const Candidate*> used_;              // of each device, or null
};

}  // namespace oriel::topo
