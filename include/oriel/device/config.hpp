// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// ORIEL_DEVICE_FN marks a function that host and device code may call. It is always inlined, also
/// on the host. Reason: translation units of one program are compiled for different instruction
/// sets. An out-of-line copy for one instruction set must not be linked into another.
/// ORIEL_DEVICE_SLOW marks a function that is kept out of line because it runs rarely. Compilers
/// other than nvcc give it internal linkage, for the same reason.
/// ORIEL_DEVICE_CODE is 1 while GPU code is being compiled, otherwise 0.
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

/// ORIEL_DEVICE_UNROLL before a loop unrolls it in GPU code, where registers cannot be indexed.
/// ORIEL_DEVICE_KEEP_LOOP prevents unrolling.
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
