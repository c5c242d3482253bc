// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/device/doorbell.hpp"
#include "oriel/device/wait.hpp"

#include "comm/communicator/communicator_parts.hpp"

namespace oriel::comm {

/// Returns what wakes this rank's thread, on the host. Lives in the control window.
device::Doorbell* own_doorbell(const CommunicatorParts& parts);

/// Returns how this rank's waits spin, sleep and end. `doorbell` is this rank's own; GPUs need
/// none.
device::WaitControl wait_control(const CommunicatorParts& parts, void* doorbell);

}  // namespace oriel::comm
