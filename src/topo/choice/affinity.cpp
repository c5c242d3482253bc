// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/affinity.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace oriel::topo {
namespace {

const NumaNode& node_at(std::span<const NumaNode> numa, int place) {
  return numa[static_cast<std::size_t>(place)];
}

std::vector<int> sorted(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

bool contains(const std::vector<int>& ascending, int number) {
  return std::binary_search(ascending.begin(), ascending.end(), number);
}

/// Returns the place of the node nearest to `place`, preferably itself, that `fits`; -1 if there is
/// none.
template <typename Fits>
int nearest_place(std::span<const NumaNode> numa, int place, Fits fits) {
  const NumaNode& own = node_at(numa, place);
  if (fits(own)) return place;
  if (own.distances.size() != numa.size()) return -1;
  int nearest = -1;
  const auto rank_of = [&](int other) {
    return std::pair(own.distances[static_cast<std::size_t>(other)], node_at(numa, other).os_index);
  };
  for (int other = 0; other < static_cast<int>(numa.size()); ++other) {
    if (!fits(node_at(numa, other))) continue;
    if (nearest < 0 || rank_of(other) < rank_of(nearest)) nearest = other;
  }
  return nearest;
}

/// Returns the OS number of the node that memory should come from; -1: no preference.
int memory_node_near(std::span<const NumaNode> numa, int place, const Allowed& allowed) {
  // Descriptions may omit memory sizes; then every node counts as having memory.
  const bool known = std::any_of(numa.begin(), numa.end(),
                                 [](const NumaNode& node) { return node.memory_bytes > 0; });
  const auto fits = [&](const NumaNode& node) {
    return (!known || node.memory_bytes > 0) &&
           (!allowed.memory_nodes || contains(*allowed.memory_nodes, node.os_index));
  };
  if (place < 0 || std::count_if(numa.begin(), numa.end(), fits) < 2) return -1;
  const int nearest = nearest_place(numa, place, fits);
  return nearest < 0 ? -1 : node_at(numa, nearest).os_index;
}

/// Returns the node's place by processor.
std::map<int, int> homes_of_processors(std::span<const NumaNode> numa) {
  std::map<int, int> homes;
  const auto rank_of = [&](int place) {
    const NumaNode& node = node_at(numa, place);
    return std::pair(node.cpus.size(), node.os_index);
  };
  for (int place = 0; place < static_cast<int>(numa.size()); ++place) {
    for (const int cpu : node_at(numa, place).cpus) {
      const auto [entry, fresh] = homes.try_emplace(cpu, place);
      if (!fresh && rank_of(place) < rank_of(entry->second)) entry->second = place;
    }
  }
  return homes;
}

}  // namespace

Affinity affinity_near(std::span<const NumaNode> numa, int place, const Allowed& allowed) {
  Affinity affinity;
  if (place < 0 || place >= static_cast<int>(numa.size())) return affinity;
  const int processors =
      nearest_place(numa, place, [](const NumaNode& node) { return !node.cpus.empty(); });
  if (processors >= 0) {
    const std::vector<int> near = sorted(node_at(numa, processors).cpus);
    if (allowed.cpus) {
      std::set_intersection(near.begin(), near.end(), allowed.cpus->begin(), allowed.cpus->end(),
                            std::back_inserter(affinity.cpus));
      affinity.kept_away = affinity.cpus.empty();
    } else {
      affinity.cpus = near;
    }
  }
  affinity.memory_node = memory_node_near(numa, place, allowed);
  return affinity;
}

Affinity affinity_of_gpu(const Machine& machine, int gpu, const Allowed& allowed) {
  return affinity_near(machine.numa, machine.gpus[static_cast<std::size_t>(gpu)].numa, allowed);
}

Affinity affinity_of_processors(std::span<const NumaNode> numa, const Allowed& allowed) {
  Affinity affinity;
  if (!allowed.cpus) return affinity;
  affinity.cpus = *allowed.cpus;
  const std::map<int, int> homes = homes_of_processors(numa);
  int common = -1;
  for (const int cpu : affinity.cpus) {
    const auto home = homes.find(cpu);
    if (home == homes.end()) continue;  // no node lists the processor
    if (common >= 0 && common != home->second) return affinity;
    common = home->second;
  }
  affinity.memory_node = memory_node_near(numa, common, allowed);
  return affinity;
}

std::string describe(const Affinity& affinity) {
  return fmt::format(
      "{}, {}", affinity.cpus.empty() ? "any processors" : "processors " + ranges_of(affinity.cpus),
      affinity.memory_node < 0 ? "host memory as it comes"
                               : fmt::format("host memory of NUMA node {}", affinity.memory_node));
}

std::string ranges_of(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

std::vector<int> united(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> all;
  all.reserve(a.size() + b.size());
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
  return all;
}

}  // namespace oriel::topo
