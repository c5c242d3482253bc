// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/xml/hwloc_xml_reader.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <sstream>

#include <fmt/format.h>

#include "base/try.hpp"
#include "topo/model/guid.hpp"
#include "topo/xml/xml_values.hpp"

namespace oriel::topo {
namespace {

constexpr int kOpenFabrics = 3;  // hwloc's number for OS devices that are RDMA NICs
constexpr int kMeansLatency = 1 << 2;

bool is(const XmlElement& object, std::string_view type) {
  const std::string* own = object.name == "object" ? object.find("type") : nullptr;
  return own != nullptr && *own == type;
}

bool is_package(const XmlElement& object) {
  return is(object, "Package") || is(object, "Socket");  // the latter in format 1
}

/// Returns the value of <info name="..." value="..."/> in an object; null if there is none.
const std::string* info_of(const XmlElement& object, std::string_view name) {
  for (const XmlElement& child : object.children) {
    if (child.name != "info") continue;
    const std::string* own = child.find("name");
    if (own != nullptr && *own == name) return child.find("value");
  }
  return nullptr;
}

/// Returns all numbers in the texts of the children with this name.
Result<std::vector<std::uint64_t>> numbers_of(const XmlElement& element, const char* child_name) {
  std::vector<std::uint64_t> numbers;
  for (const XmlElement& child : element.children) {
    if (child.name != child_name) continue;
    std::istringstream words(child.text);
    for (std::string word; words >> word;) {
      const auto number = number_in<std::uint64_t>(word);
      if (!number) {
        return odd(child, fmt::format("holds '{}', which is no number", word.substr(0, 32)));
      }
      numbers.push_back(*number);
    }
  }
  return numbers;
}

/// Returns whether a text matches a pattern in which x stands for a hexadecimal digit.
bool has_shape(std::string_view text, std::string_view shape) {
  return std::equal(text.begin(), text.end(), shape.begin(), shape.end(), [](char own, char like) {
    return like == 'x' ? std::isxdigit(static_cast<unsigned char>(own)) != 0 : own == like;
  });
}

class HwlocXmlReader {
 public:
  Result<HwlocList> read(const XmlElement& root) {
    ORIEL_CHECK(check_format(root));
    for (const XmlElement& child : root.children) {
      if (child.name == "object") ORIEL_CHECK(read_memory(child, -1));
    }
    if (list_.numa.empty()) ORIEL_CHECK(add_only_node(root));
    ORIEL_CHECK(check_whole());  // checks the NUMA nodes, which is all so far
    for (const XmlElement& child : root.children) {
      if (child.name == "object") ORIEL_CHECK(read_devices(child, -1));
      if (child.name == "distances2") ORIEL_CHECK(read_distances(child));
      if (is(child, "Machine") && first_format_) ORIEL_CHECK(read_first_distances(child));
    }
    ORIEL_CHECK(count_unknown(root));
    ORIEL_CHECK(check_limits({0, list_.pci.size(), list_.gpus.size(), list_.nics.size()}, lines_));
    ORIEL_CHECK(check_whole());
    list_.report.source = "hwloc's XML";
    list_.report.detail =
        fmt::format("{} NUMA node{}, {} PCI devices and bridges", list_.numa.size(),
                    list_.numa.size() == 1 ? "" : "s", list_.pci.size());
    const std::string unknown = unknown_.text();
    if (!unknown.empty()) list_.report.detail += "; " + unknown;
    return std::move(list_);
  }

 private:
  /// Counts elements that neither format has. Many elements of the formats are not needed and
  /// ignored as well.
  Status count_unknown(const XmlElement& element) {
    constexpr std::array<std::string_view, 3> kTexts = {"userdata", "indexes", "u64values"};
    if (std::find(kTexts.begin(), kTexts.end(), element.name) == kTexts.end()) {
      ORIEL_CHECK(check_has_no_text(element));
    }
    constexpr std::array<std::string_view, 14> kKnown = {
        "object",  "info",         "userdata", "page_type", "distances",  "latency",
        "support", "indexes",      "cpukind",  "u64values", "distances2", "distances2hetero",
        "memattr", "memattr_value"};
    for (const XmlElement& child : element.children) {
      const bool known = std::find(kKnown.begin(), kKnown.end(), child.name) != kKnown.end();
      ORIEL_CHECK(known ? count_unknown(child) : unknown_.add(child));
    }
    return {};
  }

