// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

namespace oriel::boot {

inline constexpr std::size_t kMaxNoteBytes = 1024;

/// A short message from any rank to any other, outside of all operations: it goes from link to link
/// towards its receiver, whoever pumps these, and may be lost on the way (where a link is slow, or
/// its receiver does not take what came before), but is neither changed nor repeated.
struct Note {
  int from = 0;
  int to = 0;
  Bytes text;
};
Bytes encode_note(const Note& note);
/// ErrorCode::remote if it is not well formed or names a rank that is none of `size`.
Result<Note> decode_note(ByteView bytes, int size);

/// Where a note for rank `to` goes next from rank `rank`: the linked rank that is nearest to `to`
/// on the ring of ranks, if that is nearer than this one; -1 if none is. Each hop comes nearer, so
/// no note goes round. With links at distance 1, 2, 4 and so on there are at most log2(size) hops.
int next_hop(int rank, int to, int size, const std::vector<int>& linked);

/// Notes that have arrived. Of each sender the last kMost are kept. Not thread-safe.
class NoteBox {
 public:
  static constexpr std::size_t kMost = 64;
  void put(Note note);
  /// The oldest one of this sender.
  std::optional<Bytes> take(int from);

 private:
  std::map<int, std::deque<Bytes>> notes_;
};

}  // namespace oriel::boot
