// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "topo/choice/nic_ports.hpp"
#include "topo/model/machine.hpp"

namespace oriel::topo {

/// Returns the link layer that all ranks of a machine use, on GPUs and on CPUs: ports of two layers
/// cannot communicate. Considers the least share that a layer gives any GPU when choose_nics()
/// shares its ports. Without GPUs, NUMA nodes with processors count instead. A layer with less than
/// half of the best least share is excluded. Of the rest, the layer wins that has a nearest port
/// for the most GPUs. Ties are resolved by the smallest sum of distances, then by having at least
/// half of the ports active. Further ties are resolved by the greatest total speed, then in the
/// order of Nic::Layer, InfiniBand first.
///
/// Slow ports do not count: a layer whose active ports are all slow is excluded. In the other
/// layers, dead ports count too, so that one dead port does not move a machine to another layer. A
/// dead port gets the speed of the slowest active port of its layer, since the kernel reports none.
/// If no speed of a layer is known, its total is 0.
Nic::Layer layer_for_all(const Machine& machine, const PortSpeeds& speeds);

}  // namespace oriel::topo
