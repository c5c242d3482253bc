// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

/// Encodes and decodes the messages of a Group; does no I/O.
namespace oriel::boot {

/// Collective set-up call that a message belongs to. If two ranks are in different calls, the error
/// names both calls, and neither rank reads the other's bytes.
enum class Operation : std::uint16_t {
  join = 1,
  topology = 2,
  control_window = 4,
  window_register = 5,
  table = 6,
  network = 8,
  split = 9,
  test = 99,
};

/// Returns a name such as "window_register"; the number for an unknown value.
std::string to_string(Operation operation);

enum class GroupProtocol : std::uint8_t { all_gather = 1, broadcast = 2, barrier = 3, agree = 4 };

/// Header of every group message.
struct GroupHeader {
  static constexpr std::size_t kBytes = 12;
  Operation operation{};
  GroupProtocol protocol{};
  std::uint8_t round = 0;
  std::uint32_t sequence = 0;
  std::uint32_t group = 0;  ///< hash of the member list

  void encode(ByteWriter& writer) const;
  static GroupHeader decode(ByteReader& reader);
  bool operator==(const GroupHeader&) const = default;
};

/// Identifies a group in an error message; collisions are harmless, since the hash proves nothing.
std::uint32_t hash_members(std::span<const int> members);

/// Returns the body of `message`, sent by world rank `sender` to world rank `own`, as a view. If
/// its header is not `due`, the error names both ranks and the call that each is in.
Result<ByteView> open_group_message(ByteView message, const GroupHeader& due, int own, int sender);

/// Appends the blocks of an all-gather message; take_blocks() reads exactly `count` of them.
void put_blocks(ByteWriter& writer, std::span<const Bytes> blocks);
Status take_blocks(ByteView body, std::size_t count, std::vector<Bytes>& blocks);
Status check_barrier_body(ByteView body);

}  // namespace oriel::boot
