// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <vector>

#include "topo/model/machine.hpp"

/// Groups a machine's NICs by port, card and pair of ports.
namespace oriel::topo {

/// Returns for each of `count` items the first item of its group. `same` says which two items
/// belong together; the relation is applied transitively.
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

/// Returns for each NIC the NIC that stands for its port: a physical function before virtual ones,
/// then the first. Uses all NICs, or only active ones (-1 for others).
std::vector<int> ports_of(const Machine& machine, bool only_active);

/// The active ports of a machine and their speeds: one for each port, even if several NICs stand
/// for it. At least one port is not slow.
class PortSpeeds {
 public:
  explicit PortSpeeds(const Machine& machine);

  /// Returns the NIC that stands for this NIC's port; -1 for an inactive NIC.
  int port_of(int nic) const { return ports_[static_cast<std::size_t>(nic)]; }
  /// Returns the speed reported by the NIC that stands for the port, else the highest of its other
  /// NICs. 0: not known, or not active.
  double gbps(int nic) const;
  /// Returns the speed of the fastest port; 0: none is known.
  double fastest() const { return fastest_; }
  /// Returns whether a port serves maintenance rather than data. It is slow if it has less than an
  /// eighth of the fastest speed. It is also slow if its speed is unknown but another port of its
  /// layer has a known one. Thus even 8 GPUs that share one fast port get more than from slow ports
  /// of their own.
  bool is_slow(int nic) const;
  bool is_slow(Nic::Layer layer, double gbps) const {
    return gbps > 0 ? gbps * 8 < fastest_ : known_.count(layer) != 0;
  }

 private:
  const Machine& machine_;
  std::vector<int> ports_;
  std::vector<double> gbps_;  // by the NIC that stands for the port
  double fastest_ = 0;
  std::set<Nic::Layer> known_;  // layers in which a port's speed is known
};

/// Returns whether two NICs are on one card: by card number, else by bus and slot. A virtual
/// function is on the card of its physical function.
bool same_card(const Nic& a, const Nic& b);

/// Returns for each NIC that stands for an active port the NIC of its partner port (row B3 in
/// docs/requirements.md). Pairs by place alone, so that a dead port does not change other pairs.
/// The ports of a card with several are paired in their order. Cards with one port are paired
/// within a link layer, in their order: first below one PCIe bridge, lowest bridges first.
/// Remaining cards are paired at their NUMA node, then anywhere. -1: any other NIC, the last port
/// of an odd number, or a port whose partner is dead.
std::vector<int> partners_by_place(const Machine& machine);

}  // namespace oriel::topo
