// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/error.hpp"

#include "kernels/plan/hierarchy_plan.hpp"
#include "scale/model.hpp"

namespace oriel::scale {

/// Returns the library's plan for an all-reduce of f32 among nodes of kRanksOfNode CPU ranks.
Result<kernels::HierarchyPlan> plan_all_reduce(int size, std::uint64_t bytes);

struct AllReduceRun {
  bool ok = false;  ///< every rank has finished successfully
  Duration time{};
  // Maximum over the ranks:
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t wqes = 0;  ///< WQEs of its queues
};
/// Runs the library's algorithm (kernels/algorithms/hierarchy.hpp) on all ranks, each as a fiber.
/// The algorithm decides messages, waits and the number of copied bytes. No data is moved; a model
/// replaces queues, NICs and wires. Messages of up to 328 bytes to one peer leave together when a
/// rank runs its NIC, as on the wire over libfabric.
AllReduceRun run_all_reduce(int size, std::uint64_t bytes, const kernels::HierarchyPlan& plan,
                            const Model& model);

}  // namespace oriel::scale
