// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/access.hpp"
#include "oriel/device/arch/cuda_access.cuh"
#include "oriel/device/config.hpp"

/// GPU side of the instruction layer; arch/host.hpp is the host side. memory.hpp includes it when
/// GPU code is compiled; do not include it directly. cuda_access.cuh has one wrapper per load,
/// store and atomic instruction. This file selects among them by order and scope, and adds fences,
/// clocks, and functions of threads and kernels. sm_80 and newer. The functions carry both
/// execution spaces only so that functions for both sides may call them. Unless its comment says
/// otherwise, a function does not block and orders no memory, and any thread may call it.
///
/// Example: a CTA shows its results to other GPUs by a flag.
/// ```cpp
/// __device__ void publish(std::uint32_t* flag, std::uint32_t epoch) {
///   using namespace oriel::device;
///   arch::cta_sync();  // the stores of all threads of the CTA precede the flag
///   if (arch::cta_thread_rank() == 0) arch::store<Order::release, Scope::system>(flag, epoch);
/// }
/// ```
namespace oriel::device::arch {

inline constexpr bool kCanSleep = false;  ///< a wait of a GPU only polls
/// A check of the abort word crosses PCIe and takes about 1 us; a poll takes 0.3 to 1 us.
inline constexpr std::uint32_t kPollsPerCheck = 1024;

// --- loads and stores -------------------------------------------------------------------------

/// Loads a value of 4, 8 or 16 bytes; see Memory::load.
template <Order kOrder, Scope kScope, class T>
ORIEL_DEVICE_FN T load(const T* address) {
  if constexpr (kOrder == Order::weak) {
    return ptx::ld_weak(address);
  } else if constexpr (kOrder == Order::relaxed) {
    return kScope == Scope::device ? ptx::ld_relaxed_gpu(address) : ptx::ld_relaxed_sys(address);
  } else {
    return kScope == Scope::device ? ptx::ld_acquire_gpu(address) : ptx::ld_acquire_sys(address);
  }
}

/// Stores a value of 4, 8 or 16 bytes; see Memory::store.
template <Order kOrder, Scope kScope, class T>
ORIEL_DEVICE_FN void store(T* address, T value) {
  if constexpr (kOrder == Order::weak) {
    ptx::st_weak(address, value);
  } else if constexpr (kOrder == Order::relaxed) {
    kScope == Scope::device ? ptx::st_relaxed_gpu(address, value)
                            : ptx::st_relaxed_sys(address, value);
  } else {
    kScope == Scope::device ? ptx::st_release_gpu(address, value)
                            : ptx::st_release_sys(address, value);
  }
}

/// Loads in weak order data that this thread reads once; see Memory::load_streaming.
template <class T>
ORIEL_DEVICE_FN T load_streaming(const T* address) {
  return ptx::ld_no_allocate(address);
}
/// Loads memory that nobody writes while the kernel runs; see Memory::load_read_only.
template <class T>
ORIEL_DEVICE_FN T load_read_only(const T* address) {
  return ptx::ld_nc_no_allocate(address);
}
/// Stores in weak order data that this thread does not read again; see Memory::store_streaming.
template <class T>
ORIEL_DEVICE_FN void store_streaming(T* address, T value) {
  ptx::st_no_allocate(address, value);
}

// --- read-modify-write ------------------------------------------------------------------------

/// Adds and returns the old value; see Memory::fetch_add.
template <Order kOrder, Scope kScope, class T>
ORIEL_DEVICE_FN T fetch_add(T* p, T v) {
  constexpr bool device = kScope == Scope::device;
  if constexpr (kOrder == Order::relaxed) {
    return device ? ptx::atom_add_relaxed_gpu(p, v) : ptx::atom_add_relaxed_sys(p, v);
  } else if constexpr (kOrder == Order::acquire) {
    return device ? ptx::atom_add_acquire_gpu(p, v) : ptx::atom_add_acquire_sys(p, v);
  } else if constexpr (kOrder == Order::release) {
    return device ? ptx::atom_add_release_gpu(p, v) : ptx::atom_add_release_sys(p, v);
  } else {
    return device ? ptx::atom_add_acq_rel_gpu(p, v) : ptx::atom_add_acq_rel_sys(p, v);
  }
}

/// Adds and returns nothing; see Memory::reduce_add.
template <Order kOrder, Scope kScope, class T>
ORIEL_DEVICE_FN void reduce_add(T* p, T v) {
  constexpr bool device = kScope == Scope::device;
  if constexpr (kOrder == Order::relaxed) {
    device ? ptx::red_add_relaxed_gpu(p, v) : ptx::red_add_relaxed_sys(p, v);
  } else {
    device ? ptx::red_add_release_gpu(p, v) : ptx::red_add_release_sys(p, v);
  }
}

/// Stores the larger value and returns the old value; see Memory::fetch_max.
template <Order kOrder, Scope kScope>
ORIEL_DEVICE_FN std::uint64_t fetch_max(std::uint64_t* p, std::uint64_t v) {
  constexpr bool device = kScope == Scope::device;
  if constexpr (kOrder == Order::relaxed) {
    return device ? ptx::atom_max_relaxed_gpu(p, v) : ptx::atom_max_relaxed_sys(p, v);
  } else {
    return device ? ptx::atom_max_acq_rel_gpu(p, v) : ptx::atom_max_acq_rel_sys(p, v);
  }
}

/// Sets bits and returns the old value, in order acq_rel; see Memory::fetch_or.
template <Scope kScope>
ORIEL_DEVICE_FN std::uint64_t fetch_or(std::uint64_t* p, std::uint64_t v) {
  return kScope == Scope::device ? ptx::atom_or_acq_rel_gpu(p, v) : ptx::atom_or_acq_rel_sys(p, v);
}

/// Stores a value and returns the old value, in order acq_rel; see Memory::exchange.
template <Scope kScope>
ORIEL_DEVICE_FN std::uint64_t exchange(std::uint64_t* p, std::uint64_t v) {
  return kScope == Scope::device ? ptx::atom_exch_acq_rel_gpu(p, v)
                                 : ptx::atom_exch_acq_rel_sys(p, v);
}

/// Stores `v` if memory holds `expected`, and returns the old value; see Memory::compare_swap.
template <Order kOrder, Scope kScope, class T>
ORIEL_DEVICE_FN T compare_swap(T* p, T expected, T v) {
  constexpr bool device = kScope == Scope::device;
  if constexpr (kOrder == Order::relaxed) {
    return device ? ptx::atom_cas_relaxed_gpu(p, expected, v)
                  : ptx::atom_cas_relaxed_sys(p, expected, v);
  } else if constexpr (kOrder == Order::acquire) {
    return device ? ptx::atom_cas_acquire_gpu(p, expected, v)
                  : ptx::atom_cas_acquire_sys(p, expected, v);
  } else {
    return device ? ptx::atom_cas_acq_rel_gpu(p, expected, v)
                  : ptx::atom_cas_acq_rel_sys(p, expected, v);
  }
}

// --- fences -------------------------------------------------------------------------------------

/// Executes an acquire and release fence; see Memory::fence.
template <Scope kScope>
ORIEL_DEVICE_FN void fence_acq_rel() {
  if constexpr (kScope == Scope::device) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  } else {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
  }
}
/// Executes a sequentially consistent fence; see Memory::fence_seq_cst.
template <Scope kScope = Scope::system>
ORIEL_DEVICE_FN void fence_seq_cst() {
  if constexpr (kScope == Scope::device) {
    asm volatile("fence.sc.gpu;" ::: "memory");
  } else {
    asm volatile("fence.sc.sys;" ::: "memory");
  }
}

