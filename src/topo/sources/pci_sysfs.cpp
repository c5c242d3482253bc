// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/pci_sysfs.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "topo/model/hwloc_list.hpp"
#include "topo/model/pcie_speed.hpp"
#include "topo/sources/numa_sysfs.hpp"

namespace oriel::topo {
namespace {

constexpr unsigned kNetworkClass = 0x02;
constexpr std::int64_t kMostLanes = 64;

std::string folder_of(const PciAddress& device) {
  return fmt::format("{}/{}", kPciFolder, device.to_string());
}

/// Reads a number such as "0x030200"; 0 for anything else.
std::uint32_t hexadecimal_in(const FileTree& tree, const std::string& path) {
  const std::string text = tree.read(path).value_or("");
  std::uint32_t number = 0;
  const std::size_t begin = text.starts_with("0x") ? 2 : 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + begin, end, number, 16);
  return error == std::errc() && rest == end ? number : 0;
}

/// Returns the "current" or "max" lanes of a device folder's link; 0 if they are not reported.
int lanes_of(const FileTree& tree, const std::string& folder, const char* which) {
  const auto width = tree.read_number(fmt::format("{}/{}_link_width", folder, which));
  return width && *width > 0 && *width <= kMostLanes ? static_cast<int>(*width) : 0;
}

double link_gbps_of(const FileTree& tree, const std::string& folder, const char* which) {
  const int lanes = lanes_of(tree, folder, which);
  const std::string speed = tree.read(fmt::format("{}/{}_link_speed", folder, which)).value_or("");
  double transfers = 0;  // GT/s, parsed from "32.0 GT/s PCIe"
  const auto read = std::from_chars(speed.data(), speed.data() + speed.size(), transfers);
  if (read.ec != std::errc()) return 0;
  return pcie_gbps(pcie_generation_of(transfers), static_cast<unsigned>(lanes));
}

class PciReader {
 public:
  PciReader(const FileTree& tree, Machine& machine) : tree_(tree), machine_(machine) {
    for (std::size_t i = 0; i < machine.pci.size(); ++i) {
      const PciNode& node = machine.pci[i];
      if (!node.address || node.parent < 0) continue;
      places_[node.address->to_string()] = static_cast<int>(i);
      // A host bridge has no address, but devices directly below it have its domain and bus.
      const bool below_host = machine.pci[static_cast<std::size_t>(node.parent)].parent < 0;
      if (below_host) places_.emplace(host_name(*node.address), node.parent);
    }
  }

  void read() {
    for (const std::string& name : tree_.list(kPciFolder)) {
      const auto address = parse_pci_address(name);
      if (address.ok()) read_device(*address);
    }
  }

  void place_gpus(std::size_t first) {
    for (std::size_t i = first; i < machine_.gpus.size(); ++i) {
      Gpu& gpu = machine_.gpus[i];
      if (gpu.pci && gpu.node < 0) gpu.node = add_chain(*gpu.pci);
    }
  }

 private:
  static std::string host_name(const PciAddress& below) {
    return fmt::format("pci{:04x}:{:02x}", below.domain, below.bus);
  }

  void read_device(const PciAddress& address) {
    const std::string folder = folder_of(address);
    const std::uint32_t kind = hexadecimal_in(tree_, folder + "/class") >> 8;
    const auto number = [&](const char* file) {
      return static_cast<std::uint16_t>(hexadecimal_in(tree_, folder + file));
    };
    auto gpu = gpu_by_class(static_cast<std::uint16_t>(kind), number("/vendor"), number("/device"));
    if (gpu && gpu->vendor == GpuVendor::other) gpu.reset();
    if (!gpu && kind >> 8 != kNetworkClass) return;
    const int node = add_chain(address);
    if (!gpu || node < 0) return;
    gpu->pci = address;
    gpu->node = node;
    gpu->numa = machine_.pci[static_cast<std::size_t>(node)].numa;
    gpu->pcie_gbps = machine_.pci[static_cast<std::size_t>(node)].link_gbps;
    gpu->pcie_now_gbps = gpu->pcie_gbps;
    machine_.gpus.push_back(std::move(*gpu));
  }

