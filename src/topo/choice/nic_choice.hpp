// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "topo/choice/nic_ports.hpp"
#include "topo/model/distance.hpp"
#include "topo/model/machine.hpp"

namespace oriel::topo {

/// NIC choice of one GPU, or of one NUMA node.
struct NicChoice {
  int primary = -1;  ///< index in Machine::nics; -1: none, see `reason`
  int backup = -1;   ///< used when the primary fails; -1: no NIC in another fault domain
  Distance distance = Distance::unknown;  ///< from the device to the primary
  std::string reason;                     ///< text for the user

  bool operator==(const NicChoice&) const = default;
};

/// Chooses for each GPU the nearest active NIC, by PCI distance, then by NUMA distance. Equally
/// near NICs are shared so as to maximise the smallest share of a port's speed. Users are spread
/// evenly over ports of equal speed. Of equally good ports, those of cards with fewer users come
/// first. MIG instances and partitions count as their GPU.
///
/// Excludes slow ports (PortSpeeds) and other link layers than layer_for_all(), because ports of
/// two layers cannot communicate. A layer without any known speed counts as the fastest. On a
/// machine with an active NIC, every device gets one.
///
/// The backup of a port's first user is the port's partner (partners_by_place()). The partner may
/// be dead, slow, of another layer or missing. In this case, and for the port's other users,
/// another active port is the backup. Ports of the primary's layer come first, then fast ones, then
/// near ones. Of equally near ports, the port with the fewest fallbacks wins, then the fastest. A
/// backup is never the primary or another device of the same port, such as a virtual function.
///
/// Depends only on a canonical() machine: every rank with the same description chooses alike.
std::vector<NicChoice> choose_nics(const Machine& machine);

/// Chooses for ranks on the CPU: one choice for each NUMA node. Nodes without processors get no
/// NIC, unless no node is known to have any.
std::vector<NicChoice> choose_nics_of_numa_nodes(const Machine& machine);

/// Chooses for devices at any places, one choice for each.
std::vector<NicChoice> choose_nics_at(const Machine& machine,
                                      const std::vector<DevicePlace>& places);

/// Chooses for one device at any place, after `before` other devices at this place have chosen.
NicChoice choose_nic_at(const Machine& machine, DevicePlace place, int before);

/// Returns the places of the GPUs. MIG instances and partitions share the place of their GPU.
/// `index` receives the index of each GPU's place.
std::vector<DevicePlace> places_of_gpus(const Machine& machine, std::vector<std::size_t>& index);

/// Returns the NUMA nodes on which ranks may run: those with processors, or all if no node is known
/// to have any.
std::vector<DevicePlace> places_of_processors(const Machine& machine);

/// Returns the cost of a NIC by its distance; smaller is nearer. If PCI distances are equal, the
/// distances of the NUMA nodes decide.
std::tuple<int, int> nic_cost(const Machine& machine, DevicePlace device, const Nic& nic);

}  // namespace oriel::topo
