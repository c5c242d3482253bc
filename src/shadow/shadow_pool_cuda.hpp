// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shadow/shadow_pool.hpp"

namespace oriel::shadow {

/// The pool of this process for objects of this size in the memory of CUDA device `device`, copied
/// on a stream of their own. Calls nothing that waits for the device (cudaMalloc, cudaFree and
/// pinned allocations do), and is in place while any thread captures a stream.
Result<std::shared_ptr<ShadowPool>> cuda_pool(int device, std::size_t object_bytes,
                                              std::size_t alignment);

}  // namespace oriel::shadow
