// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "topo/model/machine.hpp"

namespace oriel::topo {
namespace {

Error wrong(std::string what) {
  return Error(ErrorCode::invalid_argument, std::move(what))
      .with_hint("correct the description, or name another file")
      .with_context("checking the description of a machine");
}

/// Lines of items of one kind; a line may be unknown.
class Lines {
 public:
  explicit Lines(const std::vector<std::size_t>& lines) : lines_(lines) {}

  std::size_t of(std::size_t index) const { return index < lines_.size() ? lines_[index] : 0; }
  /// Returns the start of an error message about an item.
  std::string head(std::size_t index) const {
    return of(index) == 0 ? "" : fmt::format("line {}: ", of(index));
  }
  Error twice(const std::string& what, std::size_t index, std::size_t first) const {
    const std::string where = of(first) == 0 ? "" : fmt::format(", first in line {}", of(first));
    return wrong(fmt::format("{}{} is listed twice{}", head(index), what, where));
  }

 private:
  const std::vector<std::size_t>& lines_;
};

/// Checks that an index is valid; -1 means none.
Status check_index(const std::string& of, const char* field, int index, std::size_t limit) {
  if (index >= -1 && (index < 0 || static_cast<std::size_t>(index) < limit)) return {};
  return wrong(fmt::format("{}: {} is {}, of {}", of, field, index, limit));
}

/// Limit for all NUMA nodes together. Files that clouds ship give several nodes the same
/// processors.
constexpr std::size_t kMostProcessors = std::size_t{4} << 16;

Status check_numa(const Machine& machine, const Lines& lines) {
  std::map<int, std::size_t> seen;
  std::size_t processors = 0;
  for (std::size_t i = 0; i < machine.numa.size(); ++i) {
    const NumaNode& node = machine.numa[i];
    const auto [first, fresh] = seen.emplace(node.os_index, i);
    if (!fresh) return lines.twice(fmt::format("NUMA node {}", node.os_index), i, first->second);
    processors += node.cpus.size();
    if (processors > kMostProcessors) {
      return wrong(fmt::format("{}with NUMA node {} there are more than {} processors",
                               lines.head(i), node.os_index, kMostProcessors));
    }
    if (!node.distances.empty() && node.distances.size() != machine.numa.size()) {
      return wrong(fmt::format("{}NUMA node {} has {} distances, for {} nodes", lines.head(i),
                               node.os_index, node.distances.size(), machine.numa.size()));
    }
  }
  return {};
}

Status check_pci(const Machine& machine, const Lines& lines) {
  std::map<PciAddress, std::size_t> seen;
  for (std::size_t i = 0; i < machine.pci.size(); ++i) {
    const PciNode& node = machine.pci[i];
    const std::string title = fmt::format("{}PCI node {}", lines.head(i), i);
    ORIEL_CHECK(check_index(title, "its NUMA node", node.numa, machine.numa.size()));
    const bool root = node.kind == PciNode::Kind::host_bridge;
    if (node.parent >= static_cast<int>(i) || (node.parent < 0) != root) {
      return wrong(fmt::format("{}: its parent is {}", title, node.parent));
    }
    if (!root && machine.pci[static_cast<std::size_t>(node.parent)].kind == PciNode::Kind::device) {
      return wrong(title + " is below a device");
    }
    if (!root && !node.address) return wrong(title + " has no address");
    if (!node.address) continue;
    const auto [first, fresh] = seen.emplace(*node.address, i);
    if (!fresh) return lines.twice(node.address->to_string(), i, first->second);
  }
  return {};
}

Status check_pairs(const Machine& machine) {
  std::set<std::pair<int, int>> pairs;
  for (const GpuPair& pair : machine.pairs) {
    const auto count = static_cast<int>(machine.gpus.size());
    if (pair.from < 0 || pair.from >= count || pair.to < 0 || pair.to >= count ||
        pair.from == pair.to || !pairs.emplace(pair.from, pair.to).second) {
      return wrong(fmt::format("the pair of GPUs ({}, {}), of {}", pair.from, pair.to, count));
    }
  }
  return {};
}

Status check_gpus(const Machine& machine, const Lines& lines) {
  std::map<std::tuple<PciAddress, int, int>, std::size_t> places;
  std::map<std::string, std::size_t> uuids;
  std::map<int, std::size_t> ordinals;
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    const Gpu& gpu = machine.gpus[i];
    const std::string title = fmt::format("{}GPU {}", lines.head(i), i);
    ORIEL_CHECK(check_index(title, "its NUMA node", gpu.numa, machine.numa.size()));
    ORIEL_CHECK(check_index(title, "its PCI node", gpu.node, machine.pci.size()));
    std::size_t first = i;
    const auto find_equal = [&](auto& seen, auto key) {
      const auto [entry, fresh] = seen.emplace(std::move(key), i);
      if (!fresh) first = entry->second;
    };
    if (gpu.pci) find_equal(places, std::tuple(*gpu.pci, gpu.mig_instance, gpu.partition));
    if (!gpu.uuid.empty()) find_equal(uuids, gpu.uuid);
    if (gpu.ordinal >= 0) find_equal(ordinals, gpu.ordinal);
    if (first == i) continue;
    return lines.twice(
        fmt::format("GPU {} ({}, {}{})", i, gpu.pci ? gpu.pci->to_string() : "no PCI address",
                    gpu.ordinal >= 0 ? fmt::format("device {}, ", gpu.ordinal) : "",
                    gpu.uuid.empty() ? "no UUID" : gpu.uuid),
        i, first);
  }
  return check_pairs(machine);
}

Status check_nics(const Machine& machine, const Lines& lines) {
  std::map<std::pair<std::string, int>, std::size_t> names;
  for (std::size_t i = 0; i < machine.nics.size(); ++i) {
    const Nic& nic = machine.nics[i];
    const std::string title = fmt::format("{}NIC {}", lines.head(i), i);
    ORIEL_CHECK(check_index(title, "its NUMA node", nic.numa, machine.numa.size()));
    ORIEL_CHECK(check_index(title, "its PCI node", nic.node, machine.pci.size()));
    const auto [first, fresh] = names.emplace(std::pair(nic.name, nic.port), i);
    if (!fresh) return lines.twice(fmt::format("NIC {}:{}", nic.name, nic.port), i, first->second);
  }
  return {};
}

}  // namespace

