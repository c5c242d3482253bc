// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

namespace oriel::boot {

inline constexpr std::size_t kMaxNoteBytes = 1024;
inline constexpr int kAnyRank = -1;

/// Topic of a note; each topic has its own mailbox.
enum class NoteTopic : std::uint8_t {
  failover = 1,   ///< queues between two ranks change their path
  split = 2,      ///< a rank cannot link to the others of a communicator that a split creates
  last_call = 3,  ///< the last call of a rank that others wait for
};

/// Short message from any rank to any other, outside of all operations. Each rank on the way
/// forwards it when its links are pumped. A note may be lost if a link is slow or the receiver does
/// not read. It is neither changed nor duplicated.
struct Note {
  int from = 0;
  int to = 0;
  Bytes text;
  NoteTopic topic = NoteTopic::failover;
};
Bytes encode_note(const Note& note);
/// Decodes a note. Returns ErrorCode::remote if it is malformed, has an unknown topic, or names a
/// rank outside of `size`.
Result<Note> decode_note(ByteView bytes, int size);

/// Returns the next hop from `rank` for a note to rank `to`. This is the linked rank nearest to
/// `to` on the ring of ranks, if it is nearer than `rank`; else -1. Each hop comes nearer, so notes
/// do not loop. With links at distances 1, 2, 4 and so on, a note takes at most log2(size) hops.
int next_hop(int rank, int to, int size, const std::vector<int>& linked);

/// Mailboxes of received notes. Keeps the last kMost of each sender and topic. Not thread-safe.
class NoteBox {
 public:
  static constexpr std::size_t kMost = 64;
  void put(Note note);
  /// Returns the oldest note of this topic from rank `from`. With kAnyRank, takes it from the
  /// lowest rank that has one.
  std::optional<Note> take(NoteTopic topic, int from);

 private:
  std::map<std::pair<int, NoteTopic>, std::deque<Bytes>> notes_;
};

}  // namespace oriel::boot
