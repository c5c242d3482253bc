// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "topo/model/machine.hpp"

namespace oriel::topo {

/// Distance between two PCI devices, nearest first; nvidia-smi's names in brackets.
enum class Distance : std::uint8_t {
  same,         ///< one device [X]
  one_switch,   ///< below one PCIe switch, or functions of one card [PIX]
  switches,     ///< several switches, without a host bridge in between [PXB]
  host_bridge,  ///< below one host bridge [PHB]
  numa_node,    ///< host bridges of one NUMA node [NODE]
  system,       ///< across NUMA nodes [SYS]
  unknown,      ///< the place of a device is not known
};

/// Returns nvidia-smi's name of a distance; "?" for unknown.
std::string_view name_of(Distance distance);

/// Place of a device: its index in Machine::pci and its NUMA node; -1: not known.
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

/// Path over PCI between two devices.
struct Route {
  Distance distance = Distance::unknown;
  int bridges = 0;       ///< number of PCI bridges on the path, including host bridges
  double link_gbps = 0;  ///< bandwidth of the narrowest PCIe link on the path; 0: not known
};

/// Returns the path over PCI between two devices of a machine that passed check(). Symmetric.
Route route_between(const Machine& machine, DevicePlace a, DevicePlace b);

}  // namespace oriel::topo
