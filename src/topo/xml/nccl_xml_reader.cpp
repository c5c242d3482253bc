// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "base/try.hpp"
#include "topo/model/nvlink_generation.hpp"
#include "topo/model/pcie_speed.hpp"
#include "topo/xml/nccl_xml.hpp"
#include "topo/xml/xml_reader.hpp"
#include "topo/xml/xml_values.hpp"

namespace oriel::topo {
namespace {

// Relevant PCI classes: bridges, and the classes that NCCL uses for NVLinks to switches and to
// processors.
constexpr std::uint32_t kBridgeClass = 0x0604;
constexpr std::uint32_t kSwitchClass = 0x068000;
constexpr std::uint32_t kProcessorClass = 0x068001;
constexpr std::uint64_t kNvidiaVendor = 0x10de;
constexpr std::uint64_t kAmdVendor = 0x1002;
constexpr int kMostLinkLanes = 64;

/// Kind of a function by its class. Compares the first digits, as NCCL does.
struct PciClass {
  explicit PciClass(const XmlElement& pci) {
    const std::string* text = pci.find("class");
    if (text == nullptr) return;
    display = text->starts_with("0x03");
    plain_display = text->starts_with("0x0380");
    accelerator = text->starts_with("0x12");
    network = text->starts_with("0x02");
    if (text->starts_with("0x0200")) layer = Nic::Layer::ethernet;
    if (text->starts_with("0x0207")) layer = Nic::Layer::infiniband;
  }

  bool display = false;
  bool plain_display = false;  // neither VGA nor 3D, as for AMD's GPUs
  bool accelerator = false;
  bool network = false;
  Nic::Layer layer = Nic::Layer::other;
};

/// Returns the vendor of a PCI function's GPU, which only newer files state. `gpu` is null if only
/// the class is known. Returns nothing if it is no usable GPU, such as a server console's display.
Result<std::optional<GpuVendor>> vendor_of(const XmlElement& pci, const XmlElement* gpu) {
  constexpr std::optional<GpuVendor> kNone;
  ORIEL_TRY(const std::uint64_t vendor, hexadecimal(pci, "vendor"));
  const PciClass kind(pci);
  // Other vendors' accelerators need not be GPUs.
  const bool by_class = kind.display || (kind.accelerator && vendor == kAmdVendor);
  if (gpu == nullptr && !by_class) return kNone;
  if (vendor == kAmdVendor) return std::optional(GpuVendor::amd);
  if (vendor == kNvidiaVendor) return std::optional(GpuVendor::nvidia);
  if (gpu != nullptr) {
    const std::string* gcn = gpu->find("gcn");
    const bool linked = std::any_of(gpu->children.begin(), gpu->children.end(),
                                    [](const XmlElement& one) { return one.name == "xgmi"; });
    if (linked || (gcn != nullptr && *gcn != "0")) return std::optional(GpuVendor::amd);
    if (gpu->find("sm") != nullptr) return std::optional(GpuVendor::nvidia);
  }
  if (vendor != 0) return kNone;
  const bool amd = kind.plain_display || kind.accelerator;
  return std::optional(amd ? GpuVendor::amd : GpuVendor::nvidia);
}

/// Returns a name from RCCL's "gfx942" or, in older versions, "942".
std::string amd_name(const XmlElement& gpu) {
  const std::string* gcn = gpu.find("gcn");
  if (gcn == nullptr || gcn->empty() || *gcn == "0") return "AMD GPU";
  return fmt::format("AMD {}{}", gcn->starts_with("gfx") ? "" : "gfx", gcn->substr(0, 32));
}

/// Returns the Gbit/s of "32.0 GT/s PCIe" times the width; 0 if missing or unknown. The kernel
/// reports 255 lanes for a link whose width it cannot read.
Result<double> link_gbps_of(const XmlElement& element) {
  constexpr int kUnknownWidth = 255;
  ORIEL_TRY(const int width, integer(element, "link_width", 0, 0, kUnknownWidth));
  if (width == kUnknownWidth) return 0.0;
  if (width > kMostLinkLanes) return odd(element, fmt::format("has link_width '{}'", width));
  const std::string* speed = element.find("link_speed");
  if (speed == nullptr) return 0.0;
  if (speed->starts_with("Unknown")) return 0.0;  // the kernel reports this for some links
  const std::size_t end = std::min(speed->find(' '), speed->size());
  const auto transfers = decimal_in(std::string_view(*speed).substr(0, end));
  const std::string_view unit = std::string_view(*speed).substr(end);
  if (!transfers || !(unit.empty() || unit.starts_with(" GT/s"))) {
    return odd(element,
               fmt::format("has link_speed '{}', not a number of GT/s", speed->substr(0, 32)));
  }
  return pcie_gbps(pcie_generation_of(*transfers), static_cast<unsigned>(width));
}

/// Refuses text, which NCCL's format has nowhere. Ignores text in unknown elements.
Status check_texts(const XmlElement& element) {
  constexpr std::array<std::string_view, 9> kKnown = {"cpu",    "pci",  "gpu", "nic",    "net",
                                                      "nvlink", "xgmi", "c2c", "pcilink"};
  ORIEL_CHECK(check_has_no_text(element));
  for (const XmlElement& child : element.children) {
    const bool known = std::find(kKnown.begin(), kKnown.end(), child.name) != kKnown.end();
    if (known) ORIEL_CHECK(check_texts(child));
  }
  return {};
}

/// Drops empty attributes: NCCL writes "" for unreadable values, and treats it as missing.
void drop_empty_attributes(XmlElement& element) {
  std::erase_if(element.attributes, [](const auto& attribute) { return attribute.second.empty(); });
  for (XmlElement& child : element.children) drop_empty_attributes(child);
}

/// Place of an element: its PCI node and its NUMA node.
struct Place {
  int node = -1;
  int numa = -1;
};

class NcclXmlReader {
 public:
  Result<Machine> read(const XmlElement& root) {
    if (root.name != "system") return odd(root, "is not NCCL's <system>");
    ORIEL_TRY(const int version, integer(root, "version", 0, 0, kMostNumbers));
    ORIEL_CHECK(check_texts(root));
    for (const XmlElement& child : root.children) {
      if (child.name == "cpu") {
        if (is_of_one_host(child)) ORIEL_CHECK(read_cpu(child));
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
    for (const std::string& odd : {later_version_text(version), unknown_.text(),
                                   shared_processors(machine_.numa), other_hosts_text()}) {
      if (odd.empty()) continue;
      machine_.sources.push_back({"NCCL's XML", SourceReport::Outcome::used, odd});
    }
    ORIEL_CHECK(check(machine_, lines_));
    return canonical(std::move(machine_));
  }

 private:
  /// Returns whether an element belongs to the host being read. NCCL merges descriptions of a
  /// fabric clique's hosts, whose PCI addresses repeat. The first host is read. Elements without a
  /// hash belong to any host.
  bool is_of_one_host(const XmlElement& cpu) {
    const std::string* hash = cpu.find("host_hash");
    if (hash == nullptr) return true;
    if (host_hash_.empty()) host_hash_ = *hash;
    if (*hash == host_hash_) return true;
    if (left_out_++ == 0) first_left_out_ = cpu.line;
    return false;
  }

  std::string other_hosts_text() const {
    if (left_out_ == 0) return "";
    return fmt::format(
        "the host with host_hash {} is described, the first of several: {} <cpu> of other hosts "
        "left out, the first in line {}",
        host_hash_.substr(0, 32), left_out_, first_left_out_);
  }

  /// Describes a version that is too new. NCCL's files have version 1, RCCL's 2.
  static std::string later_version_text(int version) {
    if (version <= 2) return "";
    return fmt::format("it has version {}, of which what versions 1 and 2 have is read", version);
  }

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
      if (child.name == "pci") {
        ORIEL_CHECK(read_pci(child, place));
      } else if (child.name == "nic") {
        ORIEL_CHECK(read_nic(child, {-1, place.numa}));
      } else {
        ORIEL_CHECK(unknown_.add(child));
      }
    }
    return {};
  }

