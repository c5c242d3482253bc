// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/loops/loop_tables.hpp"
#include "kernels/loops/simd.hpp"

namespace oriel::kernels::host {
namespace {

using Register = Vector<std::uint32_t>;

/// Whole registers past the caches, eight at a time; the ends as usual.
void copy(std::byte* dst, const std::byte* src, std::size_t bytes, bool streaming) {
  constexpr std::size_t kBlock = 8 * kVectorBytes;
  if (bytes == 0 || dst == src) return;
  if (!streaming || bytes < 2 * kBlock) {
    __builtin_memcpy(dst, src, bytes);
    return;
  }
  const std::size_t begin = -reinterpret_cast<std::uintptr_t>(dst) % kVectorBytes;
  const std::size_t end = begin + (bytes - begin) / kBlock * kBlock;
  __builtin_memcpy(dst, src, begin);
  for (std::size_t offset = begin; offset < end; offset += kBlock) {
    Register block[8];
    for (int i = 0; i < 8; ++i) block[i] = load_vector<Register>(src + offset + i * kVectorBytes);
    for (int i = 0; i < 8; ++i) stream_vector(dst + offset + i * kVectorBytes, block[i]);
  }
  __builtin_memcpy(dst + end, src + end, bytes - end);
  fence_streams();
}

}  // namespace

namespace ORIEL_LOOP_ISA {
const CopyLoop kCopyLoop = copy;
}

}  // namespace oriel::kernels::host
