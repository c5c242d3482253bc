// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "kernels/plan/arguments.hpp"
#include "kernels/plan/choice.hpp"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/hierarchy_plan.hpp"

struct CUstream_st;

namespace oriel::kernels {

/// Enqueues the kernel of `plan` on `stream`, of the device whose context is current. Also inside a
/// stream capture. Does not wait. The kernel may begin while its predecessor in the stream ends,
/// and lets its successor do the same (programmatic dependent launch).
Status launch_all_reduce(const Plan& plan, const AllReduceArguments& arguments,
                         CUstream_st* stream);

/// Loads the kernel of `plan`, which its first launch on a device would do otherwise (CUDA's lazy
/// loading). Loading may wait until all kernels of the device have ended, and one of ours ends only
/// when its peers have been launched: whoever launches for several devices from one thread loads
/// everything first. Cheap where it has been done.
Status load_all_reduce(const Plan& plan, const AllReduceArguments& arguments);

/// The same for a collective among teams, whose kernel does not begin before its predecessor has
/// ended.
Status launch_hierarchy(const HierarchyArguments& arguments, CUstream_st* stream);
Status load_hierarchy(const HierarchyArguments& arguments);

/// Enqueues one launch of an exchange. Like an all-reduce it may begin while its predecessor ends.
Status launch_exchange(const ExchangeArguments& arguments, CUstream_st* stream);
/// Loads the kernels of all launches: those of one call may need several, and the first one may run
/// until a peer has made its second.
Status load_exchanges();

}  // namespace oriel::kernels
