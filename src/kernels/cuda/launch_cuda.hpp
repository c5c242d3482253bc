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

/// Enqueues the kernel of `plan` on the stream of `on`. `kernels` belong to the context of that
/// stream. Allowed inside a stream capture. Does not wait, and makes one driver call once the
/// kernel has been loaded. The kernel may start before its predecessor in the stream ends, and lets
/// its successor do the same (programmatic dependent launch).
Status launch_all_reduce(const Plan& plan, const AllReduceArguments& arguments,
                         LoadedKernels& kernels, StreamScope& on);

/// Loads the kernel of `plan`. Loading may wait until all kernels of the device have ended. A
/// kernel of Oriel ends only when its peers have been launched. So a thread that launches for
/// several devices must load all kernels first. Makes no driver call if the kernel has been loaded.
Status load_all_reduce(const Plan& plan, const AllReduceArguments& arguments,
                       LoadedKernels& kernels);

/// Enqueues the kernel of a collective among teams. That kernel does not start before its
/// predecessor has ended.
Status launch_hierarchy(const HierarchyArguments& arguments, LoadedKernels& kernels,
                        StreamScope& on);
Status load_hierarchy(const HierarchyArguments& arguments, LoadedKernels& kernels);

/// Enqueues one launch of an exchange. Like an all-reduce, the kernel may start before its
/// predecessor ends.
Status launch_exchange(const ExchangeArguments& arguments, LoadedKernels& kernels, StreamScope& on);
/// Loads the kernels of all exchange forms. The launches of one call may need several forms, and
/// the first launch may run until a peer has made its second.
Status load_exchanges(LoadedKernels& kernels);

}  // namespace oriel::kernels
