// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace oriel::bench {

/// Returns what the CUDA runtime knows a kernel by that does nothing and has no parameters.
const void* empty_kernel();

}  // namespace oriel::bench
