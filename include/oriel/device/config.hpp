// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// ORIEL_DEVICE_FN marks a function that host and device code may call. It is always inlined, also
/// on the host: several translation units of one program are compiled for different instruction
/// sets, and no out-of-line copy made for one of them may be linked into another.
/// ORIEL_DEVICE_SLOW marks one that is kept out of line because it runs rarely. On the host it has
/// internal linkage, for the same reason.
/// ORIEL_DEVICE_CODE is 1 while a GPU's code is being compiled, else 0.
#if defined(__CUDACC__)
#define ORIEL_DEVICE_FN __host__ __device__ __forceinline__
#define ORIEL_DEVICE_SLOW inline __host__ __device__ __noinline__
#elif defined(__GNUC__)
#define ORIEL_DEVICE_FN inline __attribute__((always_inline))
#define ORIEL_DEVICE_SLOW [[maybe_unused]] static __attribute__((noinline))
#else
#define ORIEL_DEVICE_FN inline
#define ORIEL_DEVICE_SLOW [[maybe_unused]] static
#endif

/// ORIEL_DEVICE_UNROLL before a loop unrolls it in GPU code, where registers cannot be indexed;
/// ORIEL_DEVICE_KEEP_LOOP keeps the compiler from doing so.
#if defined(__CUDA_ARCH__)
#define ORIEL_DEVICE_UNROLL _Pragma("unroll")
#define ORIEL_DEVICE_KEEP_LOOP _Pragma("unroll 1")
#else
#define ORIEL_DEVICE_UNROLL
#define ORIEL_DEVICE_KEEP_LOOP
#endif

#if defined(__CUDA_ARCH__)
#define ORIEL_DEVICE_CODE 1
#else
#define ORIEL_DEVICE_CODE 0
#endif
