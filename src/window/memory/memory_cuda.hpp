// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "window/memory/mappable_memory.hpp"

namespace oriel::window {

/// Returns the memory of CUDA device `device`: allocations of cuMemCreate, by Oriel or by a
/// framework. There is one object per device, made at the first call and never destroyed. It
/// retains the device's primary context. Fails if the driver or the device cannot share memory.
Result<Memory*> cuda_memory(int device);

/// Makes a separate memory object, for tests that install their own CudaTable. Objects that it made
/// may outlive it.
Result<std::unique_ptr<Memory>> make_cuda_memory(int device);

}  // namespace oriel::window
