// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "oriel/error.hpp"

namespace oriel {

/// Has the kernel make this process's table of descriptors large enough for 512 of them, so that it
/// need not grow while a communicator starts. Does nothing once the process has several threads.
///
/// Linux grows a table that threads share only after a grace period of RCU (expand_fdtable in
/// fs/file.c). On a machine of 64 cores that held one rank, and with it all others, for 10 to 30 ms
/// in the middle of its start: a process with a CUDA context is close to the first boundary, 64
/// descriptors. As long as there is one thread, growing costs microseconds.
/// Local, not blocking; leaves no descriptor behind and never fails.
void make_room_for_descriptors();

/// Where this process may open fewer than `needed` descriptors more, and may raise that limit by
/// itself (RLIMIT_NOFILE, from the soft to the hard one, 65,536 at most): raises it, and yields
/// what it is now. What the library opens from then on lies above the old limit. Local, not
/// blocking; for the whole process, and for programs that it starts.
std::optional<std::uint64_t> raise_descriptor_limit(std::uint64_t needed);

/// The same, and an error where there is still no room for `needed` more, for what opens them later
/// and out of our sight. Says nothing where /proc is not there. Local, blocking for as long as it
/// takes to count those that are open.
Status check_descriptor_room(std::uint64_t needed);

}  // namespace oriel
