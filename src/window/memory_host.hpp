// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "window/memory.hpp"

namespace oriel::window {

/// The host memory of this process: sealed memfds, found again by any pointer into them. One object
/// for the process, never destroyed. Memory that a forked child inherits keeps its identity and can
/// be registered by the child.
Memory& host_memory();

}  // namespace oriel::window
