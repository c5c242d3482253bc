// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shadow/shadow_pool.hpp"

namespace oriel::shadow {

/// Returns this process's pool for objects of this size in the memory of CUDA device `device`. The
/// pool copies on its own stream. It makes no call that waits for the device, as cudaMalloc,
/// cudaFree and pinned allocations do. Usable while any thread captures a stream.
Result<std::shared_ptr<ShadowPool>> cuda_pool(int device, std::size_t object_bytes,
                                              std::size_t alignment);

}  // namespace oriel::shadow
