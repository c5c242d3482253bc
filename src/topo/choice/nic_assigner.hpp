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

/// Assigns ports of one link layer to devices.
namespace oriel::topo {

/// Cost of a NIC by distance (nic_cost()); smaller is nearer.
using NicCost = std::tuple<int, int>;
/// Costs by device and NIC.
using NicCosts = std::vector<std::vector<NicCost>>;
NicCosts nic_costs(const Machine& machine, const std::vector<DevicePlace>& devices);

/// Assigns each device its nearest port of a link layer, excluding slow ports. Maximises the
/// smallest share of a port's speed. The arguments must outlive the object.
class NicAssigner {
 public:
  NicAssigner(const Machine& machine, const PortSpeeds& speeds, Nic::Layer layer,
              const NicCosts& costs);

  /// Returns the NIC of a device; -1: there is none.
  int primary(std::size_t device) const {
    return used_[device] == nullptr ? -1 : used_[device]->nic;
  }
  /// Returns the number of devices that use the port of this device's NIC, including this device.
  std::size_t users(std::size_t device) const { return users_[at(used_[device]->port)].size(); }
  /// Returns the number of ports that are as near to a device as the port that it uses.
  std::size_t as_near(std::size_t device) const { return candidates_[device].size(); }
  /// Returns the smallest share of a port's speed that a device gets; 0 if no device has a port.
  double least_share() const;
  /// Returns the cost of a device's nearest port; the device must have one.
  const NicCost& cost(std::size_t device) const {
    return costs_[device][at(candidates_[device].front().nic)];
  }

 private:
  /// A port and the one of its NICs that a device uses.
  struct Candidate {
    int port;
    int nic;
  };
  /// A move of a device to another port. It leaves room at the device's old port.
  struct Step {
    const Candidate* to;
    std::size_t device;
    int from;  // index of the step whose port the device leaves; -1: it has no port yet
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
  std::vector<std::vector<Candidate>> candidates_;  // by device
  std::vector<std::set<std::size_t>> users_;        // by port
  std::vector<int> cards_;                          // card number by port
  std::vector<int> card_users_;                     // number of users by card
  std::vector<const Candidate*> used_;              // by device; null: none
};

}  // namespace oriel::topo