// --- time ---------------------------------------------------------------------------------------

/// Does nothing on a GPU.
ORIEL_DEVICE_FN void relax() {}

/// Returns the GPU's global timer in nanoseconds; it ticks in steps of 32 ns to 1 us.
ORIEL_DEVICE_FN std::uint64_t clock_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// Suspends the thread for about `duration_ns`, at most 1 ms, perhaps not at all. Blocks only for
/// this time.
ORIEL_DEVICE_FN void sleep_ns(std::uint32_t duration_ns) {
  asm volatile("nanosleep.u32 %0;" ::"r"(duration_ns));
}

// --- threads and kernels ------------------------------------------------------------------------

/// Returns this thread's index in its CTA, the first dimension fastest.
ORIEL_DEVICE_FN std::uint32_t cta_thread_rank() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
/// Returns the number of threads of the CTA.
ORIEL_DEVICE_FN std::uint32_t cta_thread_count() {
  return blockDim.x * blockDim.y * blockDim.z;
}
/// Waits for all threads of the CTA and orders their memory accesses. All of them call it.
ORIEL_DEVICE_FN void cta_sync() {
  __syncthreads();
}
/// Calls cta_sync(), and returns true in all threads if `mine` is true in at least one.
ORIEL_DEVICE_FN bool cta_any(bool mine) {
  return __syncthreads_or(mine) != 0;
}
/// Acts as cta_sync() for `threads` threads of a CTA that use barrier `id`. `threads` is a multiple
/// of the warp size; `id` is 1 to 15 (PTX: barrier.cta).
///
/// The aligned form, after a __syncwarp, avoids a bug of the other form. There ptxas of CUDA 13.0
/// tests for divergence (BRA.DIV) with a mask in a uniform register, which all paths of the warp
/// share. On H200 (driver 580.159.04) lanes 4 to 31 of a warp passed a barrier while lanes 0 to 3
/// were still polling. The path of lanes 0 to 3 writes that register; these lanes then waited
/// forever.
ORIEL_DEVICE_FN void barrier_sync(std::uint32_t id, std::uint32_t threads) {
  __syncwarp();
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Acts as cta_any() for `threads` threads of a CTA, as barrier_sync() does.
ORIEL_DEVICE_FN bool barrier_any(std::uint32_t id, std::uint32_t threads, bool mine) {
  std::uint32_t any = 0;
  __syncwarp();
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.u32 mine, %3, 0;\n"
      "barrier.cta.red.or.aligned.pred any, %1, %2, mine;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<std::uint32_t>(mine))
      : "memory");
  return any != 0;
}
/// Returns this thread's lane, 0 to 31.
ORIEL_DEVICE_FN std::uint32_t warp_lane() {
  std::uint32_t lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
/// Returns the number of lanes of a warp.
ORIEL_DEVICE_FN std::uint32_t warp_size() {
  return 32;
}
/// Waits for all lanes of the warp and orders their memory accesses. All 32 lanes call it.
ORIEL_DEVICE_FN void warp_sync() {
  __syncwarp();
}
/// Returns true in all lanes if `mine` is true in at least one. Calls __syncwarp before the vote,
/// because a vote alone orders no memory among the lanes.
ORIEL_DEVICE_FN bool warp_any(bool mine) {
  __syncwarp();
  return __any_sync(0xffffffffu, mine) != 0;
}

/// Returns thread 0's value; a barrier before and after.
ORIEL_DEVICE_FN std::uint64_t cta_broadcast(std::uint64_t value) {
#if defined(__CUDA_ARCH__)
  __shared__ std::uint64_t shared;
  __syncthreads();
  if (cta_thread_rank() == 0) shared = value;
  __syncthreads();
  return shared;
#else
  return value;
#endif
}

/// Returns the lanes of this warp that make this call together with the same key. Some such lanes
/// may be missing.
ORIEL_DEVICE_FN std::uint32_t lanes_together(std::uint64_t key) {
  return __match_any_sync(__activemask(), key);
}
/// Returns how many of `lanes` precede this lane.
ORIEL_DEVICE_FN std::uint32_t lanes_before(std::uint32_t lanes) {
  return static_cast<std::uint32_t>(__popc(lanes & ((1u << warp_lane()) - 1)));
}
/// Returns the number of lanes in the mask `lanes`.
ORIEL_DEVICE_FN std::uint32_t lanes_count(std::uint32_t lanes) {
  return static_cast<std::uint32_t>(__popc(lanes));
}
/// Synchronises `lanes`, all of which call it, and orders their memory accesses.
ORIEL_DEVICE_FN void lanes_sync(std::uint32_t lanes) {
  __syncwarp(lanes);
}
/// Returns the value of the first of `lanes`, all of which call it.
ORIEL_DEVICE_FN std::uint64_t lanes_broadcast(std::uint32_t lanes, std::uint64_t value) {
  return __shfl_sync(lanes, value, __ffs(static_cast<int>(lanes)) - 1);
}

/// Returns lane 0's value.
ORIEL_DEVICE_FN std::uint64_t warp_broadcast(std::uint64_t value) {
  return __shfl_sync(0xffffffffu, value, 0);
}
/// Returns the value of lane `lane`, which is the same in all lanes.
ORIEL_DEVICE_FN std::uint32_t warp_read(std::uint32_t value, std::uint32_t lane) {
  return __shfl_sync(0xffffffffu, value, static_cast<int>(lane));
}

/// Waits for the kernels on which this kernel depends; see device::grid_dependency_wait. Blocking.
/// Does nothing before sm_90, where a kernel starts after its predecessor has ended.
ORIEL_DEVICE_FN void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Allows dependent kernels to start; see device::grid_launch_dependents. Does nothing before
/// sm_90.
ORIEL_DEVICE_FN void grid_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Forces the pointer to be computed here; see device::keep_in_register.
template <class T>
ORIEL_DEVICE_FN void keep_in_register(T*& value) {
  asm volatile("" : "+l"(value));
}
/// Forces the number to be computed here; see device::keep_in_register.
ORIEL_DEVICE_FN void keep_in_register(std::uint64_t& value) {
  asm volatile("" : "+l"(value));
}

}  // namespace oriel::device::arch
