// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"
#include "topo/model/pci_address.hpp"

/// The network interfaces that the kernel lists below /sys/class/net: what sockets go by. Which of
/// them is the way out, /proc/net tells.
namespace oriel::topo {

/// A port of network hardware.
struct NetworkPort {
  std::string hardware;  ///< the device's name in /sys; virtual functions have their card's
  std::optional<PciAddress> pci;       ///< the interface's own function, where it is on a PCI bus
  std::optional<PciAddress> physical;  ///< of a virtual function: the physical one
  int number = 0;                      ///< among the ports of the function
  int numa = -1;                       ///< the system's number of the NUMA node; -1: not known
  bool usb = false;                    ///< such as a server's way to its own BMC

  /// Whether both stand for one port: they fail together.
  bool same_as(const NetworkPort& other) const {
    return hardware == other.hardware && number == other.number;
  }

  bool operator==(const NetworkPort&) const = default;
};

struct NetworkInterface {
  std::string name;
  bool up = true;  ///< as far as the kernel says
  bool loopback = false;
  bool part = false;     ///< of a bond or a bridge, which has the addresses
  bool way_out = false;  ///< of the host or container: it has a default route, and is no loopback
  double gbps = 0;       ///< 0: not known
  Nic::Layer layer = Nic::Layer::other;
  /// The hardware behind it; of one that is built upon others (a bond, a VLAN), all of theirs.
  /// Empty for what has none, such as the interfaces of containers.
  std::vector<NetworkPort> ports;

  /// Built upon how many floors of others: 0 for one with hardware of its own, 1 for its VLAN, or
  /// for what stands in the host for a virtual function (a representor).
  int floor = 0;

  bool operator==(const NetworkInterface&) const = default;
};

/// All of them, by name. Empty where /sys is hidden. Never fails: what a file does not say keeps
/// its default.
std::vector<NetworkInterface> read_network_interfaces(const FileTree& tree);

}  // namespace oriel::topo
