// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "base/try.hpp"
#include "topo/nccl_xml.hpp"
#include "topo/nvlink_generation.hpp"
#include "topo/pcie_speed.hpp"
#include "topo/xml_reader.hpp"
#include "topo/xml_values.hpp"

namespace oriel::topo {
namespace {

// PCI classes, as far as they count: bridges, and NVLink switches among them.
constexpr std::uint32_t kBridgeClass = 0x0604;
constexpr std::uint32_t kSwitchClass = 0x0680;

/// "32.0 GT/s PCIe" times the width, in Gbit/s; 0 where it is not told or not known.
Result<double> link_gbps_of(const XmlElement& element) {
  ORIEL_TRY(const int width, integer(element, "link_width", 0, 0, 64));
  const std::string* speed = element.find("link_speed");
  if (speed == nullptr) return 0.0;
  const std::string_view number = std::string_view(*speed).substr(0, speed->find(' '));
  const auto transfers = decimal_in(number);
  if (!transfers) return 0.0;  // such as "Unknown"
  return pcie_gbps(pcie_generation_of(*transfers), static_cast<unsigned>(width));
}

/// Where an element stands: in which PCI node and at which NUMA node.
struct Place {
  int node = -1;
  int numa = -1;
};

class NcclXmlReader {
 public:
  Result<Machine> read(const XmlElement& root) {
    if (root.name != "system") return odd(root, "is not NCCL's <system>");
    for (const XmlElement& child : root.children) {
      if (child.name == "cpu") {
        ORIEL_CHECK(read_cpu(child));
      } else if (child.name == "nic") {
        ORIEL_CHECK(read_nic(child, {}));
      } else {
        return odd(child, "is unknown here");
      }
    }
    ORIEL_CHECK(check_limits(
        {machine_.numa.size(), machine_.pci.size(), machine_.gpus.size(), machine_.nics.size()},
        lines_));
    ORIEL_CHECK(join_links());
    add_pairs();
    ORIEL_CHECK(check(machine_, lines_));
    return canonical(std::move(machine_));
  }

 private:
  Status read_cpu(const XmlElement& cpu) {
    Place place;
    ORIEL_TRY(const int number, integer(cpu, "numaid", -1, -1, kMostNumbers));
    ORIEL_TRY(auto cpus, mask_in(cpu, "affinity"));
    if (number >= 0) {
      NumaNode node;
      node.os_index = number;
      node.cpus = std::move(cpus);
      place.numa = static_cast<int>(machine_.numa.size());
      machine_.numa.push_back(std::move(node));
      lines_.numa.push_back(cpu.line);
    }
    PciNode bridge;
    bridge.kind = PciNode::Kind::host_bridge;
    bridge.numa = place.numa;
    place.node = static_cast<int>(machine_.pci.size());
    machine_.pci.push_back(bridge);
    lines_.pci.push_back(cpu.line);
    for (const XmlElement& child : cpu.children) {
      if (child.name == "pci") ORIEL_CHECK(read_pci(child, place));
      if (child.name == "nic") ORIEL_CHECK(read_nic(child, {-1, place.numa}));
    }
    return {};
  }

  Status read_pci(const XmlElement& pci, Place above) {
    PciNode node;
    ORIEL_TRY(node.address, address_in(pci, "busid"));
    ORIEL_TRY(const std::uint64_t kind, hexadecimal(pci, "class"));
    const bool has_pci = std::any_of(pci.children.begin(), pci.children.end(),
                                     [](const XmlElement& one) { return one.name == "pci"; });
    const bool bridge = has_pci || kind >> 8 == kBridgeClass;
    node.kind = bridge ? PciNode::Kind::bridge : PciNode::Kind::device;
    node.parent = above.node;
    node.numa = above.numa;
    ORIEL_TRY(node.link_gbps, link_gbps_of(pci));
    const Place place{static_cast<int>(machine_.pci.size()), above.numa};
    machine_.pci.push_back(node);
    lines_.pci.push_back(pci.line);
    for (const XmlElement& child : pci.children) {
      if (child.name == "pci") ORIEL_CHECK(read_pci(child, place));
      if (child.name == "gpu") ORIEL_CHECK(read_gpu(child, place));
      if (child.name == "nic") ORIEL_CHECK(read_nic(child, place));
    }
    return {};
  }

