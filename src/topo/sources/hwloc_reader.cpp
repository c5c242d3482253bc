// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/hwloc_reader.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include <fmt/format.h>

#include "topo/model/file_tree.hpp"
#include "topo/sources/numa_sysfs.hpp"
#include "topo/xml/hwloc_xml_reader.hpp"
#include "topo/xml/xml_reader.hpp"
#include "topo/xml/xml_values.hpp"

namespace oriel::topo {
namespace {

using PciAttributes = hwloc_obj_attr_u::hwloc_pcidev_attr_s;

/// A topology; destroyed with its owner.
class Topology {
 public:
  explicit Topology(const HwlocTable& table) : table_(table) {
    if (table.hwloc_topology_init(&topology_) != 0) topology_ = nullptr;
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  ~Topology() {
    if (topology_ != nullptr) table_.hwloc_topology_destroy(topology_);
  }

  bool load(const std::string& xml) {
    if (topology_ == nullptr) return false;
    if (!xml.empty() && table_.hwloc_topology_set_xmlbuffer(
                            topology_, xml.c_str(), static_cast<int>(xml.size() + 1)) != 0) {
      return false;
    }
    // Excludes plug-ins that would initialise CUDA, OpenCL or a display in this process.
    for (const char* plugin : {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"}) {
      table_.hwloc_topology_set_components(topology_, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                           plugin);
    }
    return table_.hwloc_topology_set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) ==
               0 &&
           table_.hwloc_topology_load(topology_) == 0;
  }
  hwloc_topology_t get() const { return topology_; }

 private:
  const HwlocTable& table_;
  hwloc_topology_t topology_ = nullptr;
};

PciAddress address_of(const PciAttributes& pci) {
  return {pci.domain, pci.bus, pci.dev, pci.func};
}

class HwlocReader {
 public:
  HwlocReader(const HwlocTable& table, hwloc_topology_t topology, bool of_now)
      : table_(table), topology_(topology), of_now_(of_now) {}

  HwlocList read() {
    hwloc_obj_t root = table_.hwloc_get_obj_by_depth(topology_, 0, 0);
    if (root == nullptr) return std::move(list_);
    read_memory(root, -1);
    read_distances();
    read_devices(root);
    list_.report.detail =
        fmt::format("{} NUMA node{}, {} PCI devices and bridges", list_.numa.size(),
                    list_.numa.size() == 1 ? "" : "s", list_.pci.size());
    return std::move(list_);
  }

 private:
  // Memory objects are children of a separate kind, beside the processors.
  void read_memory(hwloc_obj_t object, int package) {
    if (object->type == HWLOC_OBJ_PACKAGE) package = static_cast<int>(object->os_index);
    if (object->type == HWLOC_OBJ_NUMANODE) {
      NumaNode node;
      node.os_index = static_cast<int>(object->os_index);
      node.package = package;
      node.memory_bytes = object->attr->numanode.local_memory;
      if (object->cpuset != nullptr) {
        for (int cpu = table_.hwloc_bitmap_next(object->cpuset, -1); cpu >= 0;
             cpu = table_.hwloc_bitmap_next(object->cpuset, cpu)) {
          node.cpus.push_back(cpu);
        }
      }
      list_.numa.push_back(std::move(node));
    }
    for (hwloc_obj_t child = object->memory_first_child; child != nullptr;
         child = child->next_sibling) {
      read_memory(child, package);
    }
    for (hwloc_obj_t child = object->first_child; child != nullptr; child = child->next_sibling) {
      read_memory(child, package);
    }
  }

  int numa_index(int os_index) const {
    const auto found =
        std::find_if(list_.numa.begin(), list_.numa.end(),
                     [&](const NumaNode& node) { return node.os_index == os_index; });
    return found == list_.numa.end() ? -1 : static_cast<int>(found - list_.numa.begin());
  }

  void read_distances() {
    hwloc_distances_s* found = nullptr;
    unsigned count = 1;
    const int status = table_.hwloc_distances_get_by_type(
        topology_, HWLOC_OBJ_NUMANODE, &count, &found, HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0);
    if (status != 0 || count == 0 || found == nullptr) return;
    use_distances(*found);
    table_.hwloc_distances_release(topology_, found);
  }

  /// Uses all distances or none: a missing one would count as the nearest.
  void use_distances(const hwloc_distances_s& found) {
    const std::size_t count = list_.numa.size();
    if (found.nbobjs != count) return;
    std::vector<int> places;
    for (std::size_t i = 0; i < count; ++i) {
      places.push_back(numa_index(static_cast<int>(found.objs[i]->os_index)));
    }
    std::vector<std::vector<int>> distances(count, std::vector<int>(count, 0));
    for (std::size_t a = 0; a < count; ++a) {
      for (std::size_t b = 0; b < count; ++b) {
        const std::uint64_t value = found.values[a * count + b];
        if (places[a] < 0 || places[b] < 0 || value == 0 || value > INT32_MAX) return;
        distances[static_cast<std::size_t>(places[a])][static_cast<std::size_t>(places[b])] =
            static_cast<int>(value);
      }
    }
    for (const std::vector<int>& row : distances) {
      if (std::find(row.begin(), row.end(), 0) != row.end()) return;  // a node was named twice
    }
    for (std::size_t i = 0; i < count; ++i) list_.numa[i].distances = std::move(distances[i]);
  }

  void read_devices(hwloc_obj_t object) {
    for (hwloc_obj_t child = object->io_first_child; child != nullptr;
         child = child->next_sibling) {
      read_device(child, -1, numa_of(object));
    }
    for (hwloc_obj_t child = object->first_child; child != nullptr; child = child->next_sibling) {
      read_devices(child);
    }
  }

