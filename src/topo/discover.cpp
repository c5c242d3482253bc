// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/discover.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"
#include "topo/cuda_facts.hpp"
#include "topo/file_tree.hpp"
#include "topo/hwloc_xml_reader.hpp"
#include "topo/infiniband_sysfs.hpp"
#include "topo/kfd_sysfs.hpp"
#include "topo/nccl_xml.hpp"
#include "topo/node_identity.hpp"
#include "topo/numa_sysfs.hpp"
#include "topo/nvlink_generation.hpp"
#include "topo/nvml_reader.hpp"

namespace oriel::topo {
namespace {

using Outcome = SourceReport::Outcome;

/// Puts a device with this address in its place in the tree and at its NUMA node.
template <typename Device>
void place(const Machine& machine, const FileTree& tree, Device& device) {
  if (!device.pci) return;
  device.node = find_pci_node(machine, *device.pci);
  if (device.node >= 0) device.numa = machine.pci[static_cast<std::size_t>(device.node)].numa;
  if (device.numa < 0) device.numa = numa_of_device(tree, machine, *device.pci);
}

/// Adds the GPUs of one source, with their pairs. One whose PCI address another source has named
/// already is described by both: what this one says counts more.
template <typename List>
void add_gpus(Machine& machine, const List& list) {
  std::vector<int> index;
  for (const Gpu& gpu : list.gpus) {
    const auto known = std::find_if(machine.gpus.begin(), machine.gpus.end(), [&](const Gpu& one) {
      return one.pci && one.pci == gpu.pci && one.uuid.empty();
    });
    index.push_back(static_cast<int>(known - machine.gpus.begin()));
    if (known == machine.gpus.end()) {
      machine.gpus.push_back(gpu);
      continue;
    }
    const Gpu before = *known;
    *known = gpu;
    if (known->pcie_gbps == 0) known->pcie_gbps = before.pcie_gbps;
    if (known->name.empty()) known->name = before.name;
  }
  for (GpuPair pair : list.pairs) {
    pair.from = index[static_cast<std::size_t>(pair.from)];
    pair.to = index[static_cast<std::size_t>(pair.to)];
    machine.pairs.push_back(pair);
  }
}

/// The tree of the machine, and what is a GPU by its PCI class.
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
  // A display adapter of another vendor is no GPU to us.
  for (Gpu& gpu : list.gpus) {
    if (gpu.vendor != GpuVendor::other) machine.gpus.push_back(std::move(gpu));
  }
  if (machine.numa.empty()) machine.sources.push_back(add_numa_nodes(tree, machine));
  return {};
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
  if (options.nics) {
    InfinibandList list = read_infiniband(tree);
    for (Nic& nic : list.nics) nic.numa = numa_index(machine, nic.numa);
    machine.nics = std::move(list.nics);
    machine.sources.push_back(list.report);
  }
  for (Gpu& gpu : machine.gpus) place(machine, tree, gpu);
  for (Nic& nic : machine.nics) place(machine, tree, nic);
  ORIEL_CHECK(check(machine));
  return canonical(std::move(machine));
}

Result<Machine> discover(const DiscoverOptions& options) {
  return discover(options, hwloc_library(), nvml_library());
}

}  // namespace oriel::topo