  /// Adds a device and the nodes above it; returns its index. -1: the kernel does not report the
  /// path, or there is no room.
  int add_chain(const PciAddress& device) {
    std::string host;
    std::vector<PciAddress> chain;
    for (const std::string& part : tree_.resolved(folder_of(device))) {
      if (part.starts_with("pci") && part.find(':') != std::string::npos) {  // "pci0000:60"
        host = part;
        chain.clear();
      } else if (auto address = parse_pci_address(part); address.ok() && !part.empty()) {
        chain.push_back(*address);
      }
    }
    if (host.empty() || chain.empty() || chain.back() != device) return -1;
    const int numa = numa_of_device(tree_, machine_, device);
    int place = add_node(host, {}, -1, numa);
    for (const PciAddress& address : chain) {
      if (place < 0) return -1;
      if (const auto known = places_.find(address.to_string()); known != places_.end()) {
        place = known->second;
        continue;
      }
      PciNode node;
      node.kind = address == device ? PciNode::Kind::device : PciNode::Kind::bridge;
      node.address = address;
      node.link_gbps = link_gbps_of(tree_, folder_of(address), "current");
      place = add_node(address.to_string(), node, place, numa);
    }
    return place;
  }

  int add_node(const std::string& key, PciNode node, int parent, int numa) {
    const auto known = places_.find(key);
    if (known != places_.end()) return known->second;
    if (machine_.pci.size() >= kMachineLimits.pci) return -1;
    if (parent < 0) node.kind = PciNode::Kind::host_bridge;
    node.parent = parent;
    node.numa = numa;
    const int place = static_cast<int>(machine_.pci.size());
    machine_.pci.push_back(node);
    places_[key] = place;
    return place;
  }

  const FileTree& tree_;
  Machine& machine_;
  std::map<std::string, int> places_;
};

}  // namespace

SourceReport add_pci_tree(const FileTree& tree, Machine& machine) {
  using Outcome = SourceReport::Outcome;
  if (!tree.exists(kPciFolder)) return {kPciFolder, Outcome::absent, "there is no such folder"};
  PciReader(tree, machine).read();
  return {kPciFolder, Outcome::used,
          fmt::format("{} PCI devices and bridges: GPUs and network cards", machine.pci.size())};
}

void add_places_and_speeds(const FileTree& tree, Machine& machine, std::size_t first_gpu,
                           std::size_t first_node) {
  PciReader(tree, machine).place_gpus(first_gpu);
  for (std::size_t i = first_node; i < machine.pci.size(); ++i) {
    PciNode& node = machine.pci[i];
    const double most = node.address ? most_pcie_gbps(tree, *node.address) : 0;
    if (most > 0) node.link_gbps = most;
  }
  for (std::size_t i = first_gpu; i < machine.gpus.size(); ++i) {
    Gpu& gpu = machine.gpus[i];
    if (!gpu.pci) continue;
    gpu.numa = gpu.node < 0 ? -1 : machine.pci[static_cast<std::size_t>(gpu.node)].numa;
    if (gpu.numa < 0) gpu.numa = numa_of_device(tree, machine, *gpu.pci);
    const double most = most_pcie_gbps(tree, *gpu.pci);
    if (most > 0) gpu.pcie_gbps = most;
  }
}

double most_pcie_gbps(const FileTree& tree, const PciAddress& device) {
  const std::string folder = folder_of(device);
  const double own = link_gbps_of(tree, folder, "max");
  const double above = link_gbps_of(tree, folder + "/..", "max");  // a host bridge has none
  return own > 0 && above > 0 ? std::min(own, above) : own;
}

void read_pcie_link(const FileTree& tree, const PciAddress& device, PciNode& node) {
  const std::string folder = folder_of(device);
  const double most = most_pcie_gbps(tree, device);
  if (most > 0) node.link_gbps = most;
  node.link_now_gbps = link_gbps_of(tree, folder, "current");
  const int own = lanes_of(tree, folder, "max");
  const int above = lanes_of(tree, folder + "/..", "max");
  node.lanes = above > 0 ? std::min(own, above) : own;
  node.lanes_now = lanes_of(tree, folder, "current");
}

std::optional<PciAddress> pci_function_above(const FileTree& tree, const std::string& link) {
  std::vector<std::string> way = tree.resolved(link);
  if (const auto name = tree.link_name(link))
    way.push_back(*name);  // even if the target does not
                           // exist
  for (std::size_t i = way.size(); i-- > 0;) {
    if (auto address = parse_pci_address(way[i]); address.ok()) return *address;
  }
  return std::nullopt;
}

std::optional<PciAddress> physical_function_of(const FileTree& tree, const PciAddress& device) {
  const auto name = tree.link_name(folder_of(device) + "/physfn");
  if (!name) return std::nullopt;
  const auto address = parse_pci_address(*name);
  return address.ok() ? std::optional(*address) : std::nullopt;
}

}  // namespace oriel::topo
