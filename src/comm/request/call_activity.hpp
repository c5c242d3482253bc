// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "comm/request/call_request.hpp"

namespace oriel::comm {

/// Call of one communicator that a CPU rank's thread is executing. It is encoded as one word in the
/// rank's scratch memory. Other ranks of the team read the word after they have waited for long.
struct CallActivity {
  enum class Kind : std::uint8_t { none = 0, collective = 1, transfers = 2 };
  Kind kind = Kind::none;
  PointToPointCounts counts{};  ///< transfers by kind; word_of() clamps each to kMostCounted
  std::int32_t peer = -1;       ///< peer of a single transfer

  static constexpr int kCountBits = 19;
  static constexpr int kPeerBits = 24;
  static constexpr std::uint32_t kMostCounted = (1u << kCountBits) - 1;

  bool is_collective() const { return kind == Kind::collective; }
  bool is_transfer() const { return kind == Kind::transfers; }
};

constexpr std::uint64_t word_of(const CallActivity& activity) {
  constexpr int kPeer = CallActivity::kPeerBits, kCount = CallActivity::kCountBits;
  const auto count = [](std::uint32_t value) {
    return std::uint64_t{std::min(value, CallActivity::kMostCounted)};
  };
  return static_cast<std::uint64_t>(activity.kind) << (kPeer + 2 * kCount) |
         count(activity.counts.sends) << (kPeer + kCount) |
         count(activity.counts.receives) << kPeer |
         (static_cast<std::uint64_t>(activity.peer + 1) & ((1u << kPeer) - 1));
}

/// Decodes a word written by another rank; any value is accepted.
constexpr CallActivity activity_of(std::uint64_t word) {
  constexpr int kPeer = CallActivity::kPeerBits, kCount = CallActivity::kCountBits;
  const auto count = [&](int place) {
    return static_cast<std::uint32_t>(word >> place) & CallActivity::kMostCounted;
  };
  const std::uint64_t kind = word >> (kPeer + 2 * kCount);
  if (kind > static_cast<std::uint64_t>(CallActivity::Kind::transfers)) return {};
  return {static_cast<CallActivity::Kind>(kind),
          {count(kPeer + kCount), count(kPeer)},
          static_cast<std::int32_t>(word & ((1u << kPeer) - 1)) - 1};
}

}  // namespace oriel::comm
