// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/paths.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "topo/choice/reach.hpp"

namespace oriel::topo {
namespace {

const Gpu& gpu_at(const Machine& machine, int index) {
  return machine.gpus[static_cast<std::size_t>(index)];
}

/// Returns the narrower of two bandwidths; 0 (not known) is ignored.
double narrower(double a, double b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

bool share_switches(const Gpu& a, const Gpu& b) {
  if (a.switch_links == 0 || b.switch_links == 0) return false;
  return !a.fabric || !b.fabric || a.fabric == b.fabric;
}

/// Returns the vendor's name for links between GPUs.
std::string_view links_of(const Gpu& gpu) {
  return gpu.vendor == GpuVendor::amd ? "xGMI" : "NVLink";
}

std::string title_of(const Machine& machine, int index) {
  const Gpu& gpu = gpu_at(machine, index);
  return fmt::format("GPU {} ({})", index, gpu.pci ? gpu.pci->to_string() : gpu.name);
}

std::string bandwidth_text(double gbps) {
  return gbps > 0 ? fmt::format("{:.0f} GB/s one way", gbps / 8) : "of unknown bandwidth";
}

std::string in_words(Distance distance) {
  switch (distance) {
    case Distance::same:
      return "the same device";
    case Distance::one_switch:
      return "below one PCIe switch";
    case Distance::switches:
      return "joined by several PCIe switches, without the host bridge";
    case Distance::host_bridge:
      return "below one host bridge, so that their traffic passes the processor";
    case Distance::numa_node:
      return "below different host bridges of one NUMA node";
    case Distance::system:
      return "at different sockets, so that their traffic crosses the link between processors";
    case Distance::unknown:
      break;
  }
  return "at places that no source names";
}

/// Returns the bandwidth between two GPUs for a comparison, or the number of links if it is
/// unknown.
double weight_of(const Machine& machine, int from, int to, bool by_bandwidth) {
  const Path path = path_between(machine, from, to);
  if (by_bandwidth) return path.gbps;
  if (path.kind != PathKind::nvlink) return 0;
  const GpuPair* pair = find_pair(machine, from, to);
  if (pair != nullptr && pair->links > 0) return pair->links;
  return std::min(gpu_at(machine, from).switch_links, gpu_at(machine, to).switch_links);
}

/// Returns whether the path uses links of known bandwidth.
bool has_known_speed(const Path& path) {
  return path.kind == PathKind::nvlink && path.gbps > 0;
}

/// Says whether the pair's path over links is the fastest of the machine; otherwise names the
/// fastest.
std::string compared_with_others(const Machine& machine, int from, int to) {
  const bool by_bandwidth = path_between(machine, from, to).gbps > 0;
  const double own = weight_of(machine, from, to, by_bandwidth);
  const auto count = static_cast<int>(machine.gpus.size());
  double most = own;
  std::pair<int, int> best{from, to};
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) {
      const double other = a == b ? 0 : weight_of(machine, a, b, by_bandwidth);
      if (a != b && !by_bandwidth && has_known_speed(path_between(machine, a, b))) {
        return "Whether another pair of this machine has a faster path, no source says.";
      }
      if (other <= most * 1.01) continue;
      most = other;
      best = {a, b};
    }
  }
  if (best == std::pair(from, to)) return "No pair of this machine has a faster path.";
  return fmt::format("GPU {} and GPU {} have a faster one, {}.", best.first, best.second,
                     by_bandwidth ? bandwidth_text(most) : fmt::format("{:.0f} links", most));
}

/// Describes a PCIe link that carries less than both of its ends can. Begins with a blank; empty
/// for a link without defects.
std::string complaint_about(const std::string& title, double most, double now, int lanes,
                            int lanes_now) {
  if (lanes_now > 0 && lanes_now < lanes) {
    return fmt::format(
        " {} uses {} of its {} lanes: a card that is not fully seated, a riser, or a setting of "
        "the "
        "firmware. With all of them it would be faster.",
        title, lanes_now, lanes);
  }
  if (now <= 0 || now >= most * 0.99) return "";
  return fmt::format(
      " {} carries {:.0f} Gbit/s now, {:.0f} at most. Idle links slow down by themselves; one that "
      "stays slow under load has a bad contact or is held down by the firmware.",
      title, now, most);
}

/// Returns the nodes above a GPU, nearest first, up to its host bridge.
std::vector<int> nodes_above(const Machine& machine, int index) {
  std::vector<int> nodes;
  const auto parent = [&](int node) { return machine.pci[static_cast<std::size_t>(node)].parent; };
  int at = gpu_at(machine, index).node;
  while (at >= 0 && (at = parent(at)) >= 0) nodes.push_back(at);
  return nodes;
}

/// Describes defects of the PCIe links from a GPU up to the node `end`. Reads the lower end of each
/// link, which knows the abilities of both ends: the GPU, and the upstream ports of switches.
std::string complaints_about(const Machine& machine, int index, int end) {
  const Gpu& gpu = gpu_at(machine, index);
  const auto node_at = [&](int node) { return machine.pci[static_cast<std::size_t>(node)]; };
  const PciNode own = gpu.node >= 0 ? node_at(gpu.node) : PciNode{};
  std::string text = complaint_about(fmt::format("The PCIe link of GPU {}", index), gpu.pcie_gbps,
                                     gpu.pcie_now_gbps, own.lanes, own.lanes_now);
  const std::vector<int> above = nodes_above(machine, index);
  for (std::size_t i = 0; i < above.size() && above[i] != end; ++i) {
    const PciNode node = node_at(above[i]);
    const std::size_t depth = above.size() - 1 - i;  // 0: host bridge, 1: root port, 2: upstream
                                                     // port
    if (depth % 2 != 0 || !node.address) continue;
    text +=
        complaint_about(fmt::format("The PCIe link of the switch {}", node.address->to_string()),
                        node.link_gbps, node.link_now_gbps, node.lanes, node.lanes_now);
  }
  return text;
}

/// Returns the lowest PCI node above both GPUs, or -1.
int shared_node(const Machine& machine, int a, int b) {
  const std::vector<int> above_a = nodes_above(machine, a);
  const std::vector<int> above_b = nodes_above(machine, b);
  const auto shared =
      std::find_first_of(above_a.begin(), above_a.end(), above_b.begin(), above_b.end());
  return shared == above_a.end() ? -1 : *shared;
}

/// Explains what slows down a path over PCIe. Begins with a blank unless empty.
std::string what_slows(const Machine& machine, int from, int to) {
  const Gpu& a = gpu_at(machine, from);
  const Gpu& b = gpu_at(machine, to);
  std::string text;
  const double own = std::min(a.pcie_gbps, b.pcie_gbps);
  const double way = route_between(machine, place_of(a), place_of(b)).link_gbps;
  if (own > 0 && way > 0 && way < own * 0.99) {
    text += fmt::format(
        " A bridge on the way has the narrowest link, {:.0f} Gbit/s, where the GPUs have {:.0f}.",
        way, own);
  } else if (own > 0 && std::max(a.pcie_gbps, b.pcie_gbps) > own * 1.01) {
    text +=
        fmt::format(" The PCIe link of GPU {} is the narrower one, {:.0f} Gbit/s against {:.0f}.",
                    a.pcie_gbps < b.pcie_gbps ? from : to, own, std::max(a.pcie_gbps, b.pcie_gbps));
  }
  const int shared = shared_node(machine, from, to);
  return text + complaints_about(machine, from, shared) + complaints_about(machine, to, shared);
}

std::string why_not_mapped(const Machine& machine, int from, int to) {
  const Gpu& a = gpu_at(machine, from);
  const Gpu& b = gpu_at(machine, to);
  if (a.mig_instance >= 0 || b.mig_instance >= 0) {
    const std::string rule = "MIG instances cannot map each other's memory. ";
    if (a.pci && a.pci == b.pci) return rule + "Without MIG these would be one GPU.";
    return rule +
           "Without MIG the GPUs could, if the driver gives them peer access; it does not report "
           "that before.";
  }
  if (a.vendor != b.vendor) return "GPUs of different vendors cannot map each other's memory.";
  if (!reach_is_known(machine, from, to)) {
    return a.vendor == GpuVendor::amd
               ? "No source says whether they may map each other's memory. The kernel's "
                 "/sys/class/kfd would: load AMD's compute driver, or let the container see it. A "
                 "communicator takes it that they may, and says so if that fails."
               : "No source says whether they may map each other's memory. NVML (libnvidia-ml) "
                 "would: install it here, or in the container; or let CUDA see both "
                 "(CUDA_VISIBLE_DEVICES). For a machine in a file, only a run on the machine "
                 "itself shows it. A communicator takes it that they may, and says so if that "
                 "fails.";
  }
  return "The driver refuses to map one's memory into the other. Common causes are an IOMMU that "
         "translates (iommu=pt), PCIe access control services that send peer traffic up to the "
         "host bridge, and GPUs without peer support.";
}

/// Describes a pair whose reach works in one direction only.
std::string of_one_way(const Machine& machine, int from, int to) {
  if (!reach_is_known(machine, from, to) || !reach_is_known(machine, to, from)) return "";
  const bool there = may_map(machine, from, to);
  if (there == may_map(machine, to, from)) return "";
  return fmt::format(
      "This holds one way only: GPU {} maps the memory of GPU {}, not the other way round, so no "
      "team has both.",
      there ? from : to, there ? to : from);
}

}  // namespace

