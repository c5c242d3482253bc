// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/paths.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "topo/reach.hpp"

namespace oriel::topo {
namespace {

const Gpu& gpu_at(const Machine& machine, int index) {
  return machine.gpus[static_cast<std::size_t>(index)];
}

/// The narrower of two bandwidths, of which either may not be known.
double narrower(double a, double b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

bool share_switches(const Gpu& a, const Gpu& b) {
  if (a.switch_links == 0 || b.switch_links == 0) return false;
  return !a.fabric || !b.fabric || a.fabric == b.fabric;
}

/// What the GPU's vendor calls links between GPUs.
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

/// What joins two GPUs, for a comparison: the bandwidth, or where that is not known, the links.
double weight_of(const Machine& machine, int from, int to, bool by_bandwidth) {
  const Path path = path_between(machine, from, to);
  if (by_bandwidth) return path.gbps;
  if (path.kind != PathKind::nvlink) return 0;
  const GpuPair* pair = find_pair(machine, from, to);
  if (pair != nullptr && pair->links > 0) return pair->links;
  return std::min(gpu_at(machine, from).switch_links, gpu_at(machine, to).switch_links);
}

/// Whether it is known how fast a path over links is.
bool has_known_speed(const Path& path) {
  return path.kind == PathKind::nvlink && path.gbps > 0;
}

/// Whether a path over links is the fastest of the machine; if not, which one is.
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

std::string why_not_mapped(const Machine& machine, int from, int to) {
  const Gpu& a = gpu_at(machine, from);
  const Gpu& b = gpu_at(machine, to);
  if (a.mig_instance >= 0 || b.mig_instance >= 0) {
    return "MIG instances cannot map each other's memory. Without MIG they could.";
  }
  if (a.vendor != b.vendor) return "GPUs of different vendors cannot map each other's memory.";
  const GpuPair* pair = find_pair(machine, from, to);
  if (pair == nullptr || !pair->maps) {
    return "No source says whether they may map each other's memory. NVML (libnvidia-ml) or, on "
           "AMD, /sys/class/kfd would.";
  }
  return "The driver refuses to map one's memory into the other. Common causes are an IOMMU that "
         "translates (iommu=pt), PCIe access control services that send peer traffic up to the "
         "host bridge, and GPUs without peer support.";
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
  std::string text = fmt::format("{} reaches the memory of {} by {}, {}.", title_of(machine, from),
                                 title_of(machine, to), name_of(machine, from, path.kind),
                                 bandwidth_text(path.gbps));
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
      break;
    case PathKind::host_memory:
      add(why_not_mapped(machine, from, to));
      add(fmt::format("They are {}.", in_words(path.distance)));
      break;
    case PathKind::network:
      break;
  }
  if (path.kind != PathKind::same_device && path.kind != PathKind::host_memory) {
    add(path.atomics ? "Atomics work over it natively." : "Native atomics are not known to work.");
  }
  return text;
}

}  // namespace oriel::topo
