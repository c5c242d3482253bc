// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topology/svg_layout.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "topo/printable.hpp"

namespace oriel::tools {
namespace {

constexpr double kDeviceWidth = 128;
constexpr double kDeviceHeight = 56;
constexpr double kGap = 16;
constexpr double kPad = 14;
constexpr double kLabel = 20;    // height of a box's own label
constexpr double kMargin = 24;   // around the picture
constexpr double kBetween = 46;  // between GPUs and NICs, for the lines
constexpr std::size_t kMostCpuLetters = 48;

/// Devices that stand side by side: below one switch, or alone.
struct Cluster {
  std::vector<int> gpus;
  std::vector<int> nics;
  std::string label;  // of the switch; empty where there is none
};

struct Root {
  int numa = -1;
  std::string label;
  std::map<int, Cluster> clusters;  // by the PCI node below the host bridge
};

class Arranger {
 public:
  Arranger(const Summary& summary, double top)
      : machine_(summary.machine), numa_nics_(summary.numa_nics), top_(top) {
    layout_.gpus.resize(machine_.gpus.size());
    layout_.nics.resize(machine_.nics.size());
  }

  Layout arrange() {
    gather();
    has_gpus_ = !machine_.gpus.empty();
    double x = kMargin;
    for (int numa = 0; numa < static_cast<int>(machine_.numa.size()); ++numa) {
      x = place_numa(numa, x);
    }
    const bool unplaced = std::any_of(roots_.begin(), roots_.end(),
                                      [](const auto& entry) { return entry.second.numa < 0; });
    if (unplaced) x = place_numa(-1, x);
    double bottom = top_;
    for (Box& box : layout_.numa) bottom = std::max(bottom, box.bottom());
    for (Box& box : layout_.numa) box.height = bottom - box.y;
    layout_.width = std::max(x - kGap + kMargin, 640.0);
    layout_.height = bottom;
    return std::move(layout_);
  }

 private:
  /// The host bridge above a node, and the node just below it on the way.
  std::pair<int, int> way_up(int node) const {
    int below = node;
    while (machine_.pci[static_cast<std::size_t>(node)].parent >= 0) {
      below = node;
      node = machine_.pci[static_cast<std::size_t>(node)].parent;
    }
    return {node, below};
  }

  /// The cluster of a device; one without a place in the tree stands below no bridge of its NUMA
  /// node.
  Cluster& cluster_of(int node, int numa) {
    if (node < 0) {
      Root& root = roots_[-2 - numa];
      root.numa = numa;
      root.label = "place on the buses not known";
      return root.clusters[-1];
    }
    const auto [bridge, below] = way_up(node);
    Root& root = roots_[bridge];
    root.numa = numa;
    root.label = "host bridge";
    return root.clusters[below];
  }

  void gather() {
    for (std::size_t i = 0; i < machine_.gpus.size(); ++i) {
      cluster_of(machine_.gpus[i].node, machine_.gpus[i].numa).gpus.push_back(static_cast<int>(i));
    }
    for (std::size_t i = 0; i < machine_.nics.size(); ++i) {
      cluster_of(machine_.nics[i].node, machine_.nics[i].numa).nics.push_back(static_cast<int>(i));
    }
    for (auto& [bridge, root] : roots_) {
      for (auto& [node, cluster] : root.clusters) {
        if (node < 0 || cluster.gpus.size() + cluster.nics.size() < 2) continue;
        const topo::PciNode& below = machine_.pci[static_cast<std::size_t>(node)];
        if (below.kind != topo::PciNode::Kind::bridge) continue;
        cluster.label = fmt::format("PCIe switch {}", below.address->to_string());
      }
      join_loose(root);
    }
  }

  /// Devices below no common switch stand together, so that NICs are below GPUs.
  static void join_loose(Root& root) {
    Cluster loose;
    for (auto entry = root.clusters.begin(); entry != root.clusters.end();) {
      Cluster& cluster = entry->second;
      if (!cluster.label.empty()) {
        ++entry;
        continue;
      }
      loose.gpus.insert(loose.gpus.end(), cluster.gpus.begin(), cluster.gpus.end());
      loose.nics.insert(loose.nics.end(), cluster.nics.begin(), cluster.nics.end());
      entry = root.clusters.erase(entry);
    }
    if (loose.gpus.empty() && loose.nics.empty()) return;
    root.clusters[std::numeric_limits<int>::max()] = std::move(loose);
  }

