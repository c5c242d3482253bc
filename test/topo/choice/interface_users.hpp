// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
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

/// Describes network interfaces in one line:
///
///     gpu 02; ens1f0 03 100 part=bond0; bond0 - 200; ens1f1 03.1 0
///
/// Each item has the name, the bus and function (`-` without hardware), and Gbit/s. Buses are
/// hexadecimal: those from 80 on are on the second socket, and each 40 share a bridge. Further
/// words add files:
///
///     down           state of the interface.
///     lo             loopback flag.
///     type=32        link layer.
///     port=1         port of the function.
///     name=p0        name of the port.
///     parent=ib0     parent interface.
///     vf=03          a virtual function of 03.
///     on=eth0        a VLAN on eth0.
///     part=bond0     a member of bond0.
///     virtio@03      a device behind a function; also `auxiliary@03` and `usb@03`.
class Sys : public SysTree {
 public:
  explicit Sys(const std::string& items = "") {
    std::istringstream all(items);
    for (std::string item; std::getline(all, item, ';');) add_item(item);
  }

  InterfaceChoice choose(const InterfaceUser& user, const Names& usable = {}) const {
    return choose_interfaces(machine(), interfaces(), user, usable);
  }

 private:
  static std::string full(const std::string& function) {
    return fmt::format("0000:{}:00.{}", function.substr(0, 2),
                       function.size() > 3 ? function.substr(3) : "0");
  }
  void add_item(const std::string& item) {
    std::istringstream words(item);
    std::string name, at, word;
    double gbps = 0;
    words >> name >> at >> gbps;
    const int bus = at == "-" ? 0 : std::stoi(at.substr(0, 2), nullptr, 16);
    const std::string root = fmt::format("{:02x}", bus & 0xc0);
    if (name == "gpu") return gpu(full(at), bus >> 7, root);
    words.clear();
    const int megabits = static_cast<int>(gbps * 1000);
    if (at == "-") plain(name, megabits);
    if (at != "-") interface(name, full(at), bus >> 7, root, megabits);
    while (words >> word) add_fact(name, at, word);
  }
  void add_fact(const std::string& name, const std::string& at, const std::string& fact) {
    const std::string folder = "/sys/class/net/" + name + "/";
    const std::size_t mark = fact.find_first_of("=@");
    const std::string what = fact.substr(0, mark);
    const std::string value = mark == std::string::npos ? "" : fact.substr(mark + 1);
    if (what == "down") return file(folder + "operstate", "down\n");
    if (what == "lo") return file(folder + "flags", "0x9\n");
    if (what == "type" || what == "parent") return file(folder + what, value + "\n");
    if (what == "port") return file(folder + "dev_port", value + "\n");
    if (what == "name") return file(folder + "phys_port_name", value + "\n");
    if (what == "vf") return virtual_function(full(at), full(value));
    if (what == "on") return link(folder + "lower_" + value, "../" + value);
    if (what == "part") {
      link(folder + "master", "../" + value);
      return link("/sys/class/net/" + value + "/lower_" + name, "../" + name);
    }
    const std::string device =
        fmt::format("/devices/pci0000:00/0000:00:01.0/{}/behind_{}", full(value), name);
    link("/sys" + device + "/subsystem", "../../../../../bus/" + what);
    link(folder + "device", "../../.." + device);
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

/// Two GPUs and two cards at each socket, one of each behind one bridge.
constexpr const char* kPairs =
    "gpu 02; ens0 03 100; gpu 42; ens1 43 100; gpu 82; ens2 83 100; gpu c2; ens3 c3 100";

}  // namespace oriel::topo
