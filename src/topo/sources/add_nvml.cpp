// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/add_nvml.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "topo/model/nvlink_generation.hpp"
#include "topo/sources/numa_sysfs.hpp"
#include "topo/sources/pci_sysfs.hpp"

namespace oriel::topo {
namespace {

/// Returns the UUID without "GPU-" or "MIG-": CUDA does not report the prefix.
std::string_view digits_of(const Gpu& gpu) {
  constexpr std::size_t kPrefix = 4;
  return std::string_view(gpu.uuid).substr(std::min(kPrefix, gpu.uuid.size()));
}

/// Returns the index of the same GPU in the machine; -1 if it is new.
int place_of_same(const Machine& machine, const Gpu& gpu) {
  const auto& gpus = machine.gpus;
  const auto by_uuid = [&](const Gpu& one) {
    return !gpu.uuid.empty() && digits_of(one) == digits_of(gpu);
  };
  const auto by_address = [&](const Gpu& one) {
    return gpu.mig_instance < 0 && gpu.pci && one.pci == gpu.pci;
  };
  auto found = std::find_if(gpus.begin(), gpus.end(), by_uuid);
  if (found == gpus.end()) found = std::find_if(gpus.begin(), gpus.end(), by_address);
  return found == gpus.end() ? -1 : static_cast<int>(found - gpus.begin());
}

/// Adds facts that only NVML knows to a visible GPU. If UUIDs differ, CUDA's stays: it denotes a
/// part of the GPU that NVML lists.
void add_facts(const Gpu& told, Gpu& gpu) {
  if (gpu.uuid.empty() || digits_of(gpu) == digits_of(told)) gpu.uuid = told.uuid;
  if (gpu.name.empty()) gpu.name = told.name;
  if (!gpu.pci) gpu.pci = told.pci;
  gpu.nvml_index = told.nvml_index;
  gpu.mig_instance = told.mig_instance;
  if (gpu.mig_instance >= 0) gpu.partition = -1;
  gpu.switch_links = told.switch_links;
  gpu.link_gbps = told.link_gbps;
  gpu.fabric = told.fabric;
}

void add_pair(GpuPair told, Machine& machine) {
  const auto same = std::find_if(
      machine.pairs.begin(), machine.pairs.end(),
      [&](const GpuPair& pair) { return pair.from == told.from && pair.to == told.to; });
  if (same == machine.pairs.end()) {
    machine.pairs.push_back(told);
    return;
  }
  if (same->maps) {
    told.maps = same->maps;
    told.atomics = same->atomics;
  }
  *same = told;
}

}  // namespace

void add_nvml_gpus(const FileTree& tree, NvmlList list, Machine& machine) {
  const std::size_t gpus_before = machine.gpus.size();
  const std::size_t nodes_before = machine.pci.size();
  std::vector<int> places;  // index in the machine by GPU of the list
  for (Gpu& gpu : list.gpus) {
    places.push_back(place_of_same(machine, gpu));
    if (places.back() >= 0) {
      for (std::size_t i = 0; i < gpus_before; ++i) {  // all partitions of the GPU
        Gpu& known = machine.gpus[i];
        const bool part = known.partition >= 0 && gpu.mig_instance < 0 && known.pci == gpu.pci;
        if (part || static_cast<int>(i) == places.back()) add_facts(gpu, known);
      }
      continue;
    }
    places.back() = static_cast<int>(machine.gpus.size());
    machine.gpus.push_back(std::move(gpu));
  }
  for (GpuPair pair : list.pairs) {
    pair.from = places[static_cast<std::size_t>(pair.from)];
    pair.to = places[static_cast<std::size_t>(pair.to)];
    if (pair.from != pair.to) add_pair(pair, machine);
  }
  assume_link_speeds(machine.gpus);
  add_places_and_speeds(tree, machine, gpus_before, nodes_before);
}

}  // namespace oriel::topo
