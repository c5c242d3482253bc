// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "topo/machine.hpp"

/// What of a machine's NICs is one port, one card, and a pair of ports.
namespace oriel::topo {

/// For each NIC the one that stands for its port: the physical function before virtual ones, then
/// the first. Of active ones among themselves (-1 for others), or of all, active or not.
std::vector<int> ports_of(const Machine& machine, bool only_active);

/// Whether two are on one card: by its number, else by bus and slot. A virtual function is on the
/// card of its physical one.
bool same_card(const Nic& a, const Nic& b);

/// For each NIC that stands for an active port the one that does for its partner (row B3 of the
/// reference on queues), by place alone, so that a port that dies leaves other pairs as they are:
/// the other port of the card if that has two, else the other of two cards of one link layer that
/// are paired in their order. Those below one PCIe bridge are paired first, the lowest bridges
/// before others, who is left over at the NUMA node, and last with anyone. -1 for the last of an
/// odd number, and for one whose partner is dead.
std::vector<int> partners_by_place(const Machine& machine);

}  // namespace oriel::topo
