// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/local_affinity.hpp"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "topo/choice/placement.hpp"
#include "topo/machine/process_machine.hpp"

namespace oriel::topo {
namespace {

/// Calls `choose` with what the calling thread may use. Reads the allowed memory nodes only if they
/// can matter.
template <typename Choose>
Affinity choose_with(const Machine& machine, std::optional<std::vector<int>> cpus, Choose choose) {
  Allowed allowed;
  allowed.cpus = std::move(cpus);
  const bool prefers = machine.numa.size() > 1 && !has_memory_policy();
  if (prefers) allowed.memory_nodes = memory_nodes_of_this_thread();
  Affinity affinity = choose(allowed);
  if (!prefers) affinity.memory_node = -1;
  return affinity;
}

void log_kept_away(const Gpu& gpu) {
  static std::atomic<bool> reported{false};
  if (!log_enabled(LogLevel::info) || reported.exchange(true)) return;
  Log().info(
      "this process may use no processor near GPU {}: threads for it stay where they are "
      "(ORIEL_IGNORE_CPU_AFFINITY=1 moves them)",
      gpu.pci ? gpu.pci->to_string() : gpu.name);
}

}  // namespace

Affinity local_affinity_of_processors(const Machine& machine, const Settings& settings) {
  if (!settings.cpu_affinity) return {};
  return choose_with(machine, cpus_of_this_thread(), [&](const Allowed& allowed) {
    return affinity_of_processors(machine.numa, allowed);
  });
}

Affinity local_affinity_of_gpu(const Machine& machine, int gpu, const Settings& settings) {
  if (!settings.cpu_affinity) return {};
  auto cpus = settings.ignore_cpu_affinity ? std::nullopt : cpus_of_this_thread();
  Affinity affinity = choose_with(machine, std::move(cpus), [&](const Allowed& allowed) {
    return affinity_of_gpu(machine, gpu, allowed);
  });
  if (affinity.kept_away) log_kept_away(machine.gpus[static_cast<std::size_t>(gpu)]);
  return affinity;
}

Affinity own_affinity_of_processors() {
  const auto settings = process_settings();
  if (!settings.ok() || !(*settings)->cpu_affinity) return {};
  const auto known = process_machine().for_communicators(false, **settings);
  return known.ok() ? local_affinity_of_processors((*known)->machine, **settings) : Affinity{};
}

Affinity own_affinity_of_gpu(int ordinal) {
  const auto settings = process_settings();
  if (!settings.ok() || !(*settings)->cpu_affinity) return {};
  const auto known = process_machine().for_communicators(true, **settings);
  if (!known.ok()) return {};
  const Machine& machine = (*known)->machine;
  const auto gpu = std::find_if(machine.gpus.begin(), machine.gpus.end(),
                                [&](const Gpu& one) { return one.ordinal == ordinal; });
  if (gpu == machine.gpus.end()) return {};
  return local_affinity_of_gpu(machine, static_cast<int>(gpu - machine.gpus.begin()), **settings);
}

}  // namespace oriel::topo
