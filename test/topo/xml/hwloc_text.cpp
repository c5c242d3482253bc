// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/xml/hwloc_text.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace oriel::topo {
namespace {

std::string mask_of(const std::vector<int>& numbers) {
  std::vector<unsigned> groups(1, 0);
  for (const int number : numbers) {
    const auto group = static_cast<std::size_t>(number) / 32;
    if (groups.size() <= group) groups.resize(group + 1, 0);
    groups[group] |= 1U << number % 32;
  }
  std::string mask;
  for (std::size_t i = groups.size(); i-- > 0;) {
    mask += fmt::format("0x{:08x}{}", groups[i], i > 0 ? "," : "");
  }
  return mask;
}

class Writer {
 public:
  explicit Writer(const Machine& machine) : machine_(machine) {}

  std::string write() {
    std::vector<int> cpus;
    std::vector<int> nodes;
    for (const NumaNode& node : machine_.numa) {
      cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
      nodes.push_back(node.os_index);
    }
    text_ =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n";
    text_ += fmt::format("<object type=\"Machine\" os_index=\"0\" {} gp_index=\"1\">\n",
                         sets(cpus, nodes));
    for (std::size_t i = 0; i < machine_.numa.size(); ++i) write_package(static_cast<int>(i));
    write_bridges(-1);
    text_ += "</object>\n";
    write_distances();
    return text_ + "</topology>\n";
  }

 private:
  static std::string sets(const std::vector<int>& cpus, const std::vector<int>& nodes) {
    const std::string cpu_mask = mask_of(cpus);
    const std::string node_mask = mask_of(nodes);
    return fmt::format(
        "cpuset=\"{0}\" complete_cpuset=\"{0}\" allowed_cpuset=\"{0}\" "
        "nodeset=\"{1}\" complete_nodeset=\"{1}\" allowed_nodeset=\"{1}\"",
        cpu_mask, node_mask);
  }
  std::string own_sets(const std::vector<int>& cpus, int node) const {
    return fmt::format(
        "cpuset=\"{0}\" complete_cpuset=\"{0}\" nodeset=\"{1}\" "
        "complete_nodeset=\"{1}\"",
        mask_of(cpus), mask_of({node}));
  }

  void write_package(int index) {
    const NumaNode& node = machine_.numa[static_cast<std::size_t>(index)];
    text_ += fmt::format("<object type=\"Package\" os_index=\"{}\" {} gp_index=\"{}\">\n",
                         node.package, own_sets(node.cpus, node.os_index), next_++);
    text_ += fmt::format(
        "<object type=\"NUMANode\" os_index=\"{}\" {} gp_index=\"{}\" "
        "local_memory=\"{}\"/>\n",
        node.os_index, own_sets(node.cpus, node.os_index), next_++, node.memory_bytes);
    for (const int cpu : node.cpus) {
      text_ += fmt::format(
          "<object type=\"Core\" os_index=\"{0}\" {1} gp_index=\"{2}\">"
          "<object type=\"PU\" os_index=\"{0}\" {1} gp_index=\"{3}\"/></object>\n",
          cpu, own_sets({cpu}, node.os_index), next_, next_ + 1);
      next_ += 2;
    }
    write_bridges(index);
    text_ += "</object>\n";
  }

  void write_distances() {
    const auto silent = [](const NumaNode& node) { return node.distances.empty(); };
    if (machine_.numa.empty() || std::any_of(machine_.numa.begin(), machine_.numa.end(), silent)) {
      return;
    }
    std::string indices;
    std::string values;
    for (const NumaNode& node : machine_.numa) {
      indices += fmt::format("{} ", node.os_index);
      for (const int distance : node.distances) values += fmt::format("{} ", distance);
    }
    text_ += fmt::format(
        "<distances2 type=\"NUMANode\" nbobjs=\"{}\" kind=\"5\" name=\"NUMALatency\" "
        "indexing=\"os\">\n<indexes length=\"{}\">{}</indexes>\n"
        "<u64values length=\"{}\">{}</u64values>\n</distances2>\n",
        machine_.numa.size(), indices.size(), indices, values.size(), values);
  }

  void write_bridges(int numa) {
    for (std::size_t i = 0; i < machine_.pci.size(); ++i) {
      const PciNode& node = machine_.pci[i];
      if (node.parent >= 0 || node.numa != numa) continue;
      text_ += fmt::format(
          "<object type=\"Bridge\" gp_index=\"{}\" bridge_type=\"0-1\" "
          "depth=\"0\" bridge_pci=\"0000:[00-ff]\">\n",
          next_++);
      write_children(static_cast<int>(i), 1);
      text_ += "</object>\n";
    }
  }

  void write_children(int parent, int depth) {
    for (std::size_t i = 0; i < machine_.pci.size(); ++i) {
      const PciNode& node = machine_.pci[i];
      if (node.parent != parent) continue;
      const std::string place = fmt::format("pci_busid=\"{}\" pci_link_speed=\"{:.6f}\"",
                                            node.address->to_string(), node.link_gbps / 8);
      if (node.kind == PciNode::Kind::device) {
        text_ += fmt::format("<object type=\"PCIDev\" gp_index=\"{}\" {} pci_type=\"{}\"/>\n",
                             next_++, place, type_of(static_cast<int>(i)));
        continue;
      }
      text_ += fmt::format(
          "<object type=\"Bridge\" gp_index=\"{}\" bridge_type=\"1-1\" "
          "depth=\"{}\" bridge_pci=\"0000:[01-ff]\" {} "
          "pci_type=\"0604 [1000:c030] [0000:0000] a0\">\n",
          next_++, depth, place);
      write_children(static_cast<int>(i), depth + 1);
      text_ += "</object>\n";
    }
  }

  std::string type_of(int node) const {
    const auto gpu = std::find_if(machine_.gpus.begin(), machine_.gpus.end(),
                                  [&](const Gpu& one) { return one.node == node; });
    if (gpu == machine_.gpus.end()) return "0207 [15b3:1021] [15b3:0000] 00";
    return gpu->vendor == GpuVendor::amd ? "0380 [1002:74a1] [1002:0000] 00"
                                         : "0302 [10de:2335] [10de:0000] a1";
  }

  const Machine& machine_;
  std::string text_;
  int next_ = 2;
};

}  // namespace

std::string hwloc_text_of(const Machine& machine) {
  return Writer(machine).write();
}

}  // namespace oriel::topo
