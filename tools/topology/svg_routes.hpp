// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "topology/svg_layout.hpp"

namespace oriel::tools {

/// A level line with upright ones to the devices that it joins. Lines of the same lane stand apart,
/// and no two routes have an upright line at the same place, so none runs along another.
struct Route {
  std::vector<double> upper;  ///< where it meets devices above it
  std::vector<double> lower;  ///< and below it
  int lane = -1;              ///< -1: it is a straight line, and needs none

  double left() const;
  double right() const;
};

/// Of a pair of GPUs, drawn above them.
struct Link {
  int from = 0;
  int to = 0;
  int links = 0;         ///< direct ones; 0: the memory is mapped over something else
  bool one_way = false;  ///< `from` maps the memory of `to`, and `to` does not map that of `from`
  Route route;           ///< all of its ends are lower ones, the first at `from`
};

/// Of the GPUs that have chosen a NIC, drawn between the two rows.
struct Wire {
  int nic = 0;
  bool backup = false;
  Route route;
};

/// What there is to draw between GPUs one by one: direct links, but for those of teams all of whose
/// members are joined alike, and who maps whose memory from another team.
/// Beyond kMostLinks there are none.
std::vector<Link> links_to_draw(const Summary& summary);
inline constexpr std::size_t kMostLinks = 256;

/// The choices of NICs, backups first.
std::vector<Wire> wires_to_draw(const Summary& summary);

/// Finds ways for the lines between boxes whose places from left to right are known; yields how
/// many lanes they need.
int find_ways(const Layout& layout, std::vector<Link>& links);
int find_ways(const Summary& summary, const Layout& layout, std::vector<Wire>& wires);

/// Whether each of these GPUs has direct links to each other one.
bool are_joined_directly(const Summary& summary, const std::vector<int>& gpus);

/// Direct links between two GPUs, of the direction that has more.
int direct_links(const Summary& summary, int a, int b);

}  // namespace oriel::tools
