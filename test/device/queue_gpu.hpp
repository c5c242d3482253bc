// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/queue_kernels.hpp"

namespace oriel::test {

/// Selects where a ring and its doorbells lie, and hence who drains it.
enum class RingPlace {
  device,  ///< in device memory, drained by a resident kernel
  host,    ///< in pinned host memory, drained by CPU threads
};

struct PublishCase {
  PublishMethod method = PublishMethod::warp;
  RingPlace place = RingPlace::device;
  std::uint32_t queues = 1;
  std::uint32_t depth = 1024;
  std::uint32_t ctas = 1;
  std::uint32_t warps = 1;  ///< warps per CTA
  std::uint32_t rounds = 100;
  std::uint32_t slow_ns = 0;
  std::uint64_t base = 0;     ///< first index of the queues
  std::uint32_t samples = 0;  ///< publications timed in each warp
};

struct PublishResult {
  bool done = false;            ///< all warps succeeded; all WQEs were published and completed
  std::uint64_t published = 0;  ///< number of WQEs that must be published
  std::uint64_t consumed = 0;   ///< number of WQEs drained
  std::uint64_t doorbells = 0;
  std::uint64_t wrong_wqebbs = 0;
  std::uint64_t wrong_doorbells = 0;
  double seconds = 0;                 ///< from the first publication to the last completion
  std::vector<std::uint32_t> cycles;  ///< clock cycles of the timed publications
};

/// Runs one case on device 0. Every wait in it is bounded. Throws std::runtime_error if a CUDA call
/// fails.
PublishResult run_publish(const PublishCase& at);

}  // namespace oriel::test
