// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "oriel/error.hpp"

#include "base/cuda_table.hpp"

namespace oriel::net {

/// Batch of word writes of a stream, submitted by one driver call. A put of a word, its signal and
/// the completion count are three writes. A call for each would take as long as one call for all.
/// The stream executes them in order, each after a system-scope fence
/// (CU_STREAM_WRITE_VALUE_DEFAULT).
///
/// Not thread-safe. The caller's current context must be the stream's.
class WordBatch {
 public:
  bool is_full() const { return count_ == words_.size(); }
  /// Adds an aligned word of 4 or 8 bytes. The batch must not be full.
  void add(CUdeviceptr to, std::uint64_t value, std::size_t bytes);
  /// Submits and clears the batch. Does nothing without words. If the call fails, the words are
  /// dropped.
  Status submit(CUstream stream);
  void drop() { count_ = 0; }

 private:
  std::array<CUstreamBatchMemOpParams, 16> words_{};  // the driver takes fewer than 256
  unsigned count_ = 0;
};

}  // namespace oriel::net
