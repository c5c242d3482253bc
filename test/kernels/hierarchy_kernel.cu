// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/scalar.hpp"

#include "kernels/algorithms/hierarchy.hpp"
#include "kernels/algorithms/hierarchy_mover.hpp"

/// That the algorithm of collectives among nodes compiles for GPUs: the library has it for CPUs.
namespace oriel::test {
namespace {

template <class T, ReduceOp kOp>
__global__ void hierarchy_kernel(const __grid_constant__ kernels::HierarchyArguments arguments) {
  using Mover = kernels::ElementMover<T, kOp, device::Cta>;
  kernels::Hierarchy<device::Cta, Mover, device::Memory>(arguments).run();
}

}  // namespace

const void* hierarchy_kernels[] = {
    reinterpret_cast<const void*>(&hierarchy_kernel<float, ReduceOp::sum>),
    reinterpret_cast<const void*>(&hierarchy_kernel<device::bf16, ReduceOp::avg>),
};

}  // namespace oriel::test
