// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "topo/model/pcie_speed.hpp"
#include "topo/model/printable.hpp"
#include "topo/xml/nccl_xml.hpp"

namespace oriel::topo {
namespace {

// NCCL's name of this build's architecture; a description does not state its machine's.
#if defined(__aarch64__)
constexpr const char* kArchitecture = "arm64";
#else
constexpr const char* kArchitecture = "x86_64";
#endif

std::string mask_of(const std::vector<int>& cpus) {
  const int most = cpus.empty() ? 0 : *std::max_element(cpus.begin(), cpus.end());
  std::vector<std::uint32_t> groups(static_cast<std::size_t>(most) / 32 + 1, 0);
  for (const int cpu : cpus) groups[static_cast<std::size_t>(cpu) / 32] |= 1U << cpu % 32;
  std::string mask;
  for (std::size_t i = groups.size(); i-- > 0;) {
    mask += fmt::format("{:08x}{}", groups[i], i > 0 ? "," : "");
  }
  return mask;
}

/// Returns the link speed and width for a bandwidth; empty if none match. Several may match,
/// because each generation doubles the speed: takes the widest, as GPUs have.
std::string link_of(double gbps) {
  for (const unsigned lanes : {16U, 8U, 4U, 2U, 1U}) {
    for (std::size_t generation = kPcieGenerations.size(); generation-- > 1;) {
      const double made = pcie_gbps(generation, lanes);
      if (gbps < made * 0.99 || gbps > made * 1.01) continue;
      return fmt::format(" link_speed=\"{:.1f} GT/s PCIe\" link_width=\"{}\"",
                         kPcieGenerations[generation].transfers, lanes);
    }
  }
  return "";
}

/// Places a device with an address but of unknown place below a new host bridge of its NUMA node.
/// The format lists GPUs, and addresses of NICs, only on a bus.
template <typename Device>
void place_on_bus(Machine& machine, Device& device, double gbps) {
  if (!device.pci || device.node >= 0) return;
  device.node = find_pci_node(machine, *device.pci);
  if (device.node >= 0) return;
  PciNode node;
  node.kind = PciNode::Kind::host_bridge;
  node.numa = device.numa;
  machine.pci.push_back(node);
  node.kind = PciNode::Kind::device;
  node.parent = static_cast<int>(machine.pci.size()) - 1;
  node.address = device.pci;
  node.link_gbps = gbps;
  device.node = static_cast<int>(machine.pci.size());
  machine.pci.push_back(node);
}

Machine placed(Machine machine) {
  for (Gpu& gpu : machine.gpus) place_on_bus(machine, gpu, gpu.pcie_gbps);
  for (Nic& nic : machine.nics) place_on_bus(machine, nic, 0);
  return machine;
}

class Writer {
 public:
  explicit Writer(const Machine& machine)
      : machine_(placed(machine)),
        children_(machine_.pci.size()),
        gpus_in_(machine_.pci.size(), nullptr),
        nics_in_(machine_.pci.size()) {
    const auto at = [](int index) { return static_cast<std::size_t>(index); };
    for (int node = 0; node < static_cast<int>(machine_.pci.size()); ++node) {
      const int parent = machine_.pci[at(node)].parent;
      if (parent >= 0) children_[at(parent)].push_back(node);
    }
    for (const Gpu& gpu : machine_.gpus) {
      if (gpu.node >= 0 && gpus_in_[at(gpu.node)] == nullptr) gpus_in_[at(gpu.node)] = &gpu;
    }
    number_gpus();
    int listed = 0;
    for (const Nic& nic : machine_.nics) {
      if (!nic.active) continue;
      const Port port{&nic, is_listed(nic) ? listed++ : -1};
      (nic.node >= 0 ? nics_in_[at(nic.node)] : nics_at_[nic.numa]).push_back(port);
    }
  }

  std::string write() {
    line(0, "<system version=\"1\">");
    write_cpus();
    write_nics(1, nics_at_[-1]);
    line(0, "</system>");
    return std::move(text_);
  }

