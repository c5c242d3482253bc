// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "kernels/arguments.hpp"
#include "kernels/choice.hpp"

struct CUstream_st;

namespace oriel::kernels {

/// Enqueues the kernel of `plan` on `stream`, of the device whose context is current. Also inside a
/// stream capture. Does not wait. The kernel may begin while its predecessor in the stream ends,
/// and lets its successor do the same (programmatic dependent launch).
Status launch_all_reduce(const Plan& plan, const AllReduceArguments& arguments,
                         CUstream_st* stream);

/// Loads all kernels of a type now, so that the first launch (perhaps inside a capture) does not.
Status preload_kernels(DataType type);

}  // namespace oriel::kernels