  Status read_pci(const XmlElement& pci, Place above) {
    PciNode node;
    ORIEL_TRY(node.address, address_in(pci, "busid"));
    ORIEL_TRY(const std::uint64_t kind, hexadecimal(pci, "class"));
    const auto is_gpu = [](const XmlElement& one) { return one.name == "gpu"; };
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
    const std::size_t ports = machine_.nics.size();
    bool has_gpu = bridge;  // a bridge is no GPU
    // Partitions of one GPU by memory ("MLOPart") share a function and are distinguished by number.
    const bool parts = std::count_if(pci.children.begin(), pci.children.end(), is_gpu) > 1;
    for (const XmlElement& child : pci.children) {
      if (child.name == "pci") {
        ORIEL_CHECK(read_pci(child, place));
      } else if (child.name == "gpu") {
        has_gpu = true;
        ORIEL_TRY(const auto vendor, vendor_of(pci, &child));
        ORIEL_CHECK(vendor ? read_gpu(child, *vendor, place, parts) : unknown_.add(child));
      } else if (child.name == "nic") {
        ORIEL_CHECK(read_nic(child, place, PciClass(pci).layer));
      } else if (child.name != "pcilink") {
        ORIEL_CHECK(unknown_.add(child));
      }
    }
    ORIEL_TRY(const auto vendor, vendor_of(pci, nullptr));
    if (!has_gpu && vendor) add_gpu(gpu_at(place, *vendor), pci);
    const PciClass kind_of_device(pci);
    if (!bridge && kind_of_device.network && machine_.nics.size() == ports) {
      add_nic_of_class(kind_of_device, place, pci);
    }
    return {};
  }

