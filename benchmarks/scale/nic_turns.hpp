// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace oriel::scale {

/// Reports how long a rank's software NIC takes on this machine to poll all its queues once. There
/// is one idle queue for each rank of other nodes.
void report_nic_turn(int size);

}  // namespace oriel::scale
