// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/access.hpp"
#include "oriel/device/config.hpp"

/// Wrappers of the PTX load, store and atomic instructions that Oriel uses, for u32, u64, Pack
/// (v4.u32) and Pair (v2.u64). All access global memory: device memory of this or a peer GPU, or
/// pinned host memory. In the memory model a vector access is one access per element, in no order.
/// No function blocks, and any thread may call each. Each function has the memory order that it
/// names, or weak order if it names none.
///
/// Example: copies 16 bytes that this thread does not read again.
/// ```cpp
/// __device__ void copy_once(oriel::device::Pack* to, const oriel::device::Pack* from) {
///   namespace ptx = oriel::device::arch::ptx;
///   ptx::st_no_allocate(to, ptx::ld_no_allocate(from));
/// }
/// ```
namespace oriel::device::arch::ptx {

/// Returns the global-memory address of a generic pointer, as the instructions take it.
ORIEL_DEVICE_FN std::uint64_t global(const void* address) {
  return static_cast<std::uint64_t>(__cvta_generic_to_global(address));
}

/// Loads by an ordinary access; the compiler may merge and move it.
template <class T>
ORIEL_DEVICE_FN T ld_weak(const T* address) {
  return *address;
}
/// Loads 16 bytes by one ordinary access.
ORIEL_DEVICE_FN Pack ld_weak(const Pack* address) {
  const uint4 v = *reinterpret_cast<const uint4*>(address);
  return Pack{{v.x, v.y, v.z, v.w}};
}
/// Stores by an ordinary access; the compiler may merge and move it.
template <class T>
ORIEL_DEVICE_FN void st_weak(T* address, T value) {
  *address = value;
}
/// Stores 16 bytes by one ordinary access.
ORIEL_DEVICE_FN void st_weak(Pack* address, Pack v) {
  *reinterpret_cast<uint4*>(address) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

#define ORIEL_PTX_LOAD(name, instruction)                                                   \
  ORIEL_DEVICE_FN std::uint32_t name(const std::uint32_t* address) {                        \
    std::uint32_t v;                                                                        \
    asm volatile(instruction ".u32 %0, [%1];" : "=r"(v) : "l"(global(address)) : "memory"); \
    return v;                                                                               \
  }                                                                                         \
  ORIEL_DEVICE_FN std::uint64_t name(const std::uint64_t* address) {                        \
    std::uint64_t v;                                                                        \
    asm volatile(instruction ".u64 %0, [%1];" : "=l"(v) : "l"(global(address)) : "memory"); \
    return v;                                                                               \
  }                                                                                         \
  ORIEL_DEVICE_FN Pack name(const Pack* address) {                                          \
    Pack v;                                                                                 \
    asm volatile(instruction ".v4.u32 {%0, %1, %2, %3}, [%4];"                              \
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])       \
                 : "l"(global(address))                                                     \
                 : "memory");                                                               \
    return v;                                                                               \
  }                                                                                         \
  ORIEL_DEVICE_FN Pair name(const Pair* address) {                                          \
    Pair v;                                                                                 \
    asm volatile(instruction ".v2.u64 {%0, %1}, [%2];"                                      \
                 : "=l"(v.half[0]), "=l"(v.half[1])                                         \
                 : "l"(global(address))                                                     \
                 : "memory");                                                               \
    return v;                                                                               \
  }

ORIEL_PTX_LOAD(ld_relaxed_gpu, "ld.relaxed.gpu.global")
ORIEL_PTX_LOAD(ld_relaxed_sys, "ld.relaxed.sys.global")
ORIEL_PTX_LOAD(ld_acquire_gpu, "ld.acquire.gpu.global")
ORIEL_PTX_LOAD(ld_acquire_sys, "ld.acquire.sys.global")
ORIEL_PTX_LOAD(ld_no_allocate, "ld.global.L1::no_allocate")
ORIEL_PTX_LOAD(ld_nc_no_allocate, "ld.global.nc.L1::no_allocate")
#undef ORIEL_PTX_LOAD

