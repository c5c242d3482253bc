// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace oriel::bench {

/// Returns the CUDA runtime's handle of a kernel that does nothing and has no parameters.
const void* empty_kernel();

}  // namespace oriel::bench
