// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/settings.hpp"
#include "topo/choice/affinity.hpp"
#include "topo/choice/interface_choice.hpp"
#include "topo/choice/nic_choice.hpp"
#include "topo/choice/paths.hpp"
#include "topo/model/machine.hpp"

namespace oriel::tools {

/// A machine and what Oriel decides about it, for all ways of showing it.
struct Summary {
  topo::Machine machine;
  std::vector<std::vector<int>> reach;  ///< for each GPU, those that may map its memory
  int unknown_pairs = 0;  ///< of GPUs of which no source says whether one maps the other's memory
  std::vector<std::vector<int>> teams;     ///< GPUs that all map each other's memory
  std::vector<int> team;                   ///< of each GPU
  std::vector<int> rail;                   ///< of each GPU: its place in its team
  std::vector<topo::NicChoice> nics;       ///< of each GPU
  std::vector<topo::NicChoice> numa_nics;  ///< of each NUMA node, for ranks on the CPU
  std::vector<std::vector<topo::Path>> paths;
  std::vector<topo::Affinity> affinities;  ///< of each GPU
  /// Network interfaces of ranks on each GPU, and of one on the CPU; empty on another machine.
  std::vector<topo::InterfaceChoice> interfaces;
  std::optional<topo::InterfaceChoice> cpu_interfaces;
  /// Of a rank on the CPU that is started like this program; nothing on another machine.
  std::optional<topo::Affinity> processors;
};

/// What a library with these settings decides about the machine that it runs on; without settings,
/// about another machine, all of which may be used.
Summary summarise(topo::Machine machine, const Settings* settings = nullptr);

/// "0-3,8" for 0, 1, 2, 3, 8; "-" for none.
std::string ranges_text(const std::vector<int>& numbers);
/// A NIC's name, with its port where it is not the first; "-" for none.
std::string nic_text(const topo::Machine& machine, int nic);
/// Whether CUDA was asked and does not show this GPU: it has no part in those of AMD, nor in what a
/// file describes without telling of CUDA's devices.
bool is_hidden(const topo::Machine& machine, const topo::Gpu& gpu);
/// The short name of a path between two GPUs: NV and the number of links, or the PCI distance, in
/// brackets where the memory cannot be mapped, with a question mark where no source says.
std::string path_text(const Summary& summary, int from, int to);

/// At most `width` columns wide where that can be had, by breaking the matrix into blocks; 0: no
/// limit.
std::string table_of(const Summary& summary, std::size_t width = 0);
std::string json_of(const Summary& summary);
/// A picture: NUMA nodes, PCI switches, GPUs, NICs, links between GPUs, chosen NICs.
std::string svg_of(const Summary& summary);

}  // namespace oriel::tools
