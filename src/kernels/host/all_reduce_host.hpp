// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/arguments.hpp"

namespace oriel::kernels {

/// Runs a call of AllReduceArguments on the calling thread, which is the rank. Collective over the
/// LSA team; blocking. Returns true when the output is complete. Returns false as soon as a wait is
/// given up: the abort word, the stall record or the call's failure record then gives the reason.
/// If all waits of a call ended before an abort, the call is complete and returns true. A call may
/// start on one rank before the previous call has ended on others.
[[nodiscard]] bool run_all_reduce_on_host(Algorithm algorithm, AllReduceArguments arguments);

namespace detail {
/// Runs one-shot or two-shot for one type. Instantiated in all_reduce_host_<types>.cpp.
template <class T>
bool run_lines_on_host(Algorithm algorithm, const AllReduceArguments& arguments);
}  // namespace detail

}  // namespace oriel::kernels
