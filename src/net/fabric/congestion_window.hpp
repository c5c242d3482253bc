// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/deadline.hpp"

namespace oriel::net {

/// Congestion window: bounds the bytes that one end has in flight to a peer, or from it. Other
/// requests and answers queue behind these bytes on the same link. So on a slow link only few may
/// be in flight, or a live peer looks like a dead one; a fast link needs many.
///
/// The time from start to answer drives the window. A transfer slower than `slow` halves it, once
/// for all transfers that were in flight together. If a transfer takes less than half of `slow` and
/// the window was at least half full, the window grows by its bytes. One transfer of any length is
/// always allowed. The caller counts the bytes in flight. Not thread-safe.
class CongestionWindow {
 public:
  static constexpr std::uint64_t kFirst = std::uint64_t{512} << 10;
  static constexpr std::uint64_t kLeast = std::uint64_t{128} << 10;
  static constexpr std::uint64_t kMost = std::uint64_t{64} << 20;

  explicit CongestionWindow(Duration slow) : slow_(slow) {}

  bool allows(std::uint64_t under_way, std::uint64_t bytes) const {
    return bytes == 0 || under_way == 0 || under_way + bytes <= most_;
  }
  /// Adapts the window to a transfer that has been answered. `started` is the transfer's start;
  /// `under_way` counts the bytes in flight, with this transfer.
  void ended(std::uint64_t under_way, std::uint64_t bytes, TimePoint started, TimePoint now) {
    if (bytes == 0) return;
    const Duration took = now - started;
    if (took > slow_) {
      if (started < narrowed_) return;
      narrowed_ = now;
      most_ = std::max(most_ / 2, kLeast);
    } else if (took < slow_ / 2 && under_way >= most_ / 2) {  // only a window that was in use grows
      most_ = std::min(most_ + bytes, kMost);
    }
  }
  std::uint64_t most() const { return most_; }

 private:
  Duration slow_;
  std::uint64_t most_ = kFirst;
  TimePoint narrowed_{};
};

}  // namespace oriel::net
