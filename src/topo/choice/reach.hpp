// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "topo/model/machine.hpp"

/// Says which GPU may map whose memory, by an explicit list per device that need not be symmetric.
/// The list follows AMD's libhsakmt (rows H1 and H2 in docs/requirements.md).
namespace oriel::topo {

/// Returns whether GPU `from` may map the memory of GPU `to`: by a source's statement about the
/// pair, else by links between them. A GPU may map its own memory.
bool may_map(const Machine& machine, int from, int to);

/// Returns whether may_map() rests on a source, on links or on a rule (MIG, different vendors).
/// Otherwise may_map() returns false, but communicators assume true (can_map() of ranks); their
/// first registration shows the truth.
bool reach_is_known(const Machine& machine, int from, int to);

/// Returns for each GPU those that may map its memory: ascending, including itself.
std::vector<std::vector<int>> reach_lists(const Machine& machine);

/// Forms groups of items that all reach each other in both directions, greedily in their order. An
/// item joins the first group whose members all fit, or starts a new one.
std::vector<std::vector<int>> form_mutual_groups(
    int count, const std::function<bool(int from, int to)>& reaches);

}  // namespace oriel::topo