 private:
  /// Numbers GPUs by NVML's index if no earlier GPU has it. Other GPUs get the remaining numbers in
  /// order. NCCL's graphs identify GPUs by this number.
  void number_gpus() {
    std::set<int> taken;
    std::vector<const Gpu*> rest;
    for (const Gpu& gpu : machine_.gpus) {
      if (gpu_in(gpu.node) != &gpu) continue;
      if (gpu.nvml_index >= 0 && taken.insert(gpu.nvml_index).second) {
        numbers_[&gpu] = gpu.nvml_index;
      } else {
        rest.push_back(&gpu);
      }
    }
    int next = 0;
    for (const Gpu* gpu : rest) {
      while (!taken.insert(next).second) ++next;
      numbers_[gpu] = next;
    }
  }

  void line(int depth, const std::string& content) {
    text_.append(static_cast<std::size_t>(depth) * 2, ' ').append(content).append("\n");
  }

  /// Writes one <cpu> per NUMA node. NCCL has no host bridges, so those of a node are merged.
  void write_cpus() {
    for (int numa = 0; numa < static_cast<int>(machine_.numa.size()); ++numa) write_cpu(numa);
    const bool unplaced =
        std::any_of(machine_.pci.begin(), machine_.pci.end(),
                    [](const PciNode& node) { return node.parent < 0 && node.numa < 0; });
    if (unplaced) write_cpu(-1);
  }

  void write_cpu(int numa) {
    if (numa >= 0) {
      const NumaNode& node = machine_.numa[static_cast<std::size_t>(numa)];
      const std::string affinity =
          node.cpus.empty() ? "" : fmt::format(" affinity=\"{}\"", mask_of(node.cpus));
      line(1, fmt::format("<cpu numaid=\"{}\"{} arch=\"{}\">", node.os_index, affinity,
                          kArchitecture));
    } else {
      line(1, fmt::format("<cpu numaid=\"-1\" arch=\"{}\">", kArchitecture));
    }
    // Writes in canonical()'s order of one bridge's children, since they are read back as such.
    std::vector<std::pair<PciAddress, int>> below;
    for (std::size_t root = 0; root < machine_.pci.size(); ++root) {
      if (machine_.pci[root].parent >= 0 || machine_.pci[root].numa != numa) continue;
      for (const int child : children_[root]) below.emplace_back(lowest_below(child), child);
    }
    std::sort(below.begin(), below.end());
    for (const auto& [address, index] : below) write_pci(2, index);
    if (numa >= 0) write_nics(2, nics_at_[numa]);
    line(1, "</cpu>");
  }

  PciAddress lowest_below(int index) const {
    const PciNode& node = machine_.pci[static_cast<std::size_t>(index)];
    PciAddress lowest = node.address.value_or(PciAddress{});
    for (const int child : children_[static_cast<std::size_t>(index)]) {
      lowest = std::min(lowest, lowest_below(child));
    }
    return lowest;
  }

  /// Returns the GPU in a PCI node, or its first partition; null if there is none. Other
  /// partitions and MIG instances of the function are not written.
  const Gpu* gpu_in(int node) const {
    return node < 0 ? nullptr : gpus_in_[static_cast<std::size_t>(node)];
  }

  void write_pci(int depth, int index) {
    const PciNode& node = machine_.pci[static_cast<std::size_t>(index)];
    const Gpu* const gpu = gpu_in(index);
    const std::vector<Port>& ports = nics_in_[static_cast<std::size_t>(index)];
    const bool bridge = node.kind == PciNode::Kind::bridge;
    const std::string kind = bridge           ? " class=\"0x060400\""
                             : gpu != nullptr ? class_of(*gpu)
                             : !ports.empty() ? class_of(*ports.front().nic)
                                              : "";
    const std::string vendor = gpu != nullptr ? vendor_of(*gpu) : "";
    line(depth,
         fmt::format("<pci busid=\"{}\"{}{}{}>", node.address ? node.address->to_string() : "",
                     kind, vendor, link_of(node.link_gbps)));
    if (gpu != nullptr) write_gpu(depth + 1, *gpu, !bridge);
    write_nics(depth + 1, ports);
    for (const int child : children_[static_cast<std::size_t>(index)]) write_pci(depth + 1, child);
    line(depth, "</pci>");
  }

  static std::string class_of(const Gpu& gpu) {
    return gpu.vendor == GpuVendor::amd ? " class=\"0x038000\"" : " class=\"0x030200\"";
  }

  static std::string vendor_of(const Gpu& gpu) {
    return gpu.vendor == GpuVendor::amd ? " vendor=\"0x1002\"" : " vendor=\"0x10de\"";
  }