  Status read_gpu(const XmlElement& element, Place place) {
    const PciNode& node = machine_.pci[static_cast<std::size_t>(place.node)];
    const int index = static_cast<int>(machine_.gpus.size());
    Gpu gpu;
    gpu.pci = node.address;
    gpu.node = place.node;
    gpu.numa = place.numa;
    gpu.pcie_gbps = node.link_gbps;
    ORIEL_TRY(gpu.ordinal, integer(element, "dev", -1, -1, 1023));
    ORIEL_TRY(gpu.architecture, integer(element, "sm", 0, 0, 9999));
    gpu.name = gpu.architecture > 0 ? fmt::format("sm_{}", gpu.architecture) : "GPU";
    for (const XmlElement& child : element.children) {
      if (child.name != "nvlink" && child.name != "xgmi") continue;
      if (child.name == "xgmi") gpu.vendor = GpuVendor::amd;
      ORIEL_TRY(const int count, integer(child, "count", 1, 0, 1024));
      ORIEL_TRY(const std::uint64_t kind, hexadecimal(child, "tclass"));
      if (kind >> 8 == kSwitchClass) {
        gpu.switch_links += count;
      } else {
        ORIEL_TRY(const PciAddress target, address_in(child, "target"));
        links_.push_back({index, target, count, &child});
      }
    }
    // The format counts links and does not say how fast they are.
    const bool linked = gpu.switch_links > 0 || (!links_.empty() && links_.back().from == index);
    if (linked && gpu.vendor == GpuVendor::nvidia) {
      gpu.link_gbps = nvlink_generation_of(gpu.architecture).link_gbps;
    }
    machine_.gpus.push_back(std::move(gpu));
    lines_.gpus.push_back(element.line);
    return {};
  }

  Status read_nic(const XmlElement& element, Place place) {
    for (const XmlElement& child : element.children) {
      if (child.name != "net") continue;
      Nic nic;
      const std::string* name = child.find("name");
      if (name == nullptr || name->empty()) return odd(child, "has no name");
      nic.name = *name;
      ORIEL_TRY(nic.port, integer(child, "port", 1, 0, 255));
      ORIEL_TRY(const int speed, integer(child, "speed", 0, 0, 100'000'000));
      ORIEL_TRY(nic.guid, hexadecimal(child, "guid"));
      nic.gbps = speed / 1000.0;
      nic.node = place.node;
      nic.numa = place.numa;
      if (place.node >= 0) nic.pci = machine_.pci[static_cast<std::size_t>(place.node)].address;
      machine_.nics.push_back(std::move(nic));
      lines_.nics.push_back(child.line);
    }
    return {};
  }

  /// Finds the GPUs that links lead to, which may stand below those they come from.
  Status join_links() {
    for (const Link& link : links_) {
      const auto target = std::find_if(machine_.gpus.begin(), machine_.gpus.end(),
                                       [&](const Gpu& gpu) { return gpu.pci == link.target; });
      if (target == machine_.gpus.end()) continue;  // to a processor, or to a GPU that is hidden
      const int to = static_cast<int>(target - machine_.gpus.begin());
      if (to == link.from) return odd(*link.element, "leads from a GPU to itself");
      counts_[{link.from, to}] += link.count;
    }
    return {};
  }

  void add_pairs() {
    const auto count = static_cast<int>(machine_.gpus.size());
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        const auto links = counts_.find({from, to});
        const bool direct = links != counts_.end() && links->second > 0;
        const auto switches = [&](int index) {
          return machine_.gpus[static_cast<std::size_t>(index)].switch_links > 0;
        };
        if (from == to || !(direct || (switches(from) && switches(to)))) continue;
        GpuPair pair;
        pair.from = from;
        pair.to = to;
        pair.maps = true;
        pair.links = direct ? links->second : 0;
        machine_.pairs.push_back(pair);
      }
    }
  }

  struct Link {
    int from;
    PciAddress target;
    int count;
    const XmlElement* element;
  };

  Machine machine_;
  MachineLines lines_;
  std::vector<Link> links_;
  std::map<std::pair<int, int>, int> counts_;
};

}  // namespace

Result<Machine> read_nccl_xml(std::string_view text) {
  ORIEL_TRY(const XmlElement root, parse_xml(text));
  return NcclXmlReader().read(root);
}

}  // namespace oriel::topo
