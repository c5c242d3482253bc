// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/cuda_scope.hpp"
#include "comm/device/device.hpp"

namespace oriel::comm {

/// Counts the plain launches of one communicator on a GPU, and those that have ended, for the
/// flight recorder. An event follows each launch. Its record is one driver call more for each
/// launch, so marks are an option.
///
/// Not thread-safe. Only the destructor and ended() need a CudaScope.
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
  std::uint64_t count() const { return count_; }
  /// Returns how many launches have ended. Launches end in their order.
  std::uint64_t ended();

 private:
  CUevent& event_of(std::uint64_t launch) { return events_[(launch - 1) % kMarks]; }

  std::array<CUevent, kMarks> events_{};
  std::uint64_t count_ = 0;
  std::uint64_t ended_ = 0;  // lower bound, from the last search
};

}  // namespace oriel::comm
