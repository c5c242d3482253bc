// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <sys/types.h>

namespace oriel {

/// Copies `bytes` bytes at the address `from` of process `pid` to `to`, in one copy by the kernel.
/// Returns false if not all bytes can be read; `to` then has undefined contents. Causes: the
/// process has ended, has no memory there, or may not be read (ptrace(2), "access mode checking").
/// Blocks for the time of the copy. Thread-safe.
[[nodiscard]] bool read_process_memory(pid_t pid, std::byte* to, const std::byte* from,
                                       std::size_t bytes);

}  // namespace oriel