std::string_view name_of(PathKind kind) {
  switch (kind) {
    case PathKind::same_device:
      return "same device";
    case PathKind::nvlink:
      return "NVLink";
    case PathKind::pcie_peer:
      return "PCIe peer";
    case PathKind::host_memory:
      return "host memory";
    case PathKind::network:
      return "network";
  }
  return "unknown";
}

std::string_view name_of(const Machine& machine, int from, PathKind kind) {
  return kind == PathKind::nvlink ? links_of(gpu_at(machine, from)) : name_of(kind);
}

Path path_between(const Machine& machine, int from, int to) {
  Path path;
  if (from == to) {
    path = {PathKind::same_device, 0, 0, true, Distance::same};
    return path;
  }
  const Gpu& a = gpu_at(machine, from);
  const Gpu& b = gpu_at(machine, to);
  const Route route = route_between(machine, place_of(a), place_of(b));
  const GpuPair* pair = find_pair(machine, from, to);
  path.distance = route.distance;
  path.atomics = pair != nullptr && pair->atomics;
  const double pcie = narrower(narrower(a.pcie_gbps, b.pcie_gbps), route.link_gbps);
  if (!may_map(machine, from, to)) {
    path.kind = PathKind::host_memory;
    path.hops = 2;
    path.gbps = pcie;
  } else if (pair != nullptr && pair->links > 0) {
    path.kind = PathKind::nvlink;
    path.hops = 1;
    path.gbps = pair->gbps > 0 ? pair->gbps : pair->links * narrower(a.link_gbps, b.link_gbps);
  } else if (share_switches(a, b)) {
    path.kind = PathKind::nvlink;
    path.hops = 2;
    path.gbps = narrower(a.switch_links * a.link_gbps, b.switch_links * b.link_gbps);
  } else if (pair != nullptr && pair->hops > 1) {
    path.kind = PathKind::nvlink;
    path.hops = pair->hops;
    path.gbps = narrower(a.link_gbps, b.link_gbps);
  } else {
    path.kind = PathKind::pcie_peer;
    path.hops = a.node >= 0 && b.node >= 0 ? route.bridges + 1 : 0;
    path.gbps = pcie;
  }
  return path;
}

