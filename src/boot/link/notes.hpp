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

/// Who reads a note: each topic has a mailbox of its own.
enum class NoteTopic : std::uint8_t {
  failover = 1,   ///< queues between two ranks change their path
  split = 2,      ///< a rank cannot link to the others of a communicator that a split makes
  last_call = 3,  ///< what a rank that is waited for has called last
};

/// A short message from any rank to any other, outside of all operations: it goes from link to link
/// towards its receiver, whoever pumps these, and may be lost on the way (where a link is slow, or
/// its receiver does not take what came before), but is neither changed nor repeated.
struct Note {
  int from = 0;
  int to = 0;
  Bytes text;
  NoteTopic topic = NoteTopic::failover;
};
Bytes encode_note(const Note& note);
/// ErrorCode::remote if it is malformed, of an unknown topic, or names a rank that is none of
/// `size`.
Result<Note> decode_note(ByteView bytes, int size);

/// Where a note for rank `to` goes next from rank `rank`: the linked rank that is nearest to `to`
/// on the ring of ranks, if that is nearer than this one; -1 if none is. Each hop comes nearer, so
/// no note goes round. With links at distance 1, 2, 4 and so on there are at most log2(size) hops.
int next_hop(int rank, int to, int size, const std::vector<int>& linked);

/// Notes that have arrived. The last kMost of each sender and topic are kept. Not thread-safe.
class NoteBox {
 public:
  static constexpr std::size_t kMost = 64;
  void put(Note note);
  /// Returns the oldest note of this topic from rank `from`, or with kAnyRank from any one rank.
  std::optional<Note> take(NoteTopic topic, int from);

 private:
  std::map<std::pair<int, NoteTopic>, std::deque<Bytes>> notes_;
};

}  // namespace oriel::boot