Status check_limits(const MachineLimits& counts, const MachineLines& lines) {
  const auto within = [](const char* what, std::size_t count, std::size_t most,
                         const std::vector<std::size_t>& where) -> Status {
    if (count <= most) return {};
    return wrong(fmt::format("{}there are more than {} {}", Lines(where).head(most), most, what));
  };
  const MachineLimits& most = kMachineLimits;
  ORIEL_CHECK(within("NUMA nodes", counts.numa, most.numa, lines.numa));
  ORIEL_CHECK(within("PCI devices and bridges", counts.pci, most.pci, lines.pci));
  ORIEL_CHECK(within("GPUs", counts.gpus, most.gpus, lines.gpus));
  return within("network ports", counts.nics, most.nics, lines.nics);
}

Status check(const Machine& machine, const MachineLines& lines) {
  ORIEL_CHECK(check_limits(
      {machine.numa.size(), machine.pci.size(), machine.gpus.size(), machine.nics.size()}, lines));
  ORIEL_CHECK(check_numa(machine, Lines(lines.numa)));
  ORIEL_CHECK(check_pci(machine, Lines(lines.pci)));
  ORIEL_CHECK(check_gpus(machine, Lines(lines.gpus)));
  return check_nics(machine, Lines(lines.nics));
}

std::string shared_processors(const std::vector<NumaNode>& nodes) {
  std::map<int, int> owners;
  for (const NumaNode& node : nodes) {
    for (const int cpu : node.cpus) {
      const auto [owner, fresh] = owners.emplace(cpu, node.os_index);
      if (fresh) continue;
      return fmt::format("NUMA nodes {} and {} both have processor {}", owner->second,
                         node.os_index, cpu);
    }
  }
  return "";
}

}  // namespace oriel::topo