#define ORIEL_PTX_STORE(name, instruction)                                                     \
  ORIEL_DEVICE_FN void name(std::uint32_t* address, std::uint32_t v) {                         \
    asm volatile(instruction ".u32 [%0], %1;" ::"l"(global(address)), "r"(v) : "memory");      \
  }                                                                                            \
  ORIEL_DEVICE_FN void name(std::uint64_t* address, std::uint64_t v) {                         \
    asm volatile(instruction ".u64 [%0], %1;" ::"l"(global(address)), "l"(v) : "memory");      \
  }                                                                                            \
  ORIEL_DEVICE_FN void name(Pack* address, Pack v) {                                           \
    asm volatile(instruction ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global(address)),         \
                 "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])                \
                 : "memory");                                                                  \
  }                                                                                            \
  ORIEL_DEVICE_FN void name(Pair* address, Pair v) {                                           \
    asm volatile(instruction ".v2.u64 [%0], {%1, %2};" ::"l"(global(address)), "l"(v.half[0]), \
                 "l"(v.half[1])                                                                \
                 : "memory");                                                                  \
  }

ORIEL_PTX_STORE(st_relaxed_gpu, "st.relaxed.gpu.global")
ORIEL_PTX_STORE(st_relaxed_sys, "st.relaxed.sys.global")
ORIEL_PTX_STORE(st_release_gpu, "st.release.gpu.global")
ORIEL_PTX_STORE(st_release_sys, "st.release.sys.global")
ORIEL_PTX_STORE(st_no_allocate, "st.global.L1::no_allocate")
#undef ORIEL_PTX_STORE

#define ORIEL_PTX_RED_ADD(name, order_scope)                                                  \
  ORIEL_DEVICE_FN void name(std::uint32_t* address, std::uint32_t v) {                        \
    asm volatile("red" order_scope ".global.add.u32 [%0], %1;" ::"l"(global(address)), "r"(v) \
                 : "memory");                                                                 \
  }                                                                                           \
  ORIEL_DEVICE_FN void name(std::uint64_t* address, std::uint64_t v) {                        \
    asm volatile("red" order_scope ".global.add.u64 [%0], %1;" ::"l"(global(address)), "l"(v) \
                 : "memory");                                                                 \
  }

ORIEL_PTX_RED_ADD(red_add_relaxed_gpu, ".relaxed.gpu")
ORIEL_PTX_RED_ADD(red_add_relaxed_sys, ".relaxed.sys")
ORIEL_PTX_RED_ADD(red_add_release_gpu, ".release.gpu")
ORIEL_PTX_RED_ADD(red_add_release_sys, ".release.sys")
#undef ORIEL_PTX_RED_ADD

#define ORIEL_PTX_ATOM_ADD(name, order_scope)                                   \
  ORIEL_DEVICE_FN std::uint32_t name(std::uint32_t* address, std::uint32_t v) { \
    std::uint32_t old;                                                          \
    asm volatile("atom" order_scope ".global.add.u32 %0, [%1], %2;"             \
                 : "=r"(old)                                                    \
                 : "l"(global(address)), "r"(v)                                 \
                 : "memory");                                                   \
    return old;                                                                 \
  }                                                                             \
  ORIEL_DEVICE_FN std::uint64_t name(std::uint64_t* address, std::uint64_t v) { \
    std::uint64_t old;                                                          \
    asm volatile("atom" order_scope ".global.add.u64 %0, [%1], %2;"             \
                 : "=l"(old)                                                    \
                 : "l"(global(address)), "l"(v)                                 \
                 : "memory");                                                   \
    return old;                                                                 \
  }

ORIEL_PTX_ATOM_ADD(atom_add_relaxed_gpu, ".relaxed.gpu")
ORIEL_PTX_ATOM_ADD(atom_add_relaxed_sys, ".relaxed.sys")
ORIEL_PTX_ATOM_ADD(atom_add_acquire_gpu, ".acquire.gpu")
ORIEL_PTX_ATOM_ADD(atom_add_acquire_sys, ".acquire.sys")
ORIEL_PTX_ATOM_ADD(atom_add_release_gpu, ".release.gpu")
ORIEL_PTX_ATOM_ADD(atom_add_release_sys, ".release.sys")
ORIEL_PTX_ATOM_ADD(atom_add_acq_rel_gpu, ".acq_rel.gpu")
ORIEL_PTX_ATOM_ADD(atom_add_acq_rel_sys, ".acq_rel.sys")
#undef ORIEL_PTX_ATOM_ADD

#define ORIEL_PTX_ATOM_WORD(name, operation)                                    \
  ORIEL_DEVICE_FN std::uint64_t name(std::uint64_t* address, std::uint64_t v) { \
    std::uint64_t old;                                                          \
    asm volatile("atom" operation " %0, [%1], %2;"                              \
                 : "=l"(old)                                                    \
                 : "l"(global(address)), "l"(v)                                 \
                 : "memory");                                                   \
    return old;                                                                 \
  }

ORIEL_PTX_ATOM_WORD(atom_max_relaxed_gpu, ".relaxed.gpu.global.max.u64")
ORIEL_PTX_ATOM_WORD(atom_max_relaxed_sys, ".relaxed.sys.global.max.u64")
ORIEL_PTX_ATOM_WORD(atom_max_acq_rel_gpu, ".acq_rel.gpu.global.max.u64")
ORIEL_PTX_ATOM_WORD(atom_max_acq_rel_sys, ".acq_rel.sys.global.max.u64")
ORIEL_PTX_ATOM_WORD(atom_or_acq_rel_gpu, ".acq_rel.gpu.global.or.b64")
ORIEL_PTX_ATOM_WORD(atom_or_acq_rel_sys, ".acq_rel.sys.global.or.b64")
ORIEL_PTX_ATOM_WORD(atom_exch_acq_rel_gpu, ".acq_rel.gpu.global.exch.b64")
ORIEL_PTX_ATOM_WORD(atom_exch_acq_rel_sys, ".acq_rel.sys.global.exch.b64")
#undef ORIEL_PTX_ATOM_WORD

#define ORIEL_PTX_ATOM_CAS(name, order_scope)                                                    \
  ORIEL_DEVICE_FN std::uint32_t name(std::uint32_t* address, std::uint32_t e, std::uint32_t v) { \
    std::uint32_t old;                                                                           \
    asm volatile("atom" order_scope ".global.cas.b32 %0, [%1], %2, %3;"                          \
                 : "=r"(old)                                                                     \
                 : "l"(global(address)), "r"(e), "r"(v)                                          \
                 : "memory");                                                                    \
    return old;                                                                                  \
  }                                                                                              \
  ORIEL_DEVICE_FN std::uint64_t name(std::uint64_t* address, std::uint64_t e, std::uint64_t v) { \
    std::uint64_t old;                                                                           \
    asm volatile("atom" order_scope ".global.cas.b64 %0, [%1], %2, %3;"                          \
                 : "=l"(old)                                                                     \
                 : "l"(global(address)), "l"(e), "l"(v)                                          \
                 : "memory");                                                                    \
    return old;                                                                                  \
  }

ORIEL_PTX_ATOM_CAS(atom_cas_relaxed_gpu, ".relaxed.gpu")
ORIEL_PTX_ATOM_CAS(atom_cas_relaxed_sys, ".relaxed.sys")
ORIEL_PTX_ATOM_CAS(atom_cas_acquire_gpu, ".acquire.gpu")
ORIEL_PTX_ATOM_CAS(atom_cas_acquire_sys, ".acquire.sys")
ORIEL_PTX_ATOM_CAS(atom_cas_acq_rel_gpu, ".acq_rel.gpu")
ORIEL_PTX_ATOM_CAS(atom_cas_acq_rel_sys, ".acq_rel.sys")
#undef ORIEL_PTX_ATOM_CAS

}  // namespace oriel::device::arch::ptx
