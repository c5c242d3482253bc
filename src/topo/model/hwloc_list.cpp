// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/model/hwloc_list.hpp"

#include <fmt/format.h>

#include "topo/model/guid.hpp"

namespace oriel::topo {
namespace {

// Upper bytes of PCI classes: display controllers (VGA, 3D and others) and processing accelerators.
constexpr unsigned kDisplayClass = 0x03;
constexpr unsigned kAcceleratorClass = 0x12;
constexpr unsigned kNvidia = 0x10de;
constexpr unsigned kAmd = 0x1002;

}  // namespace

void HwlocList::add_ports(const std::string& name, int index,
                          const std::function<std::string(const std::string&)>& info) {
  constexpr int kMostPorts = 255;
  const PciNode& node = pci[static_cast<std::size_t>(index)];
  for (int port = 1; port <= kMostPorts; ++port) {
    const std::string state = info(fmt::format("Port{}State", port));
    if (state.empty()) break;
    Nic nic;
    nic.name = name;
    nic.port = port;
    nic.pci = node.address;
    nic.node = index;
    nic.numa = node.numa;
    nic.layer = Nic::Layer::other;
    nic.active = state == "4";
    nic.guid = guid_in(info("NodeGUID")).value_or(0);
    nic.card = guid_in(info("SysImageGUID")).value_or(0);
    nics.push_back(std::move(nic));
  }
}

std::optional<Gpu> gpu_by_class(std::uint16_t class_id, std::uint16_t vendor,
                                std::uint16_t device) {
  const unsigned kind = class_id >> 8;
  // Other vendors' accelerators need not be GPUs.
  if (kind != kDisplayClass && !(kind == kAcceleratorClass && vendor == kAmd)) return std::nullopt;
  Gpu gpu;
  gpu.vendor = vendor == kNvidia ? GpuVendor::nvidia
               : vendor == kAmd  ? GpuVendor::amd
                                 : GpuVendor::other;
  gpu.name = fmt::format("PCI device {:04x}:{:04x}", vendor, device);
  return gpu;
}

}  // namespace oriel::topo