  /// Returns the NUMA node of an object's buses; -1 if there are several.
  int numa_of(hwloc_obj_t object) const {
    if (object->nodeset == nullptr || table_.hwloc_bitmap_weight(object->nodeset) != 1) return -1;
    return numa_index(table_.hwloc_bitmap_next(object->nodeset, -1));
  }

  void read_device(hwloc_obj_t object, int parent, int numa) {
    if (object->type != HWLOC_OBJ_BRIDGE && object->type != HWLOC_OBJ_PCI_DEVICE) return;
    const bool host = object->type == HWLOC_OBJ_BRIDGE &&
                      object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST;
    if (!host && parent < 0)
      parent = list_.add_pci({}, -1, numa);  // the bus's host bridge is not listed
    PciNode node;
    if (!host) {
      const auto& pci = object->type == HWLOC_OBJ_BRIDGE ? object->attr->bridge.upstream.pci
                                                         : object->attr->pcidev;
      node.kind = object->type == HWLOC_OBJ_BRIDGE ? PciNode::Kind::bridge : PciNode::Kind::device;
      node.address = address_of(pci);
      node.link_gbps = static_cast<double>(pci.linkspeed) * 8;
      if (object->type == HWLOC_OBJ_PCI_DEVICE) add_gpu(pci, numa);
    }
    const int index = list_.add_pci(node, host ? -1 : parent, numa);
    for (hwloc_obj_t child = object->io_first_child; child != nullptr;
         child = child->next_sibling) {
      read_device(child, index, numa);
      const bool nic = child->type == HWLOC_OBJ_OS_DEVICE &&
                       child->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
      if (nic && child->name != nullptr) {
        list_.add_ports(child->name, index,
                        [&](const std::string& key) { return info_of(child, key); });
      }
    }
  }

  static std::string info_of(hwloc_obj_t object, const std::string& key) {
    for (unsigned i = 0; i < object->infos_count; ++i) {
      if (key == object->infos[i].name) return object->infos[i].value;
    }
    return "";
  }

  void add_gpu(const PciAttributes& pci, int numa) {
    auto gpu = gpu_by_class(pci.class_id, pci.vendor_id, pci.device_id);
    if (!gpu) return;
    gpu->pci = address_of(pci);
    gpu->node = static_cast<int>(list_.pci.size());  // index of the node added next
    gpu->numa = numa;
    gpu->pcie_gbps = static_cast<double>(pci.linkspeed) * 8;
    if (of_now_) gpu->pcie_now_gbps = gpu->pcie_gbps;
    list_.gpus.push_back(std::move(*gpu));
  }

  const HwlocTable& table_;
  hwloc_topology_t topology_;
  bool of_now_;  // the topology is live, not from a file
  HwlocList list_;
};

}  // namespace

namespace {

/// Returns whether the kernel lists the processor topology that hwloc reads first. Without it,
/// hwloc finds next to nothing and prints errors on standard error.
bool kernel_lists_processors() {
  const FileTree tree("/");
  constexpr const char* kFolder = "/sys/devices/system/cpu";
  const std::vector<int> online =
      numbers_in(tree.read(fmt::format("{}/online", kFolder)).value_or(""));
  for (const int cpu : {0, online.empty() ? 0 : online.front()}) {
    for (const char* file : {"package_cpus", "core_cpus", "core_siblings", "thread_siblings"}) {
      if (tree.read(fmt::format("{}/cpu{}/topology/{}", kFolder, cpu, file))) return true;
    }
  }
  return false;
}

/// Reads the file that HWLOC_XMLFILE names, which hwloc would otherwise read itself.
HwlocList read_named_file(const std::string& path) {
  auto text = read_xml_file(path);
  auto read = text.ok() ? read_hwloc_xml(*text) : Result<HwlocList>(std::move(text).error());
  HwlocList list;
  if (read.ok()) {
    list = std::move(read).value();
  } else {
    list.report.outcome = SourceReport::Outcome::failed;
    list.report.detail = read.error().to_string();
  }
  list.report.source = "HWLOC_XMLFILE=" + path;
  return list;
}

}  // namespace

HwlocList read_hwloc(const HwlocLibrary& hwloc, const std::string& xml) {
  const char* const named = xml.empty() ? ::secure_getenv("HWLOC_XMLFILE") : nullptr;
  if (named != nullptr && *named != '\0') return read_named_file(named);
  HwlocList list;
  if (!hwloc.missing.empty()) {
    list.report = {"hwloc", SourceReport::Outcome::absent, hwloc.missing};
    return list;
  }
  if (xml.empty() && !kernel_lists_processors()) {
    list.report = {"hwloc", SourceReport::Outcome::absent,
                   "there is no /sys/devices/system/cpu/cpu*/topology, with which it begins"};
    return list;
  }
  Topology topology(hwloc.table);
  if (!topology.load(xml)) {
    list.report = {"hwloc", SourceReport::Outcome::failed,
                   xml.empty() ? "it could not describe this machine"
                               : "it could not read the description of a machine"};
    return list;
  }
  list = HwlocReader(hwloc.table, topology.get(), xml.empty()).read();
  const unsigned version = hwloc.table.hwloc_get_api_version();
  list.report.source =
      fmt::format("hwloc {}.{}.{}", version >> 16, version >> 8 & 0xff, version & 0xff);
  return list;
}

}  // namespace oriel::topo
