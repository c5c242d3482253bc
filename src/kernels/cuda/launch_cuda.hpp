// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "base/cuda_scope.hpp"
#include "kernels/cuda/loaded_kernels.hpp"
#include "kernels/plan/arguments.hpp"
#include "kernels/plan/choice.hpp"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/hierarchy_plan.hpp"

namespace oriel::kernels {

/// Loads all kernels. Called when a communicator starts, before its first launch. Loading a kernel
/// (CUDA's lazy loading) may wait until all kernels of the context have ended. A kernel of Oriel
/// ends only after its peers were launched: by this thread, or by ranks that wait for this rank.
/// Makes no driver call if all kernels have been loaded in this context.
Status load_kernels(LoadedKernels& kernels);

/// Enqueues the kernel of `plan` on the stream of `on`. `kernels` belong to the context of that
/// stream. Allowed inside a stream capture. Does not wait, and makes one driver call if
/// the kernel has been loaded. The kernel may start before its predecessor in the stream ends, and
/// lets its successor do the same (programmatic dependent launch).
Status launch_all_reduce(const Plan& plan, const AllReduceArguments& arguments,
                         LoadedKernels& kernels, StreamScope& on);

/// Enqueues the kernel of a collective among teams. That kernel does not start before its
/// predecessor has ended.
Status launch_hierarchy(const HierarchyArguments& arguments, LoadedKernels& kernels,
                        StreamScope& on);

/// Enqueues one launch of an exchange. Like an all-reduce, the kernel may start before its
/// predecessor ends.
Status launch_exchange(const ExchangeArguments& arguments, LoadedKernels& kernels, StreamScope& on);
}  // namespace oriel::kernels
