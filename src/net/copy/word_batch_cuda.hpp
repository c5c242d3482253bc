// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "oriel/error.hpp"

#include "base/cuda_table.hpp"

namespace oriel::net {

/// Words that a stream is to write, collected so that it gets them by one call of the driver's: a
/// put of a word, its signal and the count of what is done are three, each of which would take as
/// long as all of them. The stream has them once they are submitted, in this order, each with the
/// fence of the whole system before it (CU_STREAM_WRITE_VALUE_DEFAULT).
///
/// Not thread-safe. The caller's context is the stream's.
class WordBatch {
 public:
  bool is_full() const { return count_ == words_.size(); }
  /// A word of 4 or 8 bytes, aligned, unless it is full.
  void add(CUdeviceptr to, std::uint64_t value, std::size_t bytes);
  /// Nothing to do without words. Those of a call that fails are dropped.
  Status submit(CUstream stream);
  void drop() { count_ = 0; }

 private:
  std::array<CUstreamBatchMemOpParams, 16> words_{};  // the driver takes 256
  unsigned count_ = 0;
};

}  // namespace oriel::net
