// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace oriel::scale {

/// Reports what a rank's wire over libfabric sets aside in a communicator of `size` ranks, and,
/// where there is libfabric, what such a wire has taken once it is made, in a process of its own.
/// Nobody is connected to it.
void report_wire(int size);

}  // namespace oriel::scale
