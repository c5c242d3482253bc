// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "topo/model/machine.hpp"

namespace oriel::topo {

/// The NUMA nodes and PCI buses of a machine in hwloc's format, so that hwloc reads a composed one.
/// Each NUMA node is a package of its own.
std::string hwloc_text_of(const Machine& machine);

}  // namespace oriel::topo