  /// Returns the class attribute. Writes none for an unknown layer, since NCCL then looks itself. A
  /// card described only by its class needs one: that of other network controllers.
  static std::string class_of(const Nic& nic) {
    if (nic.layer == Nic::Layer::ethernet) return " class=\"0x020000\"";
    if (nic.layer == Nic::Layer::infiniband) return " class=\"0x020700\"";
    return is_listed(nic) ? "" : " class=\"0x028000\"";
  }

  /// Writes a GPU. Omits GPUDirect RDMA support and the rank, which are not known here.
  void write_gpu(int depth, const Gpu& gpu, bool known_by_class) {
    std::vector<std::string> links = links_of(gpu);
    const bool known = gpu.nvml_index >= 0 || gpu.architecture > 0 || !links.empty();
    if (!known && known_by_class) return;
    std::string facts;
    if (known) facts += fmt::format(" dev=\"{}\"", numbers_[&gpu]);
    if (gpu.architecture > 0) facts += fmt::format(" sm=\"{}\"", gpu.architecture);
    line(depth, fmt::format("<gpu{}>", facts));
    for (const std::string& link : links) line(depth + 1, link);
    line(depth, "</gpu>");
  }

  std::vector<std::string> links_of(const Gpu& gpu) const {
    const int index = static_cast<int>(&gpu - machine_.gpus.data());
    std::vector<std::string> links;
    if (gpu.switch_links > 0) {
      links.push_back(
          fmt::format("<nvlink target=\"ffff:ff:ff.7\" count=\"{}\" "
                      "tclass=\"0x068000\"/>",
                      gpu.switch_links));
    }
    for (const GpuPair& pair : machine_.pairs) {
      if (pair.from != index || pair.links == 0) continue;
      const Gpu& peer = machine_.gpus[static_cast<std::size_t>(pair.to)];
      if (!peer.pci || gpu_in(peer.node) != &peer) continue;
      const bool amd = gpu.vendor == GpuVendor::amd;
      links.push_back(fmt::format("<{} target=\"{}\" count=\"{}\" tclass=\"{}\"/>",
                                  amd ? "xgmi" : "nvlink", peer.pci->to_string(), pair.links,
                                  amd ? "0x038000" : "0x030200"));
    }
    return links;
  }

  /// Returns whether a NIC is listed. The format cannot represent inactive ports, so they are
  /// omitted, as in NCCL. A card named by its place is described by its class alone.
  static bool is_listed(const Nic& nic) {
    return nic.active && !(nic.pci && nic.name == nic.pci->to_string());
  }

  /// An active port and its number among the listed ones; -1: not listed.
  struct Port {
    const Nic* nic;
    int number;
  };

  void write_nics(int depth, const std::vector<Port>& ports) {
    const bool any =
        std::any_of(ports.begin(), ports.end(), [](const Port& port) { return port.number >= 0; });
    if (!any) return;
    line(depth, "<nic>");
    for (const Port& port : ports) {
      if (port.number < 0) continue;
      const Nic& nic = *port.nic;
      std::string facts;
      if (nic.gbps > 0) facts += fmt::format(" speed=\"{:.0f}\"", nic.gbps * 1000);
      facts += fmt::format(" port=\"{}\"", nic.port);
      const std::uint64_t guid =
          nic.card != 0 ? nic.card : nic.guid;  // NCCL identifies cards by it
      if (guid != 0) facts += fmt::format(" guid=\"0x{:x}\"", guid);
      line(depth + 1, fmt::format("<net name=\"{}\" dev=\"{}\"{}/>", xml_escaped(nic.name),
                                  port.number, facts));
    }
    line(depth, "</nic>");
  }

  const Machine machine_;
  std::vector<std::vector<int>> children_;    // by PCI node
  std::vector<const Gpu*> gpus_in_;           // by PCI node: its first GPU, or null
  std::map<const Gpu*, int> numbers_;         // numbers of the GPUs in nodes, as NCCL uses them
  std::vector<std::vector<Port>> nics_in_;    // active ports by PCI node
  std::map<int, std::vector<Port>> nics_at_;  // ports without a PCI node, by NUMA node (-1: none)
  std::string text_;
};

}  // namespace

std::string write_nccl_xml(const Machine& machine) {
  return Writer(machine).write();
}

}  // namespace oriel::topo
