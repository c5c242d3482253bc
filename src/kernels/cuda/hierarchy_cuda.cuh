// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/device/memory.hpp"

#include "kernels/algorithms/group_hierarchy_ops.hpp"
#include "kernels/algorithms/hierarchy.hpp"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/signatures.cuh"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels::detail {

/// Runs a collective among teams for one type. All CTAs of the grid must run at once.
template <class T>
__global__ void __launch_bounds__(kMaxThreads, 1)
    hierarchy_kernel(const __grid_constant__ HierarchyArguments arguments) {
  device::grid_dependency_wait();
  if (blockIdx.x == 0 && threadIdx.x < device::Warp::size()) Signatures::send(arguments);
  auto* const barrier = reinterpret_cast<GridBarrier*>(
      arguments.comm.control(arguments.comm.lsa_rank, arguments.layout.barrier));
  const Grid grid(barrier, arguments.comm.wait);
  Hierarchy<Grid, GroupHierarchyOps<T, Grid>, device::Memory>(arguments, grid).run();
}

}  // namespace oriel::kernels::detail
