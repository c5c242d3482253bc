// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "oriel/error.hpp"

#include "topo/model/file_tree.hpp"

namespace oriel::window {

/// Refuses `bytes` that are to be made present at once if this process cannot have them. The kernel
/// would not fail such a request but kill a process. Checks the machine's available memory:
/// MemAvailable and SwapFree of /proc/meminfo. Also checks the limit of each control group of the
/// process, version 1 or 2; its page cache counts as free. A missing MemAvailable, limit or usage
/// counts as unlimited. A missing value of swap or page cache counts as 0. The result is a
/// snapshot: other processes may allocate in the meantime. Local. Error: system with ENOMEM, naming
/// the figures.
Status check_available_memory(std::size_t bytes, const topo::FileTree& files);

}  // namespace oriel::window
