// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "topo/model/distance.hpp"
#include "topo/model/machine.hpp"

namespace oriel::topo {

/// How data gets from one GPU to another, best first.
enum class PathKind : std::uint8_t {
  same_device,
  nvlink,       ///< NVLink or xGMI, direct or through switches
  pcie_peer,    ///< loads and stores over PCIe
  host_memory,  ///< a copy in host memory on the way
  network,      ///< NICs of two machines
};

std::string_view name_of(PathKind kind);

struct Path {
  PathKind kind = PathKind::host_memory;
  /// Links on the way: 1 for a direct one, 2 through a switch or host memory; 0: not known, as over
  /// PCIe without a tree of its buses.
  int hops = 0;
  double gbps = 0;       ///< one way, what the links add up to; 0: not known
  bool atomics = false;  ///< native ones over it
  Distance distance = Distance::unknown;

  bool operator==(const Path&) const = default;
};

/// The path over which the GPU `from` loads and stores the memory of the GPU `to`, which are
/// entries of Machine::gpus.
Path path_between(const Machine& machine, int from, int to);

/// What the path of such a pair is called: its kind, and by the links that its vendor makes.
std::string_view name_of(const Machine& machine, int from, PathKind kind);

/// All of them, as rows by `from`.
std::vector<std::vector<Path>> all_paths(const Machine& machine);

/// Why the pair uses its path and what would make it faster, in whole sentences.
std::string explain_path(const Machine& machine, int from, int to);

}  // namespace oriel::topo
