// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/machine/discover.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"
#include "topo/model/file_tree.hpp"
#include "topo/model/node_identity.hpp"
#include "topo/model/nvlink_generation.hpp"
#include "topo/sources/cuda_facts.hpp"
#include "topo/sources/hwloc_reader.hpp"
#include "topo/sources/infiniband_sysfs.hpp"
#include "topo/sources/kfd_sysfs.hpp"
#include "topo/sources/numa_sysfs.hpp"
#include "topo/sources/nvml_reader.hpp"
#include "topo/sources/pci_sysfs.hpp"
#include "topo/xml/hwloc_xml_reader.hpp"
#include "topo/xml/nccl_xml.hpp"

namespace oriel::topo {
namespace {

using Outcome = SourceReport::Outcome;

/// Sets a device's place in the PCI tree and its NUMA node by its address.
template <typename Device>
void place(const Machine& machine, const FileTree& tree, Device& device) {
  if (!device.pci) return;
  device.node = find_pci_node(machine, *device.pci);
  if (device.node >= 0) device.numa = machine.pci[static_cast<std::size_t>(device.node)].numa;
  if (device.numa < 0) device.numa = numa_of_device(tree, machine, *device.pci);
}

/// Adds the GPUs of one source and their pairs. If another source has named a GPU's PCI address
/// already, both describe it, and this source has priority.
template <typename List>
void add_gpus(Machine& machine, const List& list) {
  std::vector<int> index;
  std::vector<bool> open(machine.gpus.size(), true);  // instances share an address; only one of
                                                      // them takes the known entry
  for (const Gpu& gpu : list.gpus) {
    std::size_t place = 0;
    for (; place < open.size(); ++place) {
      const Gpu& one = machine.gpus[place];
      if (open[place] && one.pci && one.pci == gpu.pci && one.uuid.empty()) break;
    }
    if (place == open.size()) {
      index.push_back(static_cast<int>(machine.gpus.size()));
      machine.gpus.push_back(gpu);
      continue;
    }
    index.push_back(static_cast<int>(place));
    open[place] = false;
    Gpu& known = machine.gpus[place];
    const Gpu before = std::move(known);
    known = gpu;
    if (known.pcie_gbps == 0) known.pcie_gbps = before.pcie_gbps;
    if (known.pcie_now_gbps == 0) known.pcie_now_gbps = before.pcie_now_gbps;
    if (known.name.empty()) known.name = before.name;
  }
  for (GpuPair pair : list.pairs) {
    pair.from = index[static_cast<std::size_t>(pair.from)];
    pair.to = index[static_cast<std::size_t>(pair.to)];
    machine.pairs.push_back(pair);
  }
}

/// Adds the PCI tree and the GPUs recognised by PCI class.
Status add_tree(const DiscoverOptions& options, const HwlocLibrary& hwloc, const FileTree& tree,
                Machine& machine) {
  HwlocList list;
  if (!options.hwloc_xml.empty()) {
    auto described = read_hwloc_xml(options.hwloc_xml);
    if (!described.ok()) {
      return std::move(described).error().with_context("reading hwloc's description of a machine");
    }
    list = std::move(described).value();
  } else if (options.root == "/") {
    list = read_hwloc(hwloc);
  } else {
    list.report = {"hwloc", Outcome::skipped, "it knows this machine, not the one below the root"};
  }
  machine.sources.push_back(list.report);
  machine.numa = std::move(list.numa);
  machine.pci = std::move(list.pci);
  machine.nics = std::move(list.nics);
  // Skips display adapters of other vendors.
  for (Gpu& gpu : list.gpus) {
    if (gpu.vendor != GpuVendor::other) machine.gpus.push_back(std::move(gpu));
  }
  if (machine.numa.empty()) machine.sources.push_back(add_numa_nodes(tree, machine));
  const bool described = !options.hwloc_xml.empty();
  if (machine.pci.empty() && !described) machine.sources.push_back(add_pci_tree(tree, machine));
  return {};
}

/// Adds the RDMA NICs: those that the kernel lists, else those that hwloc has found.
void add_nics(const FileTree& tree, Machine& machine) {
  InfinibandList list = read_infiniband(tree);
  if (list.nics.empty() && !machine.nics.empty()) {
    list.report.detail += fmt::format("; hwloc has {} port{}", machine.nics.size(),
                                      machine.nics.size() == 1 ? "" : "s");
  } else {
    for (Nic& nic : list.nics) nic.numa = numa_index(machine, nic.numa);
    machine.nics = std::move(list.nics);
  }
  machine.sources.push_back(list.report);
}

/// Replaces present speeds, which the other sources report, by maximum speeds from the kernel if
/// known.
void use_most_speeds(const FileTree& tree, Machine& machine) {
  for (NumaNode& node : machine.numa) node.memory_gbps = memory_gbps_of(tree, node.os_index);
  for (PciNode& node : machine.pci) {
    if (node.address) read_pcie_link(tree, *node.address, node);
  }
  for (Gpu& gpu : machine.gpus) {
    const double most = gpu.pci ? most_pcie_gbps(tree, *gpu.pci) : 0;
    if (most > 0) gpu.pcie_gbps = most;
    if (gpu.node < 0 || gpu.pcie_now_gbps > 0) continue;
    gpu.pcie_now_gbps = machine.pci[static_cast<std::size_t>(gpu.node)].link_now_gbps;
  }
}

}  // namespace

Result<Machine> discover(const DiscoverOptions& options, const HwlocLibrary& hwloc,
                         const NvmlLibrary& nvml) {
  const FileTree tree(options.root);
  Machine machine;
  if (options.root == "/") machine.host = read_host_facts().name;
  ORIEL_CHECK(add_tree(options, hwloc, tree, machine));
  if (options.gpus) {
    const NvmlList nvidia = read_nvml(nvml);
    add_gpus(machine, nvidia);
    machine.sources.push_back(nvidia.report);
  }
  const KfdList amd = read_kfd(tree);
  add_gpus(machine, amd);
  machine.sources.push_back(amd.report);
  const bool own = options.root == "/" && options.hwloc_xml.empty();
  if (options.gpus && own) machine.sources.push_back(add_cuda_facts(machine));
  assume_link_speeds(machine.gpus);
  if (options.nics) add_nics(tree, machine);
  for (Gpu& gpu : machine.gpus) place(machine, tree, gpu);
  for (Nic& nic : machine.nics) place(machine, tree, nic);
  if (options.hwloc_xml.empty()) use_most_speeds(tree, machine);
  ORIEL_CHECK(check(machine));
  return canonical(std::move(machine));
}

Result<Machine> discover(const DiscoverOptions& options) {
  return discover(options, hwloc_library(), nvml_library());
}

}  // namespace oriel::topo
