// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "base/cuda_scope.hpp"
#include "kernels/plan/exchange.hpp"

namespace oriel::comm {

/// Enqueues the copies of a call on two streams, the caller's and one of its own, so that one copy
/// engine fills a link while another is busy inside the GPU. Copies from two peers at a time gain
/// nothing: on 4 H200 an all-gather then took 1.2 to 1.5 times as long, for two ranks read the same
/// one. Not thread-safe.
class EngineCopies {
 public:
  /// Makes the second stream. Needs a CudaScope, as does destruction.
  static Result<std::unique_ptr<EngineCopies>> make();
  EngineCopies(const EngineCopies&) = delete;
  EngineCopies& operator=(const EngineCopies&) = delete;
  ~EngineCopies();

  /// Enqueues `copies` behind what the stream of `on` holds, the last one on the second stream if
  /// it is `beside` the others, and has the first wait for all. The stream may be captured. No
  /// range that is written overlaps with another.
  Status enqueue(const std::vector<kernels::LocalCopy>& copies, bool beside, StreamScope& on);

 private:
  EngineCopies() = default;

  CUstream second_ = nullptr;
  CUevent meeting_ = nullptr;  // of either stream with the other
};

}  // namespace oriel::comm
