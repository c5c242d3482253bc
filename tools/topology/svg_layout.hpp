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

/// Positions of all boxes. NUMA nodes stand side by side and contain host bridges. Host bridges
/// contain switches and devices, with GPUs above NICs. If there is no GPU, the label of a NUMA node
/// names its NICs.
struct Layout {
  std::vector<Box> numa;
  std::vector<Box> host_bridges;
  std::vector<Box> switches;
  std::vector<Box> gpus;  ///< indexed as Machine::gpus
  std::vector<Box> nics;  ///< indexed as Machine::nics
  double width = 0;
  double height = 0;
};

/// Vertical space for lines, in pixels: above the GPUs, and between GPUs and NICs if more than the
/// default.
struct LineSpace {
  double above = 0;
  double between = 0;
};

/// Lays out a machine below `top`. Horizontal positions do not depend on `space`.
Layout lay_out(const Summary& summary, double top, const LineSpace& space = {});

}  // namespace oriel::tools
