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
/// the one whose port the fewest GPUs have taken, of those the fastest. GPUs with the fewest
/// nearest NICs choose first, so that a GPU with a choice leaves the others theirs; in the end none
/// could change to one as near with two users fewer. MIG instances and partitions count as their
/// GPU.
///
/// A NIC is too slow, however near, only where all who would use it get several times as much
/// without it (twice, of one as near), when they share the faster one with all its users: eight
/// GPUs keep their own of 100 Gbit/s rather than share one of 400. A speed that is not known counts
/// as the fastest. All are given NICs of one link layer, for ports of two cannot talk to each
/// other: of that in which the most have one as near as any, unless some would get several times
/// less.
///
/// The backup is of the primary's layer before others, and not several times slower. Of such ones
/// the first user of a port takes the port's partner (backup_nics()); those that share the port
/// take the nearest to themselves, of equally near ones those that the fewest have, so that what
/// one port carried spreads when it fails. It is never the primary, and never a port that fails
/// with it: a second device of the same port, such as a virtual function.
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

/// Whether a NIC is several times slower than another; no where a speed is not known.
bool is_clearly_slower(const Nic& nic, const Nic& other);

/// Whether two are on one card: by its number, else by bus and slot. A virtual function is on the
/// card of its physical one.
bool same_card(const Nic& a, const Nic& b);

/// The partner of each NIC by place (row B3 of the reference on queues); -1 where there is none. It
/// is the other port of the card if the card has two; cards with one port are paired in
/// their order, dead ones too, so that a port that dies leaves
/// other pairs alone. Pairs are of one link layer and both slow or both not, and of those below one
/// PCIe switch first; who is left over there is paired below the host bridge, at the NUMA node, in
/// the package, and last with anyone. Whose partner is dead, or who is the last of an odd number,
/// takes the nearest other: one that is not slow (half as fast as the fastest) before others, then
/// one of the same layer; of equally near ones the one that is the partner of the fewest, of these
/// the fastest.
std::vector<int> backup_nics(const Machine& machine);

}  // namespace oriel::topo
