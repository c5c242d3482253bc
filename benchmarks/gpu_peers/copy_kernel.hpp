// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

namespace oriel::bench {

/// Enqueues a plain copy of `packs` words of 16 bytes by `ctas` CTAs of 512 threads. Each thread
/// has 8 loads in flight.
cudaError_t copy_by_ctas(void* to, const void* from, std::size_t packs, unsigned ctas,
                         cudaStream_t stream);

}  // namespace oriel::bench