  Status check_whole() {
    Machine machine;
    machine.numa = list_.numa;
    machine.pci = list_.pci;
    machine.gpus = list_.gpus;
    machine.nics = list_.nics;
    return check(machine, lines_);
  }

  int add_pci(const XmlElement& object, PciNode node, int parent, int numa) {
    lines_.pci.push_back(object.line);
    return list_.add_pci(node, parent, numa);
  }

  Status check_format(const XmlElement& root) {
    if (root.name != "topology") return odd(root, "is not hwloc's <topology>");
    const std::string* version = root.find("version");
    first_format_ = version == nullptr || version->starts_with("1.");
    if (first_format_ || version->starts_with("2.")) return {};
    return odd(root, fmt::format("has version '{}'; known are 1 and 2", version->substr(0, 32)));
  }

  Status read_memory(const XmlElement& object, int package) {
    if (is_package(object)) {
      ORIEL_TRY(package, integer(object, "os_index", -1, -1, kMostNumbers));
    }
    if (is(object, "NUMANode")) ORIEL_CHECK(add_node(object, package));
    for (const XmlElement& child : object.children) {
      if (child.name == "object") ORIEL_CHECK(read_memory(child, package));
    }
    return {};
  }

  Status add_node(const XmlElement& object, int package) {
    NumaNode node;
    ORIEL_TRY(node.os_index, integer(object, "os_index", -1, 0, kMostNumbers));
    if (node.os_index < 0) return odd(object, "is a NUMA node without an os_index");
    node.package = package;
    // In format 1, NUMA nodes contain packages.
    const auto below = std::find_if(object.children.begin(), object.children.end(), is_package);
    if (package < 0 && below != object.children.end()) {
      ORIEL_TRY(node.package, integer(*below, "os_index", -1, -1, kMostNumbers));
    }
    ORIEL_TRY(node.cpus, mask_in(object, "cpuset"));
    if (const std::string* memory = object.find("local_memory")) {
      const auto bytes = number_in<std::size_t>(*memory);
      if (!bytes) {
        return odd(object, fmt::format("has local_memory '{}', which is no number of bytes",
                                       memory->substr(0, 32)));
      }
      node.memory_bytes = *bytes;
    }
    list_.numa.push_back(std::move(node));
    lines_.numa.push_back(object.line);
    return {};
  }

  /// Adds the only NUMA node, which format 1 omits.
  Status add_only_node(const XmlElement& root) {
    const auto machine = std::find_if(root.children.begin(), root.children.end(),
                                      [](const XmlElement& child) { return is(child, "Machine"); });
    if (!first_format_ || machine == root.children.end()) {
      return odd(root, "describes no NUMA node, of which every machine has one");
    }
    NumaNode node;
    ORIEL_TRY(node.cpus, mask_in(*machine, "cpuset"));
    list_.numa.push_back(std::move(node));
    lines_.numa.push_back(machine->line);
    return {};
  }

  int numa_index(int os_index) const {
    const auto found =
        std::find_if(list_.numa.begin(), list_.numa.end(),
                     [&](const NumaNode& node) { return node.os_index == os_index; });
    return found == list_.numa.end() ? -1 : static_cast<int>(found - list_.numa.begin());
  }

  /// Returns the NUMA node of an object's buses; -1 if there are several.
  Result<int> numa_of(const XmlElement& object) const {
    ORIEL_TRY(const std::vector<int> nodes, mask_in(object, "nodeset"));
    if (nodes.size() == 1) return numa_index(nodes.front());
    const bool only_one = nodes.empty() && list_.numa.size() == 1;
    return only_one ? 0 : -1;
  }

  Status read_devices(const XmlElement& object, int parent) {
    int numa = -1;
    bool known = false;
    for (const XmlElement& child : object.children) {
      if (child.name != "object") continue;
      if (!is(child, "Bridge") && !is(child, "PCIDev")) {
        ORIEL_CHECK(read_devices(child, parent));
        continue;
      }
      if (!known) {
        ORIEL_TRY(numa, numa_of(object));
        known = true;
      }
      ORIEL_CHECK(read_device(child, -1, numa));
    }
    return {};
  }

