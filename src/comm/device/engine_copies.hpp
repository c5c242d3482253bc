// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "base/cuda_scope.hpp"
#include "kernels/plan/exchange.hpp"

namespace oriel::comm {

/// Enqueues the copies of a call on two streams, the caller's and its own. So a copy engine fills a
/// link while the last copy runs inside the GPU. Copies from two peers at a time gain nothing. On 4
/// H200 they made an all-gather 1.2 to 1.6 times as long, as two ranks then read from the same
/// rank. Not thread-safe.
class EngineCopies {
 public:
  /// Creates the second stream. Requires a CudaScope, like destruction.
  static Result<std::unique_ptr<EngineCopies>> make();
  EngineCopies(const EngineCopies&) = delete;
  EngineCopies& operator=(const EngineCopies&) = delete;
  ~EngineCopies();

  /// Enqueues `copies` after the work in the stream of `on`. If `beside` is set, the last copy goes
  /// to the second stream, and the first stream then waits for it. In this case the stream must not
  /// be captured. Written ranges must not overlap.
  Status enqueue(const std::vector<kernels::LocalCopy>& copies, bool beside, StreamScope& on);

 private:
  EngineCopies() = default;

  CUstream second_ = nullptr;
  CUevent meeting_ = nullptr;  // orders the two streams
};

}  // namespace oriel::comm
