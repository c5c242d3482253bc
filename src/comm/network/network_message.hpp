// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "comm/keys/keys_message.hpp"
#include "comm/paths/path_pairs.hpp"
#include "window/exchange/fd_link.hpp"

/// Messages in which ranks describe their NICs to each other. Received messages are checked as a
/// whole; the errors do not know the rank.
namespace oriel::comm {

/// Place of a rank, sent first. The places of all ranks decide which wire joins which ranks, and by
/// how many paths.
struct NetworkPlace {
  std::uint64_t machine = 0;  ///< what names the machine and its boot, whatever the node
  /// One for each path that this rank can have, 1 to net::kPathsMost, in its order.
  std::vector<PathInterface> interfaces = std::vector<PathInterface>(1);
  bool operator==(const NetworkPlace&) const = default;
};
Bytes encode(const NetworkPlace& place);
/// Refuses networks that are none, or too many.
Result<NetworkPlace> decode_place(ByteView bytes);
/// Returns the number of ranks that share the processors of rank `self`, itself included.
int ranks_beside(std::span<const NetworkPlace> places, std::size_t self);

/// Message of a rank with a software NIC to all others, sent after the places.
struct NetworkHello {
  window::FdSocketName socket{};  ///< where it listens, if it has peers by shared memory
  std::vector<Bytes> fabrics;     ///< by path, the addresses of its fabric wires, if it has any
  std::uint32_t first_queue = 0;  ///< from which follow the numbers of its queues
  KeysMessage windows;            ///< those it has registered already
  bool operator==(const NetworkHello&) const = default;
};
Bytes encode(const NetworkHello& hello);
Result<NetworkHello> decode_hello(ByteView bytes);
/// The number of a rank's queue to world rank `peer`; different for all peers, of one it may be 0.
/// The queues by which paths are probed have those of the ranks behind the last one.
std::uint32_t queue_number(std::uint32_t first, int peer);

}  // namespace oriel::comm
