// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "topo/distance.hpp"
#include "topo/machine.hpp"

namespace oriel::topo {

/// The NICs of one GPU, or of one NUMA node.
struct NicChoice {
  int primary = -1;  ///< in Machine::nics; -1: there is none that is active
  int backup = -1;   ///< takes over when the primary fails; -1: no NIC in another fault domain
  Distance distance = Distance::unknown;  ///< from the device to the primary
  std::string reason;                     ///< in words, for a person

  bool operator==(const NicChoice&) const = default;
};

/// For each GPU the nearest active NIC: by PCI distance, then by NUMA node; among equally near ones
/// the one whose port the fewest GPUs have taken, of those the fastest. A NIC less than half as
/// fast as the fastest is none, however near; a speed that is not known counts as fast. GPUs with
/// the fewest nearest NICs choose first, so that a GPU with a choice leaves the others theirs; in
/// the end none could change to one as near with two users fewer. MIG instances and partitions
/// count as their GPU.
///
/// The backup is the other port of the card if the card has two; cards with one port are paired in
/// their order (row B3 of the reference on queues), dead ones too, so that a port that dies leaves
/// other pairs alone. Pairs are of one link layer and both slow or both not, and of those below one
/// PCIe switch first; who is left over there is paired below the host bridge, at the NUMA node, in
/// the package, and last with anyone. Whose partner is dead, or who is the last of an odd number,
/// takes the nearest other: one that is not slow before others, then one of the same layer; of
/// equally near ones the one that is the backup of the fewest, of these the fastest. It is never
/// the primary, and never a port that fails with it: a second device of the same port, such as a
/// virtual function.
///
/// A function of a canonical() machine: every rank that describes the machine alike chooses alike.
std::vector<NicChoice> choose_nics(const Machine& machine);

/// The same for ranks on the CPU: one choice for each NUMA node.
std::vector<NicChoice> choose_nics_of_numa_nodes(const Machine& machine);

/// The same for one device anywhere, if `before` others at this place have chosen already.
NicChoice choose_nic_at(const Machine& machine, DevicePlace place, int before);

/// What the distance of a NIC is worth: smaller is nearer. Where the PCI tree says as little of
/// several, the NUMA nodes' own distances decide.
std::tuple<int, int> nic_cost(const Machine& machine, DevicePlace device, const Nic& nic);

/// Whether two are on one card: by its number, else by bus and slot. A virtual function is on the
/// card of its physical one.
bool same_card(const Nic& a, const Nic& b);

/// The backup of each NIC; -1 where there is none.
std::vector<int> backup_nics(const Machine& machine);

}  // namespace oriel::topo
