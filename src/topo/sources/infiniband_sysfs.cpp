// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/infiniband_sysfs.hpp"

#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "topo/model/guid.hpp"
#include "topo/sources/pci_sysfs.hpp"
#include "topo/xml/xml_values.hpp"

namespace oriel::topo {
namespace {

constexpr const char* kInfinibandFolder = "/sys/class/infiniband";

/// Returns a GUID; 0 if there is none.
std::uint64_t read_guid(const FileTree& tree, const std::string& path) {
  return guid_in(tree.read(path).value_or("")).value_or(0);
}

/// Reads a rate such as "400 Gb/sec (4X NDR)" or "2.5 Gb/sec (1X SDR)"; 0 for anything else.
double read_rate(const FileTree& tree, const std::string& path) {
  const std::string text = tree.read(path).value_or("");
  double rate = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, rate);
  const bool in_gigabits = std::string_view(rest, end).starts_with(" Gb/sec");
  return error == std::errc() && in_gigabits && rate > 0 && rate < 1e6 ? rate : 0;
}

Nic::Layer layer_of(const std::string& text) {
  if (text == "InfiniBand") return Nic::Layer::infiniband;
  return text == "Ethernet" ? Nic::Layer::ethernet : Nic::Layer::other;
}

/// Reads the properties that all ports of a device share.
Nic read_device(const FileTree& tree, const std::string& folder, const std::string& name) {
  Nic nic;
  nic.name = name;
  nic.guid = read_guid(tree, folder + "/node_guid");
  nic.card = read_guid(tree, folder + "/sys_image_guid");
  nic.pci = pci_function_above(tree, folder + "/device");
  if (const auto link = tree.link_name(folder + "/device/physfn")) {
    if (const auto address = parse_pci_address(*link); address.ok()) nic.physical = *address;
  } else if (nic.pci && tree.link_name(folder + "/device") != nic.pci->to_string()) {
    nic.physical = nic.pci;  // a subfunction: it has the port of its physical function
  }
  nic.numa = static_cast<int>(tree.read_number(folder + "/device/numa_node").value_or(-1));
  return nic;
}

/// Returns the network interface of a port: its dev_port is the port's number minus one. If none
/// matches, returns the device's only interface; empty if there are several or none.
std::string interface_of(const FileTree& tree, const std::string& folder, int port) {
  const auto names = tree.list(folder + "/device/net");
  for (const std::string& name : names) {
    const std::string number = fmt::format("{}/device/net/{}/dev_port", folder, name);
    if (tree.read_number(number) == port - 1) return name;
  }
  return names.size() == 1 ? names.front() : std::string();
}

}  // namespace

InfinibandList read_infiniband(const FileTree& tree) {
  InfinibandList list;
  list.report.source = kInfinibandFolder;
  if (!tree.exists(kInfinibandFolder)) {
    list.report.outcome = SourceReport::Outcome::absent;
    list.report.detail = "there is no such folder: no RDMA driver is loaded, or it is hidden";
    return list;
  }
  int inactive = 0;
  for (const std::string& name : tree.list(kInfinibandFolder)) {
    const std::string folder = fmt::format("{}/{}", kInfinibandFolder, name);
    const Nic device = read_device(tree, folder, name);
    for (const std::string& number : tree.list(folder + "/ports")) {
      Nic nic = device;
      nic.port = std::atoi(number.c_str());
      if (nic.port < 1 || std::to_string(nic.port) != number) continue;
      const std::string port = fmt::format("{}/ports/{}", folder, number);
      nic.active = tree.read(port + "/state").value_or("").starts_with("4:");
      nic.gbps = read_rate(tree, port + "/rate");
      nic.layer = layer_of(tree.read(port + "/link_layer").value_or(""));
      nic.interface = interface_of(tree, folder, nic.port);
      if (!nic.active) ++inactive;
      list.nics.push_back(std::move(nic));
    }
  }
  if (list.nics.empty()) {
    list.report.detail = "it lists no port";
    return list;
  }
  list.report.detail = fmt::format("{} port{}, {} of them not active", list.nics.size(),
                                   list.nics.size() == 1 ? "" : "s", inactive);
  return list;
}

}  // namespace oriel::topo
