// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/machine/described_machine.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "topo/model/nvlink_generation.hpp"
#include "topo/sources/infiniband_sysfs.hpp"
#include "topo/sources/nvml_reader.hpp"

namespace oriel::topo {
namespace {

bool is_named_by_place(const Nic& nic) {
  return nic.pci && nic.name == nic.pci->to_string();
}

/// Replaces cards by their RDMA ports; a card that the kernel does not list for RDMA stays.
void add_ports(const FileTree& files, Machine& description) {
  if (std::none_of(description.nics.begin(), description.nics.end(), is_named_by_place)) return;
  std::vector<Nic> listed = read_infiniband(files).nics;
  std::erase_if(listed, [&](const Nic& port) {  // already described elsewhere
    return std::any_of(description.nics.begin(), description.nics.end(), [&](const Nic& nic) {
      return nic.name == port.name && nic.port == port.port;
    });
  });
  std::vector<Nic> nics;
  for (const Nic& nic : description.nics) {
    const std::size_t before = nics.size();
    for (const Nic& port : listed) {
      if (!is_named_by_place(nic) || port.pci != nic.pci) continue;
      nics.push_back(port);
      nics.back().node = nic.node;
      nics.back().numa = nic.numa;
    }
    if (nics.size() == before) nics.push_back(nic);
  }
  description.nics = std::move(nics);
}

void add_links(const NvmlLibrary& nvml, Machine& description) {
  NvmlList list = read_nvml(nvml);
  std::vector<int> place;  // index in the description by GPU of the list
  for (Gpu& gpu : list.gpus) {
    const bool whole = gpu.pci && gpu.mig_instance < 0;
    place.push_back(whole ? find_gpu(description, *gpu.pci) : -1);
    if (place.back() < 0) continue;
    Gpu& known = description.gpus[static_cast<std::size_t>(place.back())];
    known.switch_links = gpu.switch_links;
    known.link_gbps = gpu.link_gbps;
    if (known.architecture == 0) {
      known.architecture = gpu.architecture;
      known.name = std::move(gpu.name);
    }
  }
  for (GpuPair pair : list.pairs) {
    pair.from = place[static_cast<std::size_t>(pair.from)];
    pair.to = place[static_cast<std::size_t>(pair.to)];
    if (pair.from < 0 || pair.to < 0) continue;
    if (find_pair(description, pair.from, pair.to) == nullptr) description.pairs.push_back(pair);
  }
  assume_link_speeds(description.gpus);
  description.sources.push_back(std::move(list.report));
}

}  // namespace

bool describes_links(const Machine& description) {
  return std::any_of(description.gpus.begin(), description.gpus.end(),
                     [](const Gpu& gpu) { return gpu.switch_links > 0; }) ||
         std::any_of(description.pairs.begin(), description.pairs.end(),
                     [](const GpuPair& pair) { return pair.links > 0; });
}

int find_gpu(const Machine& machine, const PciAddress& address) {
  const auto found = std::find_if(machine.gpus.begin(), machine.gpus.end(),
                                  [&](const Gpu& gpu) { return gpu.pci == address; });
  return found == machine.gpus.end() ? -1 : static_cast<int>(found - machine.gpus.begin());
}

void complete_description(const FileTree& files, const std::function<const NvmlLibrary&()>& nvml,
                          Machine& description) {
  add_ports(files, description);
  if (!description.gpus.empty() && !describes_links(description)) add_links(nvml(), description);
  description = canonical(std::move(description));
}

}  // namespace oriel::topo
