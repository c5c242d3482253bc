// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topology/svg_layout.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "topo/model/printable.hpp"

namespace oriel::tools {
namespace {

constexpr double kDeviceWidth = 128;
constexpr double kDeviceHeight = 56;
constexpr double kGap = 16;
constexpr double kPad = 14;
constexpr double kLabel = 20;    // height of a box's own label
constexpr double kMargin = 24;   // around the picture
constexpr double kBetween = 46;  // least distance between GPUs and NICs, for the lines
constexpr std::size_t kMostCpuLetters = 48;

/// Devices and switches directly below a host bridge or a switch.
struct Group {
  std::vector<int> gpus;
  std::vector<int> nics;
  std::vector<Group> switches;
  std::string label;

  bool empty() const { return gpus.empty() && nics.empty() && switches.empty(); }
  /// Returns the lowest GPU index in this group and its switches.
  int first_gpu() const {
    int first = gpus.empty() ? std::numeric_limits<int>::max() : gpus.front();
    for (const Group& one : switches) first = std::min(first, one.first_gpu());
    return first;
  }
  /// Returns the depth of nested switches.
  int levels() const {
    int most = 0;
    for (const Group& one : switches) most = std::max(most, one.levels() + 1);
    return most;
  }
};

struct Root {
  int numa = -1;
  std::string label;
  Group group;
};

class Arranger {
 public:
  Arranger(const Summary& summary, double top, const LineSpace& space)
      : machine_(summary.machine), numa_nics_(summary.numa_nics), top_(top), space_(space) {
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
    const bool unplaced =
        std::any_of(roots_.begin(), roots_.end(), [](const Root& root) { return root.numa < 0; });
    if (unplaced) x = place_numa(-1, x);
    double bottom = top_;
    for (Box& box : layout_.numa) bottom = std::max(bottom, box.bottom());
    for (Box& box : layout_.numa) box.height = bottom - box.y;
    layout_.width = std::max(x - kGap + kMargin, 640.0);
    layout_.height = bottom;
    return std::move(layout_);
  }

 private:
  /// Lists the GPUs and NICs of each PCI node, and the children with devices in or below them.
  void list_devices() {
    here_.resize(machine_.pci.size());
    children_.resize(machine_.pci.size());
    std::vector<bool> any(machine_.pci.size(), false);
    const auto add = [&](int node, std::vector<int> Group::*kind, std::size_t device) {
      (here_[static_cast<std::size_t>(node)].*kind).push_back(static_cast<int>(device));
      for (; node >= 0; node = machine_.pci[static_cast<std::size_t>(node)].parent) {
        any[static_cast<std::size_t>(node)] = true;
      }
    };
    for (std::size_t i = 0; i < machine_.gpus.size(); ++i) {
      if (machine_.gpus[i].node >= 0) add(machine_.gpus[i].node, &Group::gpus, i);
    }
    for (std::size_t i = 0; i < machine_.nics.size(); ++i) {
      if (machine_.nics[i].node >= 0) add(machine_.nics[i].node, &Group::nics, i);
    }
    for (std::size_t i = 0; i < machine_.pci.size(); ++i) {
      const int parent = machine_.pci[i].parent;
      if (any[i] && parent >= 0) children_[static_cast<std::size_t>(parent)].push_back(i);
    }
  }

  /// Returns true if a bridge has more than one branch; all functions of a card are one branch.
  bool is_switch(std::size_t bridge) const {
    std::set<std::tuple<std::uint32_t, int, int>> cards;
    std::size_t ways = 0;
    for (const std::size_t child : children_[bridge]) {
      const topo::PciNode& node = machine_.pci[child];
      if (node.kind == topo::PciNode::Kind::device && node.address) {
        cards.emplace(node.address->domain, node.address->bus, node.address->device);
      } else {
        ++ways;
      }
    }
    return ways + cards.size() > 1;
  }

  // Collects the devices and switches below a node. The readers of machines limit the recursion
  // depth.
  void collect(std::size_t node, Group& group) const {
    const Group& own = here_[node];
    group.gpus.insert(group.gpus.end(), own.gpus.begin(), own.gpus.end());
    group.nics.insert(group.nics.end(), own.nics.begin(), own.nics.end());
    for (const std::size_t child : children_[node]) {
      const topo::PciNode& below = machine_.pci[child];
      if (below.kind != topo::PciNode::Kind::bridge || !is_switch(child)) {
        collect(child, group);
        continue;
      }
      Group& one = group.switches.emplace_back();
      one.label = fmt::format("PCIe switch {}", below.address->to_string());
      collect(child, one);
    }
  }