  Status read_device(const XmlElement& object, int parent, int numa) {
    PciNode node;
    const bool bridge = is(object, "Bridge");
    const std::string* kind = bridge ? object.find("bridge_type") : nullptr;
    if (bridge && (kind == nullptr || (*kind != "0-1" && *kind != "1-1"))) {
      return odd(object, "is a bridge whose bridge_type is neither 0-1 nor 1-1");
    }
    const bool host = bridge && *kind == "0-1";
    if (host && parent >= 0) return odd(object, "is a host bridge below another bridge");
    if (!host) {
      if (parent < 0)
        parent = add_pci(object, {}, -1, numa);  // the bus's host bridge is not listed
      node.kind = bridge ? PciNode::Kind::bridge : PciNode::Kind::device;
      ORIEL_TRY(node.address, address_in(object, "pci_busid"));
      ORIEL_TRY(node.link_gbps, link_gbps_of(object));
    }
    const int index = add_pci(object, node, parent, numa);
    if (node.kind == PciNode::Kind::device && !host) return read_functions(object, index);
    for (const XmlElement& child : object.children) {
      if (is(child, "Bridge") || is(child, "PCIDev")) {
        ORIEL_CHECK(read_device(child, index, numa));
      }
    }
    return {};
  }

  static Result<double> link_gbps_of(const XmlElement& object) {
    const std::string* text = object.find("pci_link_speed");
    if (text == nullptr) return 0.0;
    const auto gigabytes = decimal_in(*text);
    if (gigabytes && *gigabytes >= 0 && *gigabytes < 1e6) return *gigabytes * 8;
    return odd(object,
               fmt::format("has pci_link_speed '{}', not a number of GB/s", text->substr(0, 32)));
  }

  /// Reads the functions of a PCI device: a GPU by its class, a NIC by its OS device.
  Status read_functions(const XmlElement& object, int index) {
    const PciNode& node = list_.pci[static_cast<std::size_t>(index)];
    if (const std::string* type = object.find("pci_type")) {
      // "0302 [10de:2335] [10de:0000] a1"
      const std::string_view text = *type;
      if (!has_shape(text, "xxxx [xxxx:xxxx] [xxxx:xxxx] xx")) {
        return odd(object, fmt::format("has pci_type '{}', not a class and two [vendor:device]",
                                       text.substr(0, 40)));
      }
      const auto number = [&](std::size_t at) {
        return number_in<std::uint16_t>(text.substr(at, 4), 16).value_or(0);
      };
      if (auto gpu = gpu_by_class(number(0), number(6), number(11))) {
        gpu->pci = node.address;
        gpu->node = index;
        gpu->numa = node.numa;
        gpu->pcie_gbps = node.link_gbps;
        name_gpu(object, *gpu);
        list_.gpus.push_back(std::move(*gpu));
        lines_.gpus.push_back(object.line);
      }
    }
    for (const XmlElement& child : object.children) {
      if (is(child, "OSDev")) ORIEL_CHECK(read_nic(child, index));
      if (is(child, "PCIDev") || is(child, "Bridge")) return odd(child, "is below a PCI device");
    }
    return {};
  }

  static void name_gpu(const XmlElement& object, Gpu& gpu) {
    for (const XmlElement& child : object.children) {
      const std::string* name = is(child, "OSDev") ? info_of(child, "GPUModel") : nullptr;
      if (name != nullptr) gpu.name = *name;
    }
  }

  Status read_nic(const XmlElement& object, int index) {
    ORIEL_TRY(const int kind, integer(object, "osdev_type", -1, 0, kMostNumbers));
    if (kind < 0) return odd(object, "is a device of the system without an osdev_type");
    const std::string* name = object.find("name");
    if (kind != kOpenFabrics || name == nullptr) return {};
    ORIEL_CHECK(check_ports(object));
    const std::size_t before = list_.nics.size();
    list_.add_ports(*name, index, [&](const std::string& key) {
      const std::string* text = info_of(object, key);
      return text == nullptr ? std::string() : *text;
    });
    lines_.nics.insert(lines_.nics.end(), list_.nics.size() - before, object.line);
    return {};
  }