std::vector<std::vector<Path>> all_paths(const Machine& machine) {
  const auto count = static_cast<int>(machine.gpus.size());
  std::vector<std::vector<Path>> rows(machine.gpus.size());
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      rows[static_cast<std::size_t>(from)].push_back(path_between(machine, from, to));
    }
  }
  return rows;
}

std::string explain_path(const Machine& machine, int from, int to) {
  const Path path = path_between(machine, from, to);
  const Gpu& a = gpu_at(machine, from);
  const Gpu& b = gpu_at(machine, to);
  const GpuPair* pair = find_pair(machine, from, to);
  const bool known = reach_is_known(machine, from, to);
  std::string text = fmt::format(
      "{} reaches the memory of {} by {}{}, {}.", title_of(machine, from), title_of(machine, to),
      name_of(machine, from, path.kind), known ? "" : " at least", bandwidth_text(path.gbps));
  const auto add = [&](const std::string& sentence) { text += " " + sentence; };
  switch (path.kind) {
    case PathKind::same_device:
      text = fmt::format("{} is one device.", title_of(machine, from));
      add("Loads and stores stay in its own memory. Nothing is faster.");
      break;
    case PathKind::nvlink:
      if (path.hops == 1) {
        add(fmt::format("{} link{} join{} the two directly.", pair->links,
                        pair->links == 1 ? "" : "s", pair->links == 1 ? "s" : ""));
      } else if (share_switches(a, b)) {
        add(fmt::format("Both are linked to the same switches, with {} and {} links.",
                        a.switch_links, b.switch_links));
      } else {
        add(
            fmt::format("No link joins the two directly; the way has {} hops over GPUs in between. "
                        "A direct link would be faster.",
                        path.hops));
      }
      if (path.hops == 1 || share_switches(a, b)) add(compared_with_others(machine, from, to));
      break;
    case PathKind::pcie_peer:
      add(fmt::format("No {} joins them; they are {}.", links_of(a), in_words(path.distance)));
      if (path.distance >= Distance::host_bridge) {
        add(
            fmt::format("Below one PCIe switch the traffic would not pass the processor; an {} "
                        "bridge would be faster still.",
                        links_of(a)));
      } else {
        add(fmt::format("An {} bridge would be faster.", links_of(a)));
      }
      text += what_slows(machine, from, to);
      break;
    case PathKind::host_memory:
      add(why_not_mapped(machine, from, to));
      add(fmt::format("They are {}.", in_words(path.distance)));
      text += what_slows(machine, from, to);
      break;
    case PathKind::network:
      break;
  }
  if (path.kind != PathKind::same_device && path.kind != PathKind::host_memory) {
    add(path.atomics ? "Atomics work over it natively." : "Native atomics are not known to work.");
  }
  const std::string one_way = of_one_way(machine, from, to);
  return one_way.empty() ? text : text + " " + one_way;
}

}  // namespace oriel::topo
