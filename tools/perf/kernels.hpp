// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "perf/backend.hpp"
#include "perf/values.hpp"

/// Launchers of the kernels that fill and check buffers on the GPU. Each enqueues on `stream` and
/// returns. `report` is device memory; the check kernels add their counts to it.
namespace oriel::perf {

inline constexpr int kMostCheckedRanks = 1024;

void launch_fill(void* out, std::size_t count, const Pattern& pattern, int rank,
                 cudaStream_t stream);
void launch_make_keys(std::uint64_t* keys, const Pattern& pattern, cudaStream_t stream);
void launch_check_output(const void* data, std::size_t count, const Pattern& pattern,
                         const std::uint64_t* keys, CheckReport* report, cudaStream_t stream);
void launch_check_input(const void* data, std::size_t count, const Pattern& pattern, int rank,
                        CheckReport* report, cudaStream_t stream);
void launch_check_bytes(const void* data, std::uint8_t value, std::size_t bytes,
                        CheckReport* report, cudaStream_t stream);
/// Enqueues a kernel that spins for about `us` microseconds.
void launch_delay(double us, cudaStream_t stream);

}  // namespace oriel::perf
