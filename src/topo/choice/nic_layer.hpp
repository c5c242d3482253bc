// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "topo/choice/nic_ports.hpp"
#include "topo/model/machine.hpp"

namespace oriel::topo {

/// The link layer that all ranks of a machine use, on GPUs and on CPUs: ports of two layers cannot
/// talk to each other. Layers that would leave some GPU (where there is none, some NUMA node with
/// processors) less than half of what another leaves each, when GPUs share its ports as
/// choose_nics() has them, are out. Of the others it is the one of which the most GPUs have a port,
/// that is not slow, as near as any. Of equal ones that which is nearer to its own (all distances
/// together), then that of which half the ports or more are active, then the one with the greatest
/// speed of all ports together, then InfiniBand.
///
/// A layer whose active ports are all slow is none of them. Of the others dead ports count too, so
/// that one port that dies does not move a machine to another layer: as not slow, and with the
/// speed of the slowest active one of the layer, as the kernel does not tell theirs. Where no speed
/// of a layer is known, its ports' together is 0.
Nic::Layer layer_for_all(const Machine& machine, const PortSpeeds& speeds);

}  // namespace oriel::topo
