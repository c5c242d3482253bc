// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "window/memory/mappable_memory.hpp"

namespace oriel::window {

/// The memory of CUDA device `device` of this process: allocations of cuMemCreate, our own and a
/// framework's alike. One object per device, made at the first call and never destroyed; it retains
/// the device's primary context. Fails where the driver or the device cannot share memory.
Result<Memory*> cuda_memory(int device);

/// A memory of its own beside that one, for tests that put their own CudaTable in force. Objects it
/// made may outlive it.
Result<std::unique_ptr<Memory>> make_cuda_memory(int device);

}  // namespace oriel::window
