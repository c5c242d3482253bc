// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include "topo/choice/interface_choice.hpp"
#include "topo/sources/sys_tree.hpp"

/// Machines with network interfaces, and ranks that choose among them.
namespace oriel::topo {

using Names = std::vector<std::string>;

inline PciAddress address(const std::string& text) {
  return parse_pci_address(text).value();
}

class Sys : public SysTree {
 public:
  InterfaceChoice choose(const InterfaceUser& user, const Names& usable = {}) const {
    return choose_interfaces(machine(), interfaces(), user, usable);
  }
};

inline InterfaceUser user_on_gpu(const std::string& pci) {
  InterfaceUser user;
  user.gpu = address(pci);
  return user;
}
inline InterfaceUser user_on_cpu(int numa, int place = 0) {
  return {std::nullopt, numa, place, {}};
}

/// 2 GPUs and 2 cards at each socket, one of each behind one bridge.
inline void fill(Sys& sys) {
  for (int node = 0; node < 2; ++node) {
    for (int pair = 0; pair < 2; ++pair) {
      const int bus = node * 0x80 + pair * 0x40;
      sys.gpu(fmt::format("0000:{:02x}:00.0", bus + 2), node, fmt::format("{:02x}", bus));
      sys.interface(fmt::format("ens{}", node * 2 + pair), fmt::format("0000:{:02x}:00.0", bus + 3),
                    node, fmt::format("{:02x}", bus), 100'000);
    }
  }
}

}  // namespace oriel::topo