  /// Checks the values that HwlocList::add_ports() uses.
  static Status check_ports(const XmlElement& object) {
    for (const XmlElement& info : object.children) {
      const std::string* name = info.name == "info" ? info.find("name") : nullptr;
      const std::string* value = name == nullptr ? nullptr : info.find("value");
      if (value == nullptr) continue;
      const bool guid = *name == "NodeGUID" || *name == "SysImageGUID";
      const bool state = name->starts_with("Port") && name->ends_with("State");
      if ((guid && !guid_in(*value)) || (state && !number_in<std::uint8_t>(*value))) {
        return odd(info, fmt::format("has the {} '{}', which is none", name->substr(0, 32),
                                     value->substr(0, 32)));
      }
    }
    return {};
  }

  /// Reads the latencies between all NUMA nodes; ignores other distances.
  Status read_distances(const XmlElement& element) {
    const std::string* type = element.find("type");
    const std::string* indexing = element.find("indexing");
    const bool by_number = indexing == nullptr || *indexing == "os";
    if (type == nullptr || *type != "NUMANode" || !by_number) return {};
    ORIEL_TRY(const int kind, integer(element, "kind", 0, 0, INT32_MAX));
    ORIEL_TRY(const auto indices, numbers_of(element, "indexes"));
    ORIEL_TRY(const auto values, numbers_of(element, "u64values"));
    if ((kind & kMeansLatency) == 0) return {};
    const std::size_t count = list_.numa.size();
    if (indices.size() != count || values.size() != count * count) {
      return odd(element, fmt::format("has {} nodes and {} values, for {} NUMA nodes",
                                      indices.size(), values.size(), count));
    }
    std::vector<int> places;  // index in list_.numa for each entry of `indices`
    places.reserve(count);
    for (const std::uint64_t index : indices) {
      places.push_back(index < kMostNumbers ? numa_index(static_cast<int>(index)) : -1);
    }
    std::vector<std::vector<int>> distances(count, std::vector<int>(count, -1));
    for (std::size_t a = 0; a < count; ++a) {
      for (std::size_t b = 0; b < count; ++b) {
        const int from = places[a];
        const int to = places[b];
        const std::uint64_t value = values[a * count + b];
        if (from < 0 || to < 0 || value == 0 || value > INT32_MAX) {
          return odd(element, fmt::format("has distance {} between nodes {} and {}", value,
                                          indices[a], indices[b]));
        }
        distances[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)] =
            static_cast<int>(value);
      }
    }
    for (std::size_t a = 0; a < count; ++a) {
      const auto& row = distances[a];
      if (std::find(row.begin(), row.end(), -1) != row.end()) {
        return odd(element, "names a NUMA node twice");
      }
      list_.numa[a].distances = row;
    }
    return {};
  }

  /// Reads distances of format 1, in the order of the NUMA nodes: multiples of a base, one element
  /// each.
  Status read_first_distances(const XmlElement& machine) {
    const std::size_t count = list_.numa.size();
    for (const XmlElement& child : machine.children) {
      if (child.name != "distances") continue;
      const std::string* objects = child.find("nbobjs");
      const std::string* base_text = child.find("latency_base");
      const auto base = base_text == nullptr ? std::nullopt : decimal_in(*base_text);
      // Skips distances whose count differs from the number of nodes: other objects, such as
      // packages. Distances of as many other objects are not recognised as such.
      if (objects == nullptr || number_in<std::size_t>(*objects) != count || !base) continue;
      std::vector<int> values;
      for (const XmlElement& latency : child.children) {
        const std::string* text = latency.find("value");
        const auto value = text == nullptr ? std::nullopt : decimal_in(*text);
        const double distance = value.value_or(-1) * *base;
        if (distance < 1 || distance > INT32_MAX) return odd(latency, "holds no distance");
        values.push_back(static_cast<int>(std::lround(distance)));
      }
      if (values.size() != count * count) {
        return odd(child, fmt::format("has {} values, for {} NUMA nodes", values.size(), count));
      }
      for (std::size_t a = 0; a < count; ++a) {
        const auto row = values.begin() + static_cast<std::ptrdiff_t>(a * count);
        list_.numa[a].distances.assign(row, row + static_cast<std::ptrdiff_t>(count));
      }
    }
    return {};
  }

  HwlocList list_;
  MachineLines lines_;
  UnknownElements unknown_;
  bool first_format_ = false;
};

}  // namespace

Result<HwlocList> read_hwloc_xml(std::string_view text) {
  ORIEL_TRY(const XmlElement root, parse_xml(text));
  return HwlocXmlReader().read(root);
}

}  // namespace oriel::topo
