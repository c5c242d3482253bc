// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "topo/model/machine.hpp"

/// Who may map whose memory. The idea of an explicit list per device, which need not be symmetric,
/// is that of AMD's libhsakmt (rows H1 and H2 of the reference on queues).
namespace oriel::topo {

/// Whether the GPU `from` may map the memory of the GPU `to`: what a source says of the pair, else
/// whether links join them. A GPU maps its own memory.
bool may_map(const Machine& machine, int from, int to);

/// Whether a source says so, or links do. Where none does may_map() says no, while communicators,
/// to which the first registration tells the truth, assume yes (see can_map() of ranks).
bool reach_is_known(const Machine& machine, int from, int to);

/// For each GPU, those that may map its memory: ascending, itself among them.
std::vector<std::vector<int>> reach_lists(const Machine& machine);

/// Groups of things that all reach each other in both directions, formed greedily in their order:
/// each joins the first group with all of whose members it shares that, or begins the next one.
std::vector<std::vector<int>> form_mutual_groups(
    int count, const std::function<bool(int from, int to)>& reaches);

}  // namespace oriel::topo
