// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/network.hpp"
#include "oriel/device/queue.hpp"

namespace oriel::kernels {

/// Data that a peer of another node receives before a word. Offsets are in scratch memory.
struct Ahead {
  const std::byte* from = nullptr;  ///< address of the data in this rank's scratch memory
  std::uint64_t staged = 0;         ///< offset of `from`
  std::uint64_t to = 0;
  std::uint64_t bytes = 0;
};

/// Returns no data, for words that are sent alone.
struct NothingAhead {
  ORIEL_DEVICE_FN Ahead operator()(std::int32_t /*peer*/) const { return {}; }
};

/// Reaches the scratch memory of ranks of other nodes.
struct FarScratch {
  const device::NetworkView& network;
  const device::NetworkWindow& window;
  const device::WaitControl& wait;
};

/// Posts a put of the data, if any, and of the word; the group calls. At most kInlineBytesMost
/// bytes of data are inline in the WQE, so the NIC need not fetch them. Returns false if the queue
/// has failed. Blocks only while the queue is full.
template <class Group, class M>
ORIEL_DEVICE_FN bool post_word(const FarScratch& far, std::int32_t peer, const Ahead& ahead,
                               std::uint64_t word, std::uint64_t offset) {
  namespace q = device::queue;
  const q::QueueView& queue = far.network.queues[peer];
  const q::Region& there = far.window.peers[peer];
  q::Posted posted;
  if (ahead.bytes == 0) {
    posted = q::put_value<Group, std::uint64_t, M>(Group(), queue, word, there, offset, far.wait);
  } else if (ahead.bytes <= q::kInlineBytesMost) {
    posted = q::put_bytes_with_value<Group, std::uint64_t, M>(
        Group(), queue, ahead.from, ahead.bytes, there, ahead.to, word, offset, far.wait);
  } else {
    const q::Transfer transfer{far.window.local, ahead.staged, there, ahead.to, ahead.bytes};
    posted = q::put_with_value<Group, std::uint64_t, M>(Group(), queue, transfer, word, offset,
                                                        far.wait);
  }
  return posted.outcome == q::QueueOutcome::done;
}

}  // namespace oriel::kernels
