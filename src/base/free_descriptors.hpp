// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "oriel/error.hpp"

namespace oriel {

/// Makes the kernel grow this process's descriptor table to 512 entries, so that it need not grow
/// while a communicator starts. Does nothing if the process has several threads.
///
/// Linux grows a table that threads share only after an RCU grace period (expand_fdtable in
/// fs/file.c). Growing a shared table can stall one rank during its start, and all other ranks wait
/// for it. On 64 cores a rank was stalled for 10 to 30 ms. A process with a CUDA context is close
/// to the first limit, 64 descriptors. While there is one thread, growing costs microseconds.
/// Local, not blocking; leaves no descriptor open and never fails.
void grow_descriptor_table();

/// Raises the soft limit RLIMIT_NOFILE to the hard limit (65,536 at most), if fewer than `needed`
/// more descriptors fit and the limit can be raised. Returns the new limit if it was raised.
/// Descriptors that the library opens later lie above the old limit. Local, not blocking. Affects
/// the whole process and programs that it starts.
std::optional<std::uint64_t> raise_descriptor_limit(std::uint64_t needed);

/// Raises the limit like raise_descriptor_limit(), and returns an error if `needed` more
/// descriptors still do not fit. Meant for descriptors that other code opens later. Succeeds
/// without a check if /proc is missing. Local; blocks while it counts the open descriptors.
Status check_free_descriptors(std::uint64_t needed);

}  // namespace oriel
