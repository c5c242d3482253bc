// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/arguments.hpp"

namespace oriel::kernels {

/// Runs the all-reduce on the calling thread, which is the rank. Collective over the LSA team;
/// blocking: returns true when all of the output is there, false as soon as a wait was given up
/// (then the abort word, the stall record or the call's failure record says why). A call whose
/// waits were all over before an abort is complete and returns true. A call may begin on one rank
/// before the last one has ended on others.
[[nodiscard]] bool run_all_reduce_on_host(Algorithm algorithm, AllReduceArguments arguments);

namespace detail {
/// One for each type; the translation units are all_reduce_host_<types>.cpp.
template <class T>
bool run_lines_on_host(Algorithm algorithm, const AllReduceArguments& arguments);
}  // namespace detail

}  // namespace oriel::kernels
