// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/comm.hpp"
#include "oriel/device/window.hpp"

/// Kernels of the GPU tests. Several ranks share one GPU: a rank is one CTA, or one CTA per barrier
/// slot. `view` is the CommView of rank 0, whose abort word and stall records lie in pinned host
/// memory. Rank r uses the r-th stall record. Each launcher returns a cudaError_t as int and does
/// not synchronise; `stream` is a cudaStream_t.
namespace oriel::test {

struct KernelArguments {
  device::CommView view;
  std::uint32_t* results = nullptr;  ///< pinned, one word per CTA: the CTA's result
};

enum class PacketKind { packet8, packet16 };
enum class GroupKind { cta, warp };

/// Runs exchange_packets on every rank; result 1: all threads succeeded.
int launch_exchange(PacketKind kind, const KernelArguments& arguments, std::uint32_t flag,
                    std::uint32_t epochs, std::uint32_t packets, void* stream);
/// Runs barrier_rounds on every rank and slot (result index: slot * ranks + rank), by a CTA of 128
/// threads or of one warp.
int launch_barrier(const KernelArguments& arguments, std::uint32_t slots, std::uint32_t rounds,
                   void* stream, GroupKind kind = GroupKind::cta);
/// Waits in one CTA until *flag is `value`; result: 100 + WaitOutcome.
int launch_wait(const KernelArguments& arguments, const std::uint32_t* flag, std::uint32_t value,
                device::WaitTarget target, void* stream);
/// Syncs a barrier at which one CTA of rank 0 is alone; result: 100 + WaitOutcome.
int launch_lonely_barrier(const KernelArguments& arguments, void* stream);
/// Checks ranks, sizes and votes of the groups in a CTA of 8 x 4 x 3 threads; result 1: correct.
int launch_groups(const KernelArguments& arguments, void* stream);
/// Checks loads, stores and atomic additions of every order and width on `memory` (1 KiB of zeros);
/// result 1: correct.
int launch_accesses(const KernelArguments& arguments, char* memory, void* stream);
/// Checks the addresses that the window view returns: results 0 to 5, each 1 if correct.
int launch_window(const KernelArguments& arguments, const device::WindowObject* object,
                  void* stream);
/// Copies `bytes` (a multiple of 16, at most 32 KiB) through shared memory by bulk copies. Result:
/// 100 after success, or 1 on a GPU without bulk copies. A failed wait leaves it unchanged.
int launch_bulk_copy(const KernelArguments& arguments, const char* from, char* to,
                     std::uint32_t bytes, void* stream);
/// Runs the example's job on every rank with `blocks` CTAs each; result 1: this CTA succeeded.
int launch_example(const KernelArguments& arguments, std::uint64_t x_offset, std::uint64_t y_offset,
                   std::uint64_t count, float scale, std::uint32_t blocks, void* stream);

}  // namespace oriel::test
