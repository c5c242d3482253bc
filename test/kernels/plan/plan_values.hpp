// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/plan/hierarchy_plan.hpp"

namespace oriel::kernels {

inline constexpr std::uint64_t kMiB = 1 << 20;
/// Collectives that Hierarchy implements.
inline constexpr Collective kCollectives[] = {Collective::all_reduce, Collective::all_gather,
                                              Collective::reduce_scatter};

}  // namespace oriel::kernels