  std::string numa_label(int numa) const {
    const auto index = static_cast<std::size_t>(numa);
    const topo::NumaNode& node = machine_.numa[index];
    std::string text = fmt::format("NUMA node {}, CPUs {}", node.os_index,
                                   topo::fitted(ranges_text(node.cpus), kMostCpuLetters));
    const topo::NicChoice& choice = numa_nics_[index];
    // Lines lead from GPUs to their NICs; where there are none, ranks are on the CPU.
    if (has_gpus_ || choice.primary < 0) return text;
    return text + fmt::format(", NIC{}", choice.primary) +
           (choice.backup >= 0 ? fmt::format(", backup NIC{}", choice.backup) : "");
  }

  double place_numa(int numa, double x) {
    Box box{x, top_, 0, 0, ""};
    box.label = numa < 0 ? "NUMA node not known" : numa_label(numa);
    double inner = x + kPad;
    double bottom = top_ + kLabel + kPad;
    for (auto& [bridge, root] : roots_) {
      if (root.numa != numa) continue;
      const Box placed = place_root(root, inner, top_ + kLabel + kPad);
      inner = placed.right() + kGap;
      bottom = std::max(bottom, placed.bottom());
    }
    const double label_width = 7.2 * static_cast<double>(box.label.size());
    box.width = std::max({inner - kGap + kPad - x, label_width + 2 * kPad, kDeviceWidth});
    box.height = bottom + kPad - box.y;
    layout_.numa.push_back(box);
    return box.right() + kGap;
  }

  Box place_root(Root& root, double x, double y) {
    Box box{x, y, 0, 0, root.label};
    double inner = x + kPad;
    double bottom = y;
    for (auto& [node, cluster] : root.clusters) {
      const Box placed = place_cluster(cluster, inner, y + kLabel + kPad);
      inner = placed.right() + kGap;
      bottom = std::max(bottom, placed.bottom());
    }
    box.width = inner - kGap + kPad - x;
    box.height = bottom + kPad - y;
    layout_.host_bridges.push_back(box);
    return box;
  }

  Box place_cluster(const Cluster& cluster, double x, double y) {
    const bool boxed = !cluster.label.empty();
    const double pad = boxed ? kPad : 0;
    // Rows line up across clusters, whether boxed or not.
    const double first = y + kLabel + kPad;
    place_row(layout_.gpus, cluster.gpus, x + pad, first);
    const double second = first + (has_gpus_ ? kDeviceHeight + kBetween : 0);
    place_row(layout_.nics, cluster.nics, x + pad, second);
    const auto columns = static_cast<double>(std::max(cluster.gpus.size(), cluster.nics.size()));
    Box box{x, y, 0, 0, cluster.label};
    box.width = std::max(columns * (kDeviceWidth + kGap) - kGap + 2 * pad,
                         7.2 * static_cast<double>(cluster.label.size()) + 2 * pad);
    box.height = (cluster.nics.empty() ? first : second) + kDeviceHeight + kPad - y;
    if (boxed) layout_.switches.push_back(box);
    return box;
  }

  static void place_row(std::vector<Box>& boxes, const std::vector<int>& indices, double x,
                        double y) {
    for (const int index : indices) {
      boxes[static_cast<std::size_t>(index)] = {x, y, kDeviceWidth, kDeviceHeight, ""};
      x += kDeviceWidth + kGap;
    }
  }

  const topo::Machine& machine_;
  const std::vector<topo::NicChoice>& numa_nics_;
  const double top_;
  Layout layout_;
  std::map<int, Root> roots_;  // by their PCI nodes; below -1: devices without a place
  bool has_gpus_ = true;
};

}  // namespace

Layout lay_out(const Summary& summary, double top) {
  return Arranger(summary, top).arrange();
}

}  // namespace oriel::tools
