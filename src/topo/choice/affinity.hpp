// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "topo/model/machine.hpp"

/// Chooses processors and memory near a device. All functions depend only on their arguments, and
/// not on the order in which a machine was listed.
namespace oriel::topo {

/// Processors and NUMA nodes that a thread may use, by OS number, ascending. An unknown set allows
/// everything.
struct Allowed {
  std::optional<std::vector<int>> cpus;
  std::optional<std::vector<int>> memory_nodes;
};

/// Preferred placement of threads that work for a rank.
struct Affinity {
  /// Processors to run on, ascending; empty: the thread's affinity stays unchanged.
  std::vector<int> cpus;
  /// OS number of the NUMA node that memory should come from as long as it has some. -1: no
  /// preference, or not known.
  int memory_node = -1;
  /// The device has nearby processors, but the thread may use none of them; `cpus` is then empty.
  bool kept_away = false;

  bool operator==(const Affinity&) const = default;
};

/// Returns the affinity for a device at index `place` of `numa`, which may be -1 (not known).
/// `cpus` are the allowed processors of that node, or of the nearest node that has any.
/// `memory_node` is the node itself, or the nearest allowed one with memory; -1 if there are fewer
/// than two choices. Of equally near nodes, the lowest number wins. Without distances, no other
/// node counts as near.
Affinity affinity_near(std::span<const NumaNode> numa, int place, const Allowed& allowed);

/// Returns the affinity for a GPU, given by its index in Machine::gpus.
Affinity affinity_of_gpu(const Machine& machine, int gpu, const Allowed& allowed);

/// Returns the affinity for a rank that computes on the processors in `allowed`. These are `cpus`;
/// memory is near them if all belong to one node. If several nodes list a processor, it belongs to
/// the node with the fewest processors, then to the lowest number. Memory without own processors is
/// often listed with those of other nodes.
Affinity affinity_of_processors(std::span<const NumaNode> numa, const Allowed& allowed);

/// Returns text for the log: "processors 0-3, host memory of NUMA node 0".
std::string describe(const Affinity& affinity);

/// Returns "0-3,8" for 0, 1, 2, 3, 8 (ascending); empty for none.
std::string ranges_of(const std::vector<int>& numbers);

/// Returns the union of two ascending lists.
std::vector<int> united(const std::vector<int>& a, const std::vector<int>& b);

}  // namespace oriel::topo
