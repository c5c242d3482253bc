// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <sys/types.h>

namespace oriel {

/// Copies `bytes` bytes at the address `from` of the process `pid` to `to`, with one copy by the
/// kernel. Returns false if not all of it can be read: the process has ended, has no memory there,
/// or may not be read by this one (ptrace(2), "access mode checking"); `to` then holds anything.
/// Blocks for the time of the copy. Thread-safe.
[[nodiscard]] bool read_process_memory(pid_t pid, std::byte* to, const std::byte* from,
                                       std::size_t bytes);

}  // namespace oriel
