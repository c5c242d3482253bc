// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace oriel::scale {

/// Reports how long a software NIC of a rank takes on this machine to look once at all its queues,
/// one for each rank of other nodes, in which there is nothing to do.
void report_nic_turn(int size);

}  // namespace oriel::scale
