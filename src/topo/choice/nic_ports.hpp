// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <vector>

#include "topo/model/machine.hpp"

/// What of a machine's NICs is one port, one card, and a pair of ports.
namespace oriel::topo {

/// Of each of so many things the first that is in its group: `same` says which two are in one, be
/// it through a third.
template <typename Same>
std::vector<int> groups_of(std::size_t count, Same same) {
  std::vector<int> firsts(count);
  std::iota(firsts.begin(), firsts.end(), 0);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (firsts[i] == firsts[j] || !same(i, j)) continue;
      const auto [low, high] = std::minmax({firsts[i], firsts[j]});
      std::replace(firsts.begin(), firsts.end(), high, low);
    }
  }
  return firsts;
}

/// For each NIC the one that stands for its port: the physical function before virtual ones, then
/// the first. Of all, or of active ones alone (-1 for others).
std::vector<int> ports_of(const Machine& machine, bool only_active);

/// The active ports of a machine and their speeds: one for each port, however many NICs stand for
/// it. At least one of the ports is not slow.
class PortSpeeds {
 public:
  explicit PortSpeeds(const Machine& machine);

  /// The NIC that stands for the port of another; -1 for one that is not active.
  int port_of(int nic) const { return ports_[static_cast<std::size_t>(nic)]; }
  /// What the NIC says that stands for the port, else the most that another of its NICs says; 0:
  /// not known, or not active.
  double gbps(int nic) const;
  /// Of the fastest port; 0: none is known.
  double fastest() const { return fastest_; }
  /// Whether a port is one for maintenance rather than for data: it has less than an eighth of the
  /// speed of the fastest, or tells of none where another of its layer does. So 8 GPUs that leave
  /// their own slow ones for a fast one that they share get more each.
  bool is_slow(int nic) const;
  bool is_slow(Nic::Layer layer, double gbps) const {
    return gbps > 0 ? gbps * 8 < fastest_ : known_.count(layer) != 0;
  }

 private:
  const Machine& machine_;
  std::vector<int> ports_;
  std::vector<double> gbps_;  // of each port, by the NIC that stands for it
  double fastest_ = 0;
  std::set<Nic::Layer> known_;  // those of which some port's speed is known
};

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
