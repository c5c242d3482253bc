// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/queue_kernels.hpp"

namespace oriel::test {

/// Where a ring and its doorbells lie, and hence who drains it.
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
  std::uint32_t warps = 1;  ///< of each CTA
  std::uint32_t rounds = 100;
  std::uint32_t slow_ns = 0;
  std::uint64_t base = 0;     ///< where the queues begin
  std::uint32_t samples = 0;  ///< publications timed in each warp
};

struct PublishResult {
  bool done = false;            ///< all warps; all entries published and complete
  std::uint64_t published = 0;  ///< entries that should have been
  std::uint64_t consumed = 0;   ///< entries that were drained
  std::uint64_t doorbells = 0;
  std::uint64_t wrong_blocks = 0;
  std::uint64_t wrong_doorbells = 0;
  double seconds = 0;                 ///< from the first publication to the last completion
  std::vector<std::uint32_t> cycles;  ///< of the publications that were timed
};

/// Runs one case on device 0. Every wait in it is bounded. Throws std::runtime_error where CUDA
/// refuses something.
PublishResult run_publish(const PublishCase& at);

}  // namespace oriel::test
