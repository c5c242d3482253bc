// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "topology/svg_layout.hpp"

namespace oriel::tools {

/// A horizontal line with vertical lines to the devices that it joins. Horizontal lines in one
/// track stand apart, and no two routes share a vertical line, so lines never overlap.
struct Route {
  std::vector<double> upper;  ///< x of the vertical lines to devices above
  std::vector<double> lower;  ///< x of the vertical lines to devices below
  int track = -1;             ///< -1: a straight vertical line, without a track

  double left() const;
  double right() const;
};

/// Connection of a pair of GPUs, drawn above them.
struct Link {
  int from = 0;
  int to = 0;
  int links = 0;         ///< direct links; 0: memory is mapped without a direct link
  bool one_way = false;  ///< `from` maps the memory of `to`, but `to` not the memory of `from`
  Route route;           ///< has lower ends only, the first at `from`
};

/// Connection of a NIC to the GPUs that have chosen it, drawn between the two rows.
struct Wire {
  int nic = 0;
  bool backup = false;
  Route route;
};

/// Returns the connections to draw between pairs of GPUs. Within a team these are the direct links,
/// unless every pair of the team has some. Between teams these are direct links and mapped memory.
/// If there are more than kMostLinks, the list is empty.
std::vector<Link> links_to_draw(const Summary& summary);
inline constexpr std::size_t kMostLinks = 256;

/// Returns the chosen NICs, backups first.
std::vector<Wire> wires_to_draw(const Summary& summary);

/// Routes lines between boxes whose horizontal positions are known; returns the number of tracks.
int find_ways(const Layout& layout, std::vector<Link>& links);
int find_ways(const Summary& summary, const Layout& layout, std::vector<Wire>& wires);

/// Returns true if each of these GPUs has direct links to each other one.
bool are_joined_directly(const Summary& summary, const std::vector<int>& gpus);

/// Returns the number of direct links between two GPUs, in the direction that has more.
int direct_links(const Summary& summary, int a, int b);

}  // namespace oriel::tools
