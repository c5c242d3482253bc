// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "oriel/error.hpp"

#include "topo/model/file_tree.hpp"

namespace oriel::window {

/// Refuses `bytes` that are to be made present at once but that this process cannot have: the
/// kernel would not fail the request but kill a process. Looks at what the machine has available
/// (MemAvailable and SwapFree of /proc/meminfo) and at the limit of each control group, version 1
/// or 2, that the process is in (what its files hold in the page cache counts as free). What
/// `files` lacks counts as unlimited. A look, no promise: others may allocate in the meantime.
/// Local. Error: system with ENOMEM, naming the figures.
Status check_memory_room(std::size_t bytes, const topo::FileTree& files);

}  // namespace oriel::window
