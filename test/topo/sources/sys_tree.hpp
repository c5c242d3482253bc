// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"
#include "topo/sources/net_sysfs.hpp"
#include "topo/sources/numa_sysfs.hpp"
#include "topo/sources/pci_sysfs.hpp"
#include "topo/sources/temporary_tree.hpp"

namespace oriel::topo {

/// The files of /sys of a machine with two sockets. Each has a host bridge, below which PCI
/// bridges hold the added devices.
class SysTree {
 public:
  SysTree() {
    tree_.file("/sys/devices/system/node/online", "0-1\n");
    for (int node = 0; node < 2; ++node) {
      const std::string folder = fmt::format("/sys/devices/system/node/node{}", node);
      tree_.file(folder + "/cpulist", fmt::format("{}-{}\n", node * 8, node * 8 + 7));
      tree_.file(folder + "/distance", node == 0 ? "10 21\n" : "21 10\n");
    }
  }

  /// Adds a device below the bridge `bus`:01.0, at the NUMA node of the host bridge.
  void device(const std::string& name, const std::string& kind, int node, const std::string& bus,
              const std::string& ids = "0x10de") {
    const std::string host = fmt::format("/sys/devices/pci0000:{}0", node * 8);
    const std::string bridge = fmt::format("0000:{}:01.0", bus);
    if (std::find(bridges_.begin(), bridges_.end(), bridge) == bridges_.end()) {
      bridges_.push_back(bridge);
      add(host + "/" + bridge, bridge, "0x060400", node, "0x8086");
    }
    add(host + "/" + bridge + "/" + name, name, kind, node, ids);
    folders_[name] = host + "/" + bridge + "/" + name;
  }
  void gpu(const std::string& name, int node, const std::string& bus) {
    device(name, "0x030200", node, bus);
  }
  /// Adds an interface on a device, and adds the device if it is absent.
  void interface(const std::string& name, const std::string& pci, int node, const std::string& bus,
                 int megabits, int port = 0) {
    if (folders_.count(pci) == 0) device(pci, "0x020000", node, bus, "0x15b3");
    const std::string folder = "/sys/class/net/" + name;
    plain(name, megabits);
    tree_.file(folder + "/dev_port", fmt::format("{}\n", port));
    tree_.link(folder + "/device", "../../.." + folders_[pci].substr(4));
  }
  void plain(const std::string& name, int megabits) {
    const std::string folder = "/sys/class/net/" + name;
    tree_.file(folder + "/flags", "0x1003\n");
    tree_.file(folder + "/operstate", "up\n");
    if (megabits > 0) tree_.file(folder + "/speed", fmt::format("{}\n", megabits));
  }
  void file(const std::string& path, const std::string& text) { tree_.file(path, text); }
  void link(const std::string& path, const std::string& to) { tree_.link(path, to); }
  void virtual_function(const std::string& pci, const std::string& of) {
    tree_.link(folders_[pci] + "/physfn", "../" + of);
  }

  FileTree tree() const { return FileTree(tree_.root()); }
  std::vector<NetworkInterface> interfaces() const { return read_network_interfaces(tree()); }
  Machine machine() const {
    Machine machine;
    static_cast<void>(add_numa_nodes(tree(), machine));
    static_cast<void>(add_pci_tree(tree(), machine));
    REQUIRE(check(machine).ok());
    return canonical(std::move(machine));
  }
  const std::string& root() const { return tree_.root(); }

 private:
  void add(const std::string& folder, const std::string& name, const std::string& kind, int node,
           const std::string& vendor) {
    tree_.file(folder + "/class", kind + "\n");
    tree_.file(folder + "/vendor", vendor + "\n");
    tree_.file(folder + "/device", "0x2335\n");
    tree_.file(folder + "/numa_node", fmt::format("{}\n", node));
    tree_.file(folder + "/current_link_speed", "16.0 GT/s PCIe\n");
    tree_.file(folder + "/current_link_width", "16\n");
    tree_.link("/sys/bus/pci/devices/" + name, "../../.." + folder.substr(4));
  }

  TemporaryTree tree_;
  std::vector<std::string> bridges_;
  std::map<std::string, std::string> folders_;
};

}  // namespace oriel::topo
