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

/// The NICs of one GPU, or of one NUMA node.
struct NicChoice {
  int primary = -1;  ///< in Machine::nics; -1: there is none that is active
  int backup = -1;   ///< takes over when the primary fails; -1: no NIC in another fault domain
  Distance distance = Distance::unknown;  ///< from the device to the primary
  std::string reason;                     ///< in words, for a person

  bool operator==(const NicChoice&) const = default;
};

/// For each GPU the nearest active NIC: by PCI distance, then by NUMA node. Equally near ones are
/// shared so that the GPU which gets the least of its port's speed gets as much as can be; among
/// ports of one speed the users are as even as can be, and of ports as good those of cards with
/// fewer users come first. MIG instances and partitions count as their GPU.
///
/// Slow ports (PortSpeeds) are left out, and so are those of other link layers than
/// layer_for_all(): ports of two layers cannot talk to each other. A layer of which no speed is
/// known counts as the fastest. A machine with an active NIC has one for each device.
///
/// The backup of the first user of a port is the port's partner (partners_by_place()). Where that
/// is dead, slow, of another layer or not there, and for others that share the port, it is the
/// nearest port of the primary's layer that is not slow, if there is one; of equally near ones that
/// on which the fewest fall back, of these the fastest. It is never the primary, and never a NIC
/// that fails with it: a second device of the same port, such as a virtual function.
///
/// A function of a canonical() machine: every rank that describes the machine alike chooses alike.
std::vector<NicChoice> choose_nics(const Machine& machine);

/// The same for ranks on the CPU: one choice for each NUMA node. Those without processors have no
/// NIC, unless none is known to have any.
std::vector<NicChoice> choose_nics_of_numa_nodes(const Machine& machine);

/// The same for devices anywhere, one choice for each.
std::vector<NicChoice> choose_nics_at(const Machine& machine,
                                      const std::vector<DevicePlace>& places);

/// The same for one device anywhere, if `before` others at this place have chosen already.
NicChoice choose_nic_at(const Machine& machine, DevicePlace place, int before);

/// The GPUs' places. MIG instances and partitions stand at that of their GPU, which counts once:
/// `index` tells of each GPU which place it has.
std::vector<DevicePlace> places_of_gpus(const Machine& machine, std::vector<std::size_t>& index);

/// The NUMA nodes that ranks may be beside: those with processors, or all if none is known to have
/// any.
std::vector<DevicePlace> places_of_processors(const Machine& machine);

/// What the distance of a NIC is worth: smaller is nearer. Where the PCI tree says as little of
/// several, the NUMA nodes' own distances decide.
std::tuple<int, int> nic_cost(const Machine& machine, DevicePlace device, const Nic& nic);

}  // namespace oriel::topo