  /// Adds a network card known only by its place, which becomes its name. Clouds ship files that
  /// name cards and GPUs only by class: NCCL adds what it finds itself.
  void add_nic_of_class(const PciClass& kind, Place place, const XmlElement& pci) {
    Nic nic;
    nic.pci = machine_.pci[static_cast<std::size_t>(place.node)].address;
    nic.name = nic.pci->to_string();
    nic.layer = kind.layer;
    nic.node = place.node;
    nic.numa = place.numa;
    machine_.nics.push_back(std::move(nic));
    lines_.nics.push_back(pci.line);
  }

  Gpu gpu_at(Place place, GpuVendor vendor) const {
    const PciNode& node = machine_.pci[static_cast<std::size_t>(place.node)];
    Gpu gpu;
    gpu.vendor = vendor;
    gpu.name = vendor == GpuVendor::amd ? "AMD GPU" : "GPU";
    gpu.pci = node.address;
    gpu.node = place.node;
    gpu.numa = place.numa;
    gpu.pcie_gbps = node.link_gbps;
    return gpu;
  }

  void add_gpu(Gpu gpu, const XmlElement& element) {
    machine_.gpus.push_back(std::move(gpu));
    lines_.gpus.push_back(element.line);
  }

  Status read_gpu(const XmlElement& element, GpuVendor vendor, Place place, bool is_part) {
    const int index = static_cast<int>(machine_.gpus.size());
    Gpu gpu = gpu_at(place, vendor);
    ORIEL_TRY(const int part, integer(element, "mlopart", -1, -1, 1023));
    if (is_part) gpu.partition = part;
    // NVML's index on the machine where NCCL wrote the file; not a CUDA ordinal of this process.
    ORIEL_TRY(gpu.nvml_index, integer(element, "dev", -1, -1, 1023));
    ORIEL_TRY(const int sm, integer(element, "sm", 0, 0, 9999));
    if (vendor == GpuVendor::amd) {  // RCCL's sm is the number of processors
      gpu.name = amd_name(element);
    } else if (sm > 0) {
      gpu.architecture = sm;
      gpu.name = fmt::format("sm_{}", sm);
    }
    for (const XmlElement& child : element.children) {
      if (child.name != "nvlink" && child.name != "xgmi") {
        if (child.name != "c2c") ORIEL_CHECK(unknown_.add(child));
        continue;
      }
      ORIEL_TRY(const int count, integer(child, "count", 1, 0, 1024));
      ORIEL_TRY(const std::uint64_t kind, hexadecimal(child, "tclass"));
      if (kind == kSwitchClass) {
        gpu.switch_links += count;
      } else if (kind != kProcessorClass) {
        ORIEL_TRY(const PciAddress target, address_in(child, "target"));
        links_.push_back({index, target, count, &child});
      }
    }
    // The format counts links but does not state their speed.
    const bool linked = gpu.switch_links > 0 || (!links_.empty() && links_.back().from == index);
    if (linked && gpu.vendor == GpuVendor::nvidia) {
      gpu.link_gbps = nvlink_generation_of(gpu.architecture).link_gbps;
    }
    add_gpu(std::move(gpu), element);
    return {};
  }

  Status read_nic(const XmlElement& element, Place place, Nic::Layer layer = Nic::Layer::other) {
    for (const XmlElement& child : element.children) {
      if (child.name != "net") {
        ORIEL_CHECK(unknown_.add(child));
        continue;
      }
      Nic nic;
      const std::string* name = child.find("name");
      if (name == nullptr || name->empty()) return odd(child, "has no name");
      nic.name = *name;
      ORIEL_TRY(nic.port, integer(child, "port", 1, 0, 255));
      ORIEL_TRY(const int speed, integer(child, "speed", 0, -1, 100'000'000));
      ORIEL_TRY(nic.guid, unsigned_integer(child, "guid"));
      nic.card = nic.guid;  // NCCL's GUID is that of the system image, equal for a whole card
      nic.gbps = std::max(speed, 0) / 1000.0;
      nic.layer = layer;
      nic.node = place.node;
      nic.numa = place.numa;
      if (place.node >= 0) nic.pci = machine_.pci[static_cast<std::size_t>(place.node)].address;
      machine_.nics.push_back(std::move(nic));
      lines_.nics.push_back(child.line);
    }
    return {};
  }

  /// Finds the target GPUs of links, which may come later in the file than their sources.
  Status join_links() {
    for (const Link& link : links_) {
      const auto target = std::find_if(machine_.gpus.begin(), machine_.gpus.end(),
                                       [&](const Gpu& gpu) { return gpu.pci == link.target; });
      if (target == machine_.gpus.end()) continue;  // the target GPU is hidden
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
  UnknownElements unknown_;
  std::string host_hash_;  // hash of the host being read; empty if none is named
  std::size_t left_out_ = 0;
  std::size_t first_left_out_ = 0;
};

}  // namespace

Result<Machine> read_nccl_xml(std::string_view text) {
  ORIEL_TRY(XmlElement root, parse_xml(text));
  drop_empty_attributes(root);
  return NcclXmlReader().read(root);
}

}  // namespace oriel::topo
