// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/device/doorbell.hpp"
#include "oriel/device/wait.hpp"

#include "comm/communicator/communicator_parts.hpp"

namespace oriel::comm {

/// Returns the doorbell that wakes this rank's thread (CPU ranks). It lies in the control window.
device::Doorbell* own_doorbell(const CommunicatorParts& parts);

/// Returns the settings of this rank's waits: how they spin, sleep and end. `doorbell` is this
/// rank's own; GPUs need none.
device::WaitControl wait_control(const CommunicatorParts& parts, void* doorbell);

}  // namespace oriel::comm
