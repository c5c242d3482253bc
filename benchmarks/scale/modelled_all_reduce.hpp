// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/error.hpp"

#include "kernels/plan/hierarchy_plan.hpp"
#include "scale/model.hpp"

namespace oriel::scale {

/// What the library plans for an all-reduce of f32 among nodes of kRanksOfNode, on CPUs.
Result<kernels::HierarchyPlan> plan_all_reduce(int size, std::uint64_t bytes);

struct AllReduceRun {
  bool ok = false;  ///< every rank came to its end
  Duration time{};
  // Of the rank that has most:
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;  ///< of its queues
};
/// The library's algorithm (kernels/algorithms/hierarchy.hpp) on all ranks, each a fiber: who says
/// what to whom, waits for what, and copies how much is the algorithm's; no data is moved, and a
/// model stands for queues, NICs and wires. Messages of up to 328 bytes to one peer leave together
/// once a rank lets its NIC work, as those of the wire over libfabric do.
AllReduceRun run_all_reduce(int size, std::uint64_t bytes, const kernels::HierarchyPlan& plan,
                            const Model& model);

}  // namespace oriel::scale
