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
void add_facts(const Gpu& reported, Gpu& gpu) {
  if (gpu.uuid.empty() || digits_of(gpu) == digits_of(reported)) gpu.uuid = reported.uuid;
  if (gpu.name.empty()) gpu.name = reported.name;
  if (!gpu.pci) gpu.pci = reported.pci;
  gpu.nvml_index = reported.nvml_index;
  gpu.mig_instance = reported.mig_instance;
  if (gpu.mig_instance >= 0) gpu.partition = -1;
  gpu.switch_links = reported.switch_links;
  gpu.link_gbps = reported.link_gbps;
  gpu.fabric = reported.fabric;
}

void add_pair(GpuPair reported, Machine& machine) {
  const auto same = std::find_if(
      machine.pairs.begin(), machine.pairs.end(),
      [&](const GpuPair& pair) { return pair.from == reported.from && pair.to == reported.to; });
  if (same == machine.pairs.end()) {
    machine.pairs.push_back(reported);
    return;
  }
  if (same->maps) {
    reported.maps = same->maps;
    reported.atomics = same->atomics;
  }
  *same = reported;
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
