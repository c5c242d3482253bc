// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include <cuda_runtime.h>

namespace oriel::test {

/// Throws std::runtime_error if `status` is not cudaSuccess.
inline void must(int status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " +
                           cudaGetErrorString(static_cast<cudaError_t>(status)));
}

/// Stream of its own on `device`, which becomes the current device.
struct GpuStream {
  explicit GpuStream(int device = 0) {
    must(cudaSetDevice(device), "cudaSetDevice");
    must(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~GpuStream() { cudaStreamDestroy(handle); }
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  cudaStream_t handle = nullptr;
};

}  // namespace oriel::test
