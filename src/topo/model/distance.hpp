// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "topo/model/machine.hpp"

namespace oriel::topo {

/// How far apart two PCI devices are, nearest first; nvidia-smi's names in brackets.
enum class Distance : std::uint8_t {
  same,         ///< one device [X]
  one_switch,   ///< below one PCIe switch, or functions of one card [PIX]
  switches,     ///< several switches, without a host bridge in between [PXB]
  host_bridge,  ///< below one host bridge [PHB]
  numa_node,    ///< host bridges of one NUMA node [NODE]
  system,       ///< across NUMA nodes [SYS]
  unknown,      ///< nothing says where one of them is
};

/// nvidia-smi's name of a distance; "?" for unknown.
std::string_view name_of(Distance distance);

/// Where a device is: its place in the PCI tree and its NUMA node, each -1 where it is not known.
struct DevicePlace {
  int node = -1;
  int numa = -1;
};

inline DevicePlace place_of(const Gpu& gpu) {
  return {gpu.node, gpu.numa};
}
inline DevicePlace place_of(const Nic& nic) {
  return {nic.node, nic.numa};
}

/// What lies between two devices.
struct Route {
  Distance distance = Distance::unknown;
  int bridges = 0;       ///< PCI bridges on the way, host bridges included
  double link_gbps = 0;  ///< of the narrowest PCIe link on the way; 0: not known
};

/// The way over PCI between two devices of a machine that passed check(). Symmetric.
Route route_between(const Machine& machine, DevicePlace a, DevicePlace b);

}  // namespace oriel::topo
