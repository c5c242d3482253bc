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

/// Kinds of paths from one GPU to another, best first.
enum class PathKind : std::uint8_t {
  same_device,
  nvlink,       ///< NVLink or xGMI, direct, through switches or through other GPUs
  pcie_peer,    ///< loads and stores over PCIe
  host_memory,  ///< a copy through host memory
  network,      ///< NICs, between machines or inside one (RankPaths)
};

std::string_view name_of(PathKind kind);

struct Path {
  PathKind kind = PathKind::host_memory;
  /// Number of links: 1 for a direct link, 2 through a switch or host memory. 0: one device, or not
  /// known, as over PCIe without a PCI tree.
  int hops = 0;
  double gbps = 0;       ///< one way, narrowest part of the path; parallel links add; 0: not known
  bool atomics = false;  ///< the path supports native atomics
  Distance distance = Distance::unknown;

  bool operator==(const Path&) const = default;
};

/// Returns the path over which GPU `from` loads and stores the memory of GPU `to`. Both are indices
/// in Machine::gpus.
Path path_between(const Machine& machine, int from, int to);

/// Returns the name of a path's kind; links have the name that the vendor of GPU `from` uses.
std::string_view name_of(const Machine& machine, int from, PathKind kind);

/// Returns all paths, one row for each `from`.
std::vector<std::vector<Path>> all_paths(const Machine& machine);

/// Explains in whole sentences why the pair uses its path and what would make it faster.
std::string explain_path(const Machine& machine, int from, int to);

}  // namespace oriel::topo
