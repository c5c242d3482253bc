// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topology/summary.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "topo/choice/local_affinity.hpp"
#include "topo/choice/placement.hpp"
#include "topo/choice/reach.hpp"
#include "topo/machine/process_machine.hpp"
#include "topo/model/distance.hpp"

namespace oriel::tools {

namespace {

/// Adds this machine's chosen network interfaces; stops at the first GPU for which the choice
/// fails.
void add_interfaces(Summary& summary, const topo::Machine& machine) {
  for (const topo::Gpu& gpu : machine.gpus) {
    topo::InterfaceUser user;
    user.gpu = gpu.pci;
    auto choice = topo::own_interfaces(user);
    if (!choice.ok()) return;
    summary.interfaces.push_back(std::move(choice).value());
  }
  topo::InterfaceUser user;
  user.numa = topo::numa_number_of(machine.numa, topo::cpus_of_this_thread());
  auto choice = topo::own_interfaces(user);
  if (choice.ok()) summary.cpu_interfaces = std::move(choice).value();
}

}  // namespace

Summary summarise(topo::Machine machine, const Settings* settings) {
  Summary summary;
  const auto count = static_cast<int>(machine.gpus.size());
  summary.reach = topo::reach_lists(machine);
  summary.teams = topo::form_mutual_groups(
      count, [&](int from, int to) { return topo::may_map(machine, from, to); });
  summary.team.resize(machine.gpus.size());
  summary.rail.resize(machine.gpus.size());
  for (std::size_t team = 0; team < summary.teams.size(); ++team) {
    for (std::size_t rail = 0; rail < summary.teams[team].size(); ++rail) {
      const auto gpu = static_cast<std::size_t>(summary.teams[team][rail]);
      summary.team[gpu] = static_cast<int>(team);
      summary.rail[gpu] = static_cast<int>(rail);
    }
  }
  for (int from = 0; from < count; ++from) {
    for (int to = from + 1; to < count; ++to) {
      const bool known =
          topo::reach_is_known(machine, from, to) && topo::reach_is_known(machine, to, from);
      if (!known) ++summary.unknown_pairs;
    }
  }
  summary.nics = topo::choose_nics(machine);
  summary.numa_nics = topo::choose_nics_of_numa_nodes(machine);
  summary.paths = topo::all_paths(machine);
  for (int gpu = 0; gpu < count; ++gpu) {
    summary.affinities.push_back(settings != nullptr
                                     ? topo::local_affinity_of_gpu(machine, gpu, *settings)
                                     : topo::affinity_of_gpu(machine, gpu, {}));
  }
  if (settings != nullptr) {
    summary.processors = topo::local_affinity_of_processors(machine, *settings);
    add_interfaces(summary, machine);
  }
  summary.machine = std::move(machine);
  return summary;
}

std::string ranges_text(const std::vector<int>& numbers) {
  return numbers.empty() ? "-" : topo::ranges_of(numbers);
}

std::string nic_text(const topo::Machine& machine, int nic) {
  if (nic < 0) return "-";
  const topo::Nic& one = machine.nics[static_cast<std::size_t>(nic)];
  return one.port == 1 ? one.name : fmt::format("{}:{}", one.name, one.port);
}

bool is_hidden(const topo::Machine& machine, const topo::Gpu& gpu) {
  if (gpu.ordinal >= 0 || gpu.vendor != topo::GpuVendor::nvidia) return false;
  return std::any_of(machine.gpus.begin(), machine.gpus.end(),
                     [](const topo::Gpu& one) { return one.ordinal >= 0; }) ||
         std::any_of(machine.sources.begin(), machine.sources.end(),
                     [](const topo::SourceReport& one) { return one.source.starts_with("CUDA"); });
}

std::string path_text(const Summary& summary, int from, int to) {
  const topo::Machine& machine = summary.machine;
  const topo::Path& path =
      summary.paths[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  switch (path.kind) {
    case topo::PathKind::same_device:
      return "X";
    case topo::PathKind::nvlink: {
      const topo::GpuPair* pair = topo::find_pair(machine, from, to);
      if (pair != nullptr && pair->links > 0) return fmt::format("NV{}", pair->links);
      if (path.hops > 1 && pair != nullptr && pair->hops > 1)
        return fmt::format("{}hop", path.hops);
      return fmt::format("NV{}", std::min(machine.gpus[static_cast<std::size_t>(from)].switch_links,
                                          machine.gpus[static_cast<std::size_t>(to)].switch_links));
    }
    case topo::PathKind::pcie_peer:
      return std::string(topo::name_of(path.distance));
    case topo::PathKind::host_memory:
    case topo::PathKind::network:
      break;
  }
  return fmt::format("({}){}", topo::name_of(path.distance),
                     topo::reach_is_known(machine, from, to) ? "" : "?");
}

}  // namespace oriel::tools
