// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"
#include "topo/model/pci_address.hpp"

/// Network interfaces that the kernel lists below /sys/class/net, for sockets. /proc/net says which
/// of them have a default route.
namespace oriel::topo {

/// A port of network hardware.
struct NetworkPort {
  std::string hardware;           ///< device name in /sys; of virtual functions the physical one's
  std::optional<PciAddress> pci;  ///< function of the interface, if it is on a PCI bus
  std::optional<PciAddress> physical;  ///< physical function of a virtual function or subfunction
  int number = 0;                      ///< index among the ports of the function
  int numa = -1;                       ///< OS number of the NUMA node; -1: not known
  bool usb = false;                    ///< on a USB bus, such as a server's link to its own BMC

  /// Returns whether both are one port: they fail together.
  bool same_as(const NetworkPort& other) const {
    return hardware == other.hardware && number == other.number;
  }

  bool operator==(const NetworkPort&) const = default;
};

struct NetworkInterface {
  std::string name;
  bool up = true;  ///< according to the kernel
  bool loopback = false;
  bool part = false;     ///< part of a bond or a bridge, which has the addresses
  bool way_out = false;  ///< has a default route, and is no loopback
  double gbps = 0;       ///< 0: not known
  Nic::Layer layer = Nic::Layer::other;
  /// Hardware of the interface; for an interface built upon others (a bond, a VLAN), all of theirs.
  /// Empty without hardware, such as for interfaces of containers.
  std::vector<NetworkPort> ports;

  /// Number of layers of interfaces below: 0 for an interface with its own hardware, 1 for its
  /// VLAN. Also 1 for a representor, which stands for a virtual function in the host.
  int floor = 0;

  bool operator==(const NetworkInterface&) const = default;
};

/// Reads all interfaces, sorted by name. Empty if /sys is hidden. Never fails: missing values keep
/// their defaults.
std::vector<NetworkInterface> read_network_interfaces(const FileTree& tree);

}  // namespace oriel::topo
