// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/cuda_scope.hpp"
#include "comm/device/device.hpp"

namespace oriel::comm {

/// Counts the plain launches of one communicator on a GPU, and those that have ended, for the
/// flight recorder. An event follows each launch. Its record is one driver call more for each
/// launch, so marks are an option.
///
/// One thread at a time calls record(); any thread may call ended(). Only the destructor and
/// ended() need a CudaScope.
class LaunchMarks {
 public:
  static constexpr std::size_t kMarks = 1024;  ///< the recorder has as many calls

  LaunchMarks() = default;
  LaunchMarks(const LaunchMarks&) = delete;
  LaunchMarks& operator=(const LaunchMarks&) = delete;
  ~LaunchMarks();

  /// Records that a launch was enqueued on the stream. Creates an event in the first kMarks calls.
  Status record(StreamScope& on);
  /// Returns the number of recorded launches.
  std::uint64_t count() const { return count_.load(std::memory_order_acquire); }
  /// Returns how many launches are known to have ended. Launches end in their order. Does not
  /// block.
  std::uint64_t ended();

 private:
  std::array<std::atomic<CUevent>, kMarks> events_{};  // launch n at (n - 1) % kMarks
  std::atomic<std::uint64_t> count_{0};
  std::atomic<std::uint64_t> ended_{0};
};

}  // namespace oriel::comm
