// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/net_sysfs.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "topo/sources/pci_sysfs.hpp"

namespace oriel::topo {
namespace {

constexpr const char* kNetFolder = "/sys/class/net";
constexpr std::string_view kSubfunctionBus = "auxiliary";
constexpr std::string_view kUsbBus = "usb";
// Interface flags of the kernel (include/uapi/linux/if.h).
constexpr std::uint32_t kUp = 1U << 0;
constexpr std::uint32_t kLoopback = 1U << 3;
// Link types of the kernel (include/uapi/linux/if_arp.h).
constexpr std::int64_t kEthernet = 1;
constexpr std::int64_t kInfiniband = 32;
// Exceeds realistic depths, such as a VLAN of a bond of two ports.
constexpr int kMostFloors = 4;
constexpr std::int64_t kNumaNumberMost = 1 << 16;

std::string folder_of(const std::string& name) {
  return fmt::format("{}/{}", kNetFolder, name);
}

/// Reads flags such as "0x1003"; nothing for anything else.
std::optional<std::uint32_t> flags_of(const FileTree& tree, const std::string& folder) {
  const std::string text = tree.read(folder + "/flags").value_or("");
  if (!text.starts_with("0x")) return std::nullopt;
  std::uint32_t flags = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + 2, end, flags, 16);
  if (error != std::errc() || rest != end) return std::nullopt;
  return flags;
}

/// Returns the interface's own hardware.
std::optional<NetworkPort> own_port(const FileTree& tree, const std::string& folder) {
  const auto link = tree.link_name(folder + "/device");
  if (!link) return std::nullopt;
  const std::string bus = tree.link_name(folder + "/device/subsystem").value_or("");
  NetworkPort port;
  port.hardware = *link;
  port.usb = bus == kUsbBus;
  port.pci = pci_function_above(tree, folder + "/device");
  if (port.pci) {
    port.physical = physical_function_of(tree, *port.pci);
    // Virtual functions and subfunctions (on the auxiliary bus) share a port. Other devices behind
    // a function (virtio, USB) have one port each.
    const bool is_function = *link == port.pci->to_string();
    const bool is_subfunction = bus == kSubfunctionBus;
    if (is_subfunction && !port.physical) port.physical = port.pci;
    if (is_function || is_subfunction) {
      port.hardware = port.physical.value_or(*port.pci).to_string();
    }
  }
  const auto numa = tree.read_number(folder + "/device/numa_node").value_or(-1);
  if (numa >= 0 && numa <= kNumaNumberMost) port.numa = static_cast<int>(numa);
  const auto number = tree.read_number(folder + "/dev_port").value_or(0);
  port.number = number > 0 && number < 256 ? static_cast<int>(number) : 0;
  return port;
}

/// Adds the ports below an interface, and returns the number of layers below it.
int add_ports(const FileTree& tree, const std::string& name, int floors,
              std::vector<NetworkPort>& ports) {
  constexpr std::string_view kLower = "lower_";
  const std::string folder = folder_of(name);
  if (auto port = own_port(tree, folder)) {
    const auto known = [&](const NetworkPort& other) { return port->same_as(other); };
    if (std::none_of(ports.begin(), ports.end(), known)) ports.push_back(std::move(*port));
    // Counts shared hardware as one layer: a child of an IPoIB interface uses its parent's. A
    // representor ("pf0vf1") uses that of its card's uplink ("p0").
    const std::string port_name = tree.read(folder + "/phys_port_name").value_or("");
    const bool is_representor = port_name.find("pf") != std::string::npos;
    return tree.exists(folder + "/parent") || is_representor ? 1 : 0;
  }
  int below = 0;
  if (floors == 0) return below;
  for (const std::string& entry : tree.list(folder)) {
    if (!entry.starts_with(kLower)) continue;
    below = std::max(below, 1 + add_ports(tree, entry.substr(kLower.size()), floors - 1, ports));
  }
  return below;
}

/// Returns the interfaces with a default route, of IPv4 or IPv6.
std::set<std::string> ways_out(const FileTree& tree) {
  std::set<std::string> names;
  std::string word;
  for (const bool version_6 : {false, true}) {
    std::istringstream lines(
        tree.read(version_6 ? "/proc/net/ipv6_route" : "/proc/net/route").value_or(""));
    for (std::string line; std::getline(lines, line);) {
      std::vector<std::string> words;
      for (std::istringstream text(line); text >> word;) words.push_back(word);
      // IPv4: name, destination, ..., the mask as eighth word. IPv6: destination, prefix length,
      // ..., the name last.
      const std::size_t mask = version_6 ? 1 : 7;
      const std::size_t destination = version_6 ? 0 : 1;
      if (words.size() <= mask) continue;
      const auto is_zero = [&](std::size_t i) {
        return words[i].find_first_not_of('0') == std::string::npos;
      };
      if (is_zero(destination) && is_zero(mask)) {
        names.insert(version_6 ? words.back() : words.front());
      }
    }
  }
  return names;
}

NetworkInterface read_interface(const FileTree& tree, const std::string& name) {
  const std::string folder = folder_of(name);
  NetworkInterface one;
  one.name = name;
  const std::string state = tree.read(folder + "/operstate").value_or("unknown");
  const auto flags = flags_of(tree, folder);
  // Drivers that report no state leave it "unknown"; then the administrative state counts.
  one.up = (state == "up" || state == "unknown") && (!flags || (*flags & kUp) != 0);
  one.loopback = flags && (*flags & kLoopback) != 0;
  one.part = tree.link_name(folder + "/master").has_value();
  const auto megabits = tree.read_number(folder + "/speed").value_or(0);
  if (megabits > 0 && megabits < 100'000'000) one.gbps = static_cast<double>(megabits) / 1000;
  const auto type = tree.read_number(folder + "/type").value_or(0);
  if (type == kEthernet) one.layer = Nic::Layer::ethernet;
  if (type == kInfiniband) one.layer = Nic::Layer::infiniband;
  one.floor = add_ports(tree, name, kMostFloors, one.ports);
  return one;
}

}  // namespace

std::vector<NetworkInterface> read_network_interfaces(const FileTree& tree) {
  std::vector<NetworkInterface> interfaces;
  const std::set<std::string> out = ways_out(tree);
  for (const std::string& name : tree.list(kNetFolder)) {
    // Skips plain files beside the interfaces, such as bonding_masters.
    if (!tree.exists(folder_of(name) + "/flags") && !tree.exists(folder_of(name) + "/operstate")) {
      continue;
    }
    interfaces.push_back(read_interface(tree, name));
    // Excludes loopback: rejecting routes of IPv6 lead there.
    interfaces.back().way_out = !interfaces.back().loopback && out.count(name) != 0;
  }
  return interfaces;
}

}  // namespace oriel::topo
