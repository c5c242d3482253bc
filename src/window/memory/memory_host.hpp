// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "window/memory/mappable_memory.hpp"

namespace oriel::window {

/// The host memory of this process: sealed memfds, found again by any pointer into them. One object
/// for the process, never destroyed. Memory that a forked child inherits it can use and free, which
/// leaves the parent's as it is, but not register.
///
/// Where the thread that allocates may run on the processors of one NUMA node only, the memory
/// comes from that node as long as it has some, whoever touches it first.
Memory& host_memory();

}  // namespace oriel::window
