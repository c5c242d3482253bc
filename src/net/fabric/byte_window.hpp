// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/deadline.hpp"

namespace oriel::net {

/// How many bytes one end may have under way to a peer, or from it. Whatever is asked or answered
/// meanwhile stands behind them on the same link, so on a slow one there have to be few, or who is
/// there looks like one that is not; on a fast one there have to be many. The time from beginning
/// to answer tells which it is: what takes longer than `slow` halves the window, once for what was
/// under way together, and what takes less than half of that widens it. One transfer may always be
/// under way, however long it is. Who uses it counts the bytes. Not thread-safe.
class ByteWindow {
 public:
  static constexpr std::uint64_t kFirst = std::uint64_t{512} << 10;
  static constexpr std::uint64_t kLeast = std::uint64_t{128} << 10;
  static constexpr std::uint64_t kMost = std::uint64_t{64} << 20;

  explicit ByteWindow(Duration slow) : slow_(slow) {}

  bool has_room(std::uint64_t under_way, std::uint64_t bytes) const {
    return bytes == 0 || under_way == 0 || under_way + bytes <= most_;
  }
  /// What began at `begun` has been answered; `under_way` with it.
  void ended(std::uint64_t under_way, std::uint64_t bytes, TimePoint begun, TimePoint now) {
    if (bytes == 0) return;
    const Duration took = now - begun;
    if (took > slow_) {
      if (begun < narrowed_) return;
      narrowed_ = now;
      most_ = std::max(most_ / 2, kLeast);
    } else if (took < slow_ / 2 && under_way >= most_ / 2) {  // if it was in anybody's way
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
