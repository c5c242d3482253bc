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

/// The messages of a Group, taken apart: nothing here does I/O.
namespace oriel::boot {

/// Which collective set-up call a message belongs to. Every message carries one, so that ranks that
/// are in different calls get an error that names both instead of each other's bytes.
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

/// As in "window_register"; a number where the value is none of the above.
std::string to_string(Operation operation);

enum class GroupProtocol : std::uint8_t { all_gather = 1, broadcast = 2, barrier = 3, agree = 4 };

/// What stands before every message of a group.
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

/// Tells groups apart in an error message; it proves nothing and need not.
std::uint32_t hash_members(std::span<const int> members);

/// The body of what world rank `sender` has sent to world rank `own`, a part of `message`. An error
/// if its header is not the one that is due, which names both ranks and what each is in.
Result<ByteView> open_group_message(ByteView message, const GroupHeader& due, int own, int sender);

/// Appends exactly `count` blocks, which an all-gather's body consists of.
void put_blocks(ByteWriter& writer, std::span<const Bytes> blocks);
Status take_blocks(ByteView body, std::size_t count, std::vector<Bytes>& blocks);
Status check_barrier_body(ByteView body);

}  // namespace oriel::boot
