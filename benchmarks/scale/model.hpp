// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/deadline.hpp"

namespace oriel::scale {

inline constexpr int kRanksOfNode = 8;

/// Costs of messages and copies: constants of a data centre's Ethernet and TCP, and of one core.
struct Model {
  Duration latency = std::chrono::microseconds(20);
  /// Processor time per message, at the sender and at the receiver.
  Duration message = std::chrono::microseconds(2);
  double nanoseconds_per_byte = 0.5;  // 2 GB/s on one connection
  // Costs within a node:
  Duration store = std::chrono::nanoseconds(200);  // time until another core sees a stored word
  double nanoseconds_per_copied_byte = 0.1;        // also per reduced byte
};

/// One rank: its own clock, and a link that it does not share.
struct Endpoint {
  Duration clock{};
  Duration link_free{};  // time at which the link can take the next message
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;

  /// Sends a message now and returns its arrival time.
  Duration send(const Model& model, std::size_t message_bytes) {
    ++messages;
    bytes += message_bytes;
    clock += model.message;
    const auto transfer = Duration(
        static_cast<std::int64_t>(static_cast<double>(message_bytes) * model.nanoseconds_per_byte));
    link_free = std::max(link_free, clock) + transfer;
    return link_free + model.latency;
  }
  void receive(const Model& model, Duration arrival) {
    clock = std::max(clock, arrival) + model.message;
  }
};

}  // namespace oriel::scale
