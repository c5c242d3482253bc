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

/// A machine and Oriel's decisions about it, the input of table_of(), json_of() and svg_of().
struct Summary {
  topo::Machine machine;
  std::vector<std::vector<int>> reach;  ///< for each GPU, the GPUs that may map its memory
  int unknown_pairs = 0;  ///< pairs of GPUs for which no source says if memory can be mapped
  std::vector<std::vector<int>> teams;     ///< GPUs that all map each other's memory
  std::vector<int> team;                   ///< each GPU's team
  std::vector<int> rail;                   ///< each GPU's index in its team
  std::vector<topo::NicChoice> nics;       ///< each GPU's NICs
  std::vector<topo::NicChoice> numa_nics;  ///< each NUMA node's NICs, for ranks on the CPU
  std::vector<std::vector<topo::Path>> paths;
  std::vector<topo::Affinity> affinities;  ///< each GPU's processors and memory node
  /// Network interfaces of ranks on each GPU and of a rank on the CPU. Empty for another machine,
  /// and from the first GPU on for which the choice fails.
  std::vector<topo::InterfaceChoice> interfaces;
  std::optional<topo::InterfaceChoice> cpu_interfaces;
  /// Affinity of a rank on the CPU that is started like this program; nothing for another machine.
  std::optional<topo::Affinity> processors;
};

/// Returns the decisions of a library with these settings about the machine that it runs on.
/// Without settings, describes another machine and assumes that all of its processors may be used.
Summary summarise(topo::Machine machine, const Settings* settings = nullptr);

/// Formats numbers as ranges: "0-3,8" for 0, 1, 2, 3, 8; "-" for none.
std::string ranges_text(const std::vector<int>& numbers);
/// Returns a NIC's name, with the port unless it is port 1; "-" for none.
std::string nic_text(const topo::Machine& machine, int nic);
/// Returns true for an NVIDIA GPU without a CUDA device, if CUDA was asked. CUDA counts as asked if
/// any GPU is a CUDA device or CUDA is among the machine's sources; a file may have neither.
bool is_hidden(const topo::Machine& machine, const topo::Gpu& gpu);
/// Returns the short name of a path between two GPUs: "NV4" for 4 links, "2hop" over other GPUs, or
/// the PCI distance. The distance is in brackets if the memory cannot be mapped. A question mark
/// follows if no source says whether it can.
std::string path_text(const Summary& summary, int from, int to);

/// Returns the tables as text. Breaks wide tables into blocks to keep to `width` columns where
/// possible; 0: no limit.
std::string table_of(const Summary& summary, std::size_t width = 0);
std::string json_of(const Summary& summary);
/// Draws NUMA nodes, PCI switches, GPUs, NICs, links between GPUs and chosen NICs.
std::string svg_of(const Summary& summary);

}  // namespace oriel::tools
