// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/word_batch_cuda.hpp"

#include <utility>

namespace oriel::net {

void WordBatch::add(CUdeviceptr to, std::uint64_t value, std::size_t bytes) {
  CUstreamBatchMemOpParams& word = words_[count_++];
  word = {};
  word.writeValue.operation =
      bytes == 8 ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
  word.writeValue.address = to;
  word.writeValue.value64 = bytes == 8 ? value : static_cast<std::uint32_t>(value);
  word.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
}

Status WordBatch::submit(CUstream stream) {
  const unsigned count = std::exchange(count_, 0);
  if (count == 0) return {};
  return cuda_status("writing words of a GPU for a software NIC",
                     cuda().stream_batch_mem_op(stream, count, words_.data(), 0));
}

}  // namespace oriel::net
