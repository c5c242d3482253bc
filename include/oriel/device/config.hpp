// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Macros of functions that are compiled for GPUs and CPUs.
///
/// Example: a function that unrolls a loop in GPU code, and one that is kept out of line.
/// ```cpp
/// ORIEL_DEVICE_FN int sum_of_four(const int (&values)[4]) {
///   int sum = 0;
///   ORIEL_DEVICE_UNROLL
///   for (int i = 0; i < 4; ++i) sum += values[i];
///   return sum;
/// }
/// ORIEL_DEVICE_SLOW bool runs_on_gpu() {
///   return ORIEL_DEVICE_CODE != 0;
/// }
/// ```
/// @file

/// @def ORIEL_DEVICE_FN
/// Marks a function that host and device code may call. It is always inlined, also on the host.
/// Reason: translation units of one program are compiled for different instruction sets. An
/// out-of-line copy for one instruction set must not be linked into another.

/// @def ORIEL_DEVICE_SLOW
/// Marks a function that is kept out of line because it runs rarely. Compilers other than nvcc give
/// it internal linkage, for the reason named at ORIEL_DEVICE_FN.
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

/// @def ORIEL_DEVICE_UNROLL
/// Unrolls the loop that follows in GPU code, where registers cannot be indexed.

/// @def ORIEL_DEVICE_KEEP_LOOP
/// Prevents unrolling of the loop that follows in GPU code.
#if defined(__CUDA_ARCH__)
#define ORIEL_DEVICE_UNROLL _Pragma("unroll")
#define ORIEL_DEVICE_KEEP_LOOP _Pragma("unroll 1")
#else
#define ORIEL_DEVICE_UNROLL
#define ORIEL_DEVICE_KEEP_LOOP
#endif

/// @def ORIEL_DEVICE_CODE
/// Is 1 while GPU code is being compiled, otherwise 0.
#if defined(__CUDA_ARCH__)
#define ORIEL_DEVICE_CODE 1
#else
#define ORIEL_DEVICE_CODE 0
#endif
