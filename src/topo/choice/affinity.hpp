// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "topo/model/machine.hpp"

/// Which processors and which memory are near a device. Functions of their arguments: they look at
/// nothing, and what they choose does not depend on the order in which a machine was listed.
namespace oriel::topo {

/// What a thread may use of a machine, by the system's numbers, ascending. What is not known counts
/// as allowed.
struct Allowed {
  std::optional<std::vector<int>> cpus;
  std::optional<std::vector<int>> memory_nodes;
};

/// Where those who work for a rank should be.
struct Affinity {
  /// Processors to run on, ascending; empty: a thread stays where it is.
  std::vector<int> cpus;
  /// The system's number of the NUMA node that memory should come from as long as it has some; -1:
  /// no matter, or not known.
  int memory_node = -1;
  /// There are processors near, but the thread may use none of them; `cpus` is empty then.
  bool kept_away = false;

  bool operator==(const Affinity&) const = default;
};

/// Beside a device at this place in `numa`, which may be -1 (not known). Processors: those of the
/// node, or of the nearest one that has any, as far as they are allowed. Memory: the node, or the
/// nearest one that has some and is allowed; no node where there is but one to choose. Equally near
/// nodes are taken by their numbers; without distances no other node counts as near.
Affinity affinity_near(std::span<const NumaNode> numa, int place, const Allowed& allowed);

/// Beside a GPU, which is an entry of Machine::gpus.
Affinity affinity_of_gpu(const Machine& machine, int gpu, const Allowed& allowed);

/// Of a rank that computes on the processors that `allowed` names: those, and the memory near them
/// if they are of one node. A processor that several nodes list (memory without processors of its
/// own is often listed beside those of others) is of the one with the fewest, then of the lowest
/// number.
Affinity affinity_of_processors(std::span<const NumaNode> numa, const Allowed& allowed);

/// In words, for the log: "processors 0-3, host memory of NUMA node 0".
std::string describe(const Affinity& affinity);

/// "0-3,8" for 0, 1, 2, 3, 8, ascending; empty for none.
std::string ranges_of(const std::vector<int>& numbers);

/// The numbers that one list or both have; both ascending.
std::vector<int> united(const std::vector<int>& a, const std::vector<int>& b);

}  // namespace oriel::topo
