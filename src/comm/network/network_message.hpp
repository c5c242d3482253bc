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

/// Messages in which ranks describe their NICs. Each received message is checked completely; errors
/// do not name the rank.
namespace oriel::comm {

/// Location of a rank, sent first. The locations of all ranks decide which wire joins which ranks,
/// and by how many paths.
struct NetworkPlace {
  std::uint64_t machine = 0;  ///< hash of the machine and its boot, independent of the node setting
  /// One interface per path of this rank, 1 to net::kPathsMost, in order of preference.
  std::vector<PathInterface> interfaces = std::vector<PathInterface>(1);
  bool operator==(const NetworkPlace&) const = default;
};
Bytes encode(const NetworkPlace& place);
/// Refuses invalid networks, too many of them, and an invalid number of paths.
Result<NetworkPlace> decode_place(ByteView bytes);
/// Returns the number of ranks on the machine of rank `self`, itself included.
int ranks_beside(std::span<const NetworkPlace> places, std::size_t self);

/// Message of a rank with a software NIC to all others, sent after the places.
struct NetworkHello {
  window::FdSocketName socket{};  ///< socket on which it listens, if it has peers by shared memory
  std::vector<Bytes> fabrics;     ///< by NIC, the addresses of its fabric wires, if any
  std::uint32_t first_queue = 0;  ///< base of the numbers of its queues, see queue_number()
  KeysMessage windows;            ///< keys of the windows registered so far
  bool operator==(const NetworkHello&) const = default;
};
Bytes encode(const NetworkHello& hello);
Result<NetworkHello> decode_hello(ByteView bytes);
/// Returns the number of a rank's queue to world rank `peer`. The numbers differ for all peers; one
/// of them may be 0. For the queue that probes the paths to a peer, pass `peer` + the number of
/// ranks.
std::uint32_t queue_number(std::uint32_t first, int peer);

}  // namespace oriel::comm
