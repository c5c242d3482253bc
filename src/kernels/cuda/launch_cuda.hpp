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

/// Enqueues the kernel of `plan` on the stream of `on`, whose context `kernels` are of. Also inside
/// a stream capture. Does not wait, and is one driver call once the kernel has been loaded. The
/// kernel may begin while its predecessor in the stream ends, and lets its successor do the same
/// (programmatic dependent launch).
Status launch_all_reduce(const Plan& plan, const AllReduceArguments& arguments,
                         LoadedKernels& kernels, StreamScope& on);

/// Loads the kernel of `plan`. Loading may wait until all kernels of the device have ended, and one
/// of ours ends only when its peers have been launched: whoever launches for several devices from
/// one thread loads everything first. No driver call where it has been done.
Status load_all_reduce(const Plan& plan, const AllReduceArguments& arguments,
                       LoadedKernels& kernels);

/// The same for a collective among teams, whose kernel does not begin before its predecessor has
/// ended.
Status launch_hierarchy(const HierarchyArguments& arguments, LoadedKernels& kernels,
                        StreamScope& on);
Status load_hierarchy(const HierarchyArguments& arguments, LoadedKernels& kernels);

/// Enqueues one launch of an exchange. Like an all-reduce it may begin while its predecessor ends.
Status launch_exchange(const ExchangeArguments& arguments, LoadedKernels& kernels, StreamScope& on);
/// Loads the kernels of all launches: those of one call may need several, and the first one may run
/// until a peer has made its second.
Status load_exchanges(LoadedKernels& kernels);

}  // namespace oriel::kernels
