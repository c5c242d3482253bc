// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

namespace oriel::tools {

/// Binds the calling thread, CPU rank `rank` of this host, to a processor of its own if there are
/// enough for all `ranks`. Else a rank that wakes up may be scheduled where another rank spins.
inline void bind_to_own_processor(int rank, int ranks) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < ranks) return;
  for (int processor = 0, left = rank; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &allowed) || left-- > 0) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(processor, &own);
    static_cast<void>(::sched_setaffinity(0, sizeof own, &own));  // optional: steadies times
    return;
  }
}

}  // namespace oriel::tools