  void gather() {
    list_devices();
    for (std::size_t i = 0; i < machine_.pci.size(); ++i) {
      if (machine_.pci[i].parent >= 0) continue;
      Root root{machine_.pci[i].numa, "host bridge", {}};
      collect(i, root.group);
      if (!root.group.empty()) roots_.push_back(std::move(root));
    }
    // Devices without a PCI node get a group of their own in their NUMA node.
    std::map<int, Group> loose;
    for (std::size_t i = 0; i < machine_.gpus.size(); ++i) {
      const topo::Gpu& gpu = machine_.gpus[i];
      if (gpu.node < 0) loose[gpu.numa].gpus.push_back(static_cast<int>(i));
    }
    for (std::size_t i = 0; i < machine_.nics.size(); ++i) {
      const topo::Nic& nic = machine_.nics[i];
      if (nic.node < 0) loose[nic.numa].nics.push_back(static_cast<int>(i));
    }
    for (auto& [numa, group] : loose) {
      roots_.push_back({numa, "place on the buses not known", std::move(group)});
    }
    for (const Root& root : roots_) levels_ = std::max(levels_, root.group.levels());
  }

  std::string numa_label(int numa) const {
    const auto index = static_cast<std::size_t>(numa);
    const topo::NumaNode& node = machine_.numa[index];
    std::string text = fmt::format("NUMA node {}, CPUs {}", node.os_index,
                                   topo::fitted(ranges_text(node.cpus), kMostCpuLetters));
    const topo::NicChoice& choice = numa_nics_[index];
    // With GPUs, lines show the NICs. Without GPUs, ranks are on the CPU, so the label names them.
    if (has_gpus_ || choice.primary < 0) return text;
    return text + fmt::format(", NIC{}", choice.primary) +
           (choice.backup >= 0 ? fmt::format(", backup NIC{}", choice.backup) : "");
  }

  double place_numa(int numa, double x) {
    Box box{x, top_, 0, 0, ""};
    box.label = numa < 0 ? "NUMA node not known" : numa_label(numa);
    double inner = x + kPad;
    double bottom = top_ + kLabel + kPad;
    for (const Root& root : roots_) {
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

  Box place_root(const Root& root, double x, double y) {
    Box box{x, y, 0, 0, root.label};
    // Aligns rows across all groups, whatever their depth of nested switches.
    rows_ = y + kLabel + kPad + std::max(levels_, 1) * (kLabel + kPad) + space_.above;
    box.width = std::max(place_group(root.group, x + kPad, y + kLabel + kPad),
                         7.2 * static_cast<double>(root.label.size())) +
                2 * kPad;
    box.height = bottom_of(root.group) + kPad - y;
    layout_.host_bridges.push_back(box);
    return box;
  }

  /// Places switches and devices in the order of their GPUs; returns the width.
  double place_group(const Group& group, double x, double y) {
    double inner = x;
    bool placed = group.gpus.empty() && group.nics.empty();
    const auto place_devices = [&] {
      placed = true;
      place_row(layout_.gpus, group.gpus, inner, rows_);
      place_row(layout_.nics, group.nics, inner, second_row());
      const auto columns = static_cast<double>(std::max(group.gpus.size(), group.nics.size()));
      inner += columns * (kDeviceWidth + kGap);
    };
    for (const Group& one : group.switches) {
      if (!placed && !group.gpus.empty() && group.gpus.front() < one.first_gpu()) place_devices();
      inner = place_switch(one, inner, y) + kGap;
    }
    if (!placed) place_devices();
    return std::max(inner - kGap - x, 0.0);
  }

  /// Returns the right edge of the placed switch.
  double place_switch(const Group& group, double x, double y) {
    const std::size_t place = layout_.switches.size();  // drawn before the switches in it
    layout_.switches.push_back({x, y, 0, 0, group.label});
    const double within = place_group(group, x + kPad, y + kLabel + kPad);
    Box& box = layout_.switches[place];
    box.width = std::max(within, 7.2 * static_cast<double>(group.label.size())) + 2 * kPad;
    box.height = bottom_of(group) + kPad - y;
    return box.right();
  }

  double second_row() const {
    return rows_ + (has_gpus_ ? kDeviceHeight + std::max(kBetween, space_.between) : 0);
  }

  /// Returns the lowest edge of the boxes in a group.
  double bottom_of(const Group& group) const {
    double bottom = (group.nics.empty() ? rows_ : second_row()) + kDeviceHeight;
    for (const Group& one : group.switches) bottom = std::max(bottom, bottom_of(one) + kPad);
    return bottom;
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
  const LineSpace space_;
  Layout layout_;
  std::vector<Group> here_;  // devices of each PCI node
  std::vector<std::vector<std::size_t>> children_;
  std::vector<Root> roots_;
  int levels_ = 0;   // greatest depth of nested switches
  double rows_ = 0;  // y of the row of GPUs
  bool has_gpus_ = true;
};

}  // namespace

Layout lay_out(const Summary& summary, double top, const LineSpace& space) {
  return Arranger(summary, top, space).arrange();
}

}  // namespace oriel::tools
