// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

namespace oriel::net {

enum class LinkLayer : std::uint8_t { infiniband = 1, ethernet = 2 };

/// Connection data of a queue for the other end. A plain value: one round exchanges the handles of
/// all queues.
struct Mlx5QueueHandle {
  std::uint32_t number = 0;  ///< 24 bits, not 0
  std::uint32_t psn = 0;     ///< 24 bits: PSN of its first packet
  LinkLayer link_layer = LinkLayer::infiniband;
  std::uint8_t mtu = 0;                 ///< 1: 256 bytes, 5: 4096
  std::uint8_t log_reads_answered = 0;  ///< log2 of most reads, atomics answered at once; 0 to 7
  std::uint8_t roce_version = 0;        ///< 1 or 2 on Ethernet, else 0
  std::uint16_t lid = 0;                ///< InfiniBand: 1 to 0xbfff
  std::array<std::uint8_t, 16> gid{};   ///< not 0 on Ethernet

  bool operator==(const Mlx5QueueHandle&) const = default;
};

inline constexpr std::size_t kMlx5HandleBytes = 36;

/// Encodes the handle in kMlx5HandleBytes bytes.
Bytes encode_handle(const Mlx5QueueHandle& handle);

/// Decodes a handle. Trusts no byte: checks every field against its range.
Result<Mlx5QueueHandle> parse_handle(ByteView bytes);

/// Encodes one rank's message to all others. For each member of a group, in order, it has the
/// handles of the queues that the rank has made for that member.
Bytes encode_handles(std::span<const std::vector<Mlx5QueueHandle>> of_members);

/// Returns the handles for `member` from such a message of a group with `members` members. Checks
/// the whole message.
Result<std::vector<Mlx5QueueHandle>> parse_handles(ByteView bytes, std::size_t members,
                                                   std::size_t member);

}  // namespace oriel::net
