// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/device/device.hpp"
#include "topo/choice/affinity.hpp"

namespace oriel::comm {

/// Where those who work for a rank on this device should be, as far as the calling thread may: near
/// the GPU, or on the calling thread's processors. Local; a few system calls.
topo::Affinity affinity_of(const Device& device);

/// Moves the calling thread, which must be one of the library's own, to the processors near the
/// device. What stands in the way changes nothing.
void work_near(const Device& device) noexcept;

}  // namespace oriel::comm
