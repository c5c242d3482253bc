// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/loops/loop_tables.hpp"
#include "kernels/loops/simd.hpp"

namespace oriel::kernels::host {
namespace {

using Register = Vector<std::uint32_t>;
constexpr std::size_t kBlock = 8 * kVectorBytes;

/// Copies whole registers, eight at a time. `dst` is a multiple of the register size.
template <bool kStreaming>
void copy_blocks(std::byte* dst, const std::byte* src, std::size_t bytes) {
  for (std::size_t offset = 0; offset < bytes; offset += kBlock) {
    Register block[8];
    for (int i = 0; i < 8; ++i) block[i] = load_vector<Register>(src + offset + i * kVectorBytes);
    for (int i = 0; i < 8; ++i) {
      std::byte* const to = dst + offset + i * kVectorBytes;
      if constexpr (kStreaming) {
        stream_vector(to, block[i]);
      } else {
        store_vector(to, block[i]);
      }
    }
  }
}

/// Copies with vector loops, and uses memcpy only for short copies and the ends. `dst` and `src`
/// may have different offsets in their cache lines. Buffers of malloc and slots usually do. On Zen
/// 3 glibc's memcpy then takes two to three times as long from 2 KiB on (docs/notes/cpu.md).
/// benchmarks/kernels/reduce_loops_bench.cpp measures this loop beside memcpy.
void copy(std::byte* dst, const std::byte* src, std::size_t bytes, bool streaming) {
  if (bytes == 0 || dst == src) return;
  if (bytes < 2 * kBlock) {
    __builtin_memcpy(dst, src, bytes);
    return;
  }
  const std::size_t begin = -reinterpret_cast<std::uintptr_t>(dst) % kVectorBytes;
  const std::size_t blocks = (bytes - begin) / kBlock * kBlock;
  const std::size_t end = begin + blocks;
  __builtin_memcpy(dst, src, begin);
  if (streaming) {
    copy_blocks<true>(dst + begin, src + begin, blocks);
  } else {
    copy_blocks<false>(dst + begin, src + begin, blocks);
  }
  __builtin_memcpy(dst + end, src + end, bytes - end);
  if (streaming) fence_streams();
}

}  // namespace

namespace ORIEL_LOOP_ISA {
const CopyLoop kCopyLoop = copy;
}

}  // namespace oriel::kernels::host
