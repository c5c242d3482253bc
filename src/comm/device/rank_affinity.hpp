// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/device/device.hpp"
#include "topo/choice/affinity.hpp"

namespace oriel::comm {

/// Returns the affinity for threads that work for a rank on this device, within the calling
/// thread's affinity. GPU: near the GPU; ORIEL_IGNORE_CPU_AFFINITY=1 lifts the limit to the
/// thread's affinity. Host: the calling thread's processors. Local; a few system calls.
topo::Affinity affinity_of(const Device& device);

/// Moves the calling thread, which must belong to the library, to the processors near the device. A
/// failure has no effect.
void work_near(const Device& device) noexcept;

}  // namespace oriel::comm
