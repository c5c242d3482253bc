// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "topology/summary.hpp"

namespace oriel::tools {

/// A rectangle of the picture, in pixels.
struct Box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
  std::string label;

  double centre() const { return x + width / 2; }
  double bottom() const { return y + height; }
  double right() const { return x + width; }
};

/// Where everything stands: NUMA nodes beside each other, in them host bridges, in those switches
/// and devices, GPUs above NICs. Where there is no GPU, a NUMA node's label names its NICs.
struct Layout {
  std::vector<Box> numa;
  std::vector<Box> host_bridges;
  std::vector<Box> switches;
  std::vector<Box> gpus;  ///< by their places in Machine::gpus
  std::vector<Box> nics;  ///< by their places in Machine::nics
  double width = 0;
  double height = 0;
};

/// What lines need: above GPUs, and more than usual between them and the NICs.
struct RoomForLines {
  double above = 0;
  double between = 0;
};

/// Lays a machine out below `top`. Where things stand from left to right does not depend on the
/// room for lines.
Layout lay_out(const Summary& summary, double top, const RoomForLines& room = {});

}  // namespace oriel::tools
