// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "window/memory/mappable_memory.hpp"

namespace oriel::window {

/// Returns the host memory of this process: sealed memfds, found by any pointer into them. There is
/// one object per process, never destroyed. A forked child can use memory that it inherits; the
/// parent sees its stores. The child can free that memory without effect on the parent's mapping,
/// but cannot register it.
///
/// If the allocating thread may run on the processors of one NUMA node only, the memory prefers
/// that node. The placement does not depend on the thread that touches the memory first.
Memory& host_memory();

}  // namespace oriel::window
