// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace oriel::scale {

/// Reports the memory that a rank's wire over libfabric reserves in a communicator of `size` ranks.
/// If libfabric is available, also creates such a wire in a separate process and reports its
/// memory. No peer is connected to the wire.
void report_wire(int size);

}  // namespace oriel::scale
