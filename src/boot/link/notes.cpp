// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/notes.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::boot {
namespace {

int ring_distance(int a, int b, int size) {
  const int ahead = ((b - a) % size + size) % size;
  return std::min(ahead, size - ahead);
}

}  // namespace

Bytes encode_note(const Note& note) {
  ByteWriter to;
  to.put(static_cast<std::int32_t>(note.from)).put(static_cast<std::int32_t>(note.to));
  to.put(note.topic).put_blob(note.text);
  return to.take();
}

Result<Note> decode_note(ByteView bytes, int size) {
  ByteReader reader(bytes);
  Note note;
  note.from = reader.get<std::int32_t>();
  note.to = reader.get<std::int32_t>();
  const auto topic = reader.get<std::uint8_t>();
  const ByteView text = reader.get_blob();
  ORIEL_CHECK(reader.finish("a note"));
  if (note.from < 0 || note.from >= size || note.to < 0 || note.to >= size) {
    return Error(ErrorCode::remote,
                 fmt::format("a note from rank {} to rank {} of {}", note.from, note.to, size));
  }
  note.topic = static_cast<NoteTopic>(topic);
  if (topic < static_cast<std::uint8_t>(NoteTopic::failover) ||
      topic > static_cast<std::uint8_t>(NoteTopic::last_call)) {
    return Error(ErrorCode::remote, fmt::format("a note of the unknown topic {}", topic));
  }
  if (text.size() > kMaxNoteBytes) {
    return Error(ErrorCode::remote,
                 fmt::format("a note of {} bytes; the limit is {}", text.size(), kMaxNoteBytes));
  }
  note.text.assign(text.begin(), text.end());
  return note;
}

int next_hop(int rank, int to, int size, const std::vector<int>& linked) {
  int best = -1, least = ring_distance(rank, to, size);
  for (const int peer : linked) {
    const int distance = ring_distance(peer, to, size);
    if (distance >= least) continue;
    least = distance;
    best = peer;
  }
  return best;
}

void NoteBox::put(Note note) {
  std::deque<Bytes>& notes = notes_[{note.from, note.topic}];
  if (notes.size() >= kMost) notes.pop_front();
  notes.push_back(std::move(note.text));
}

std::optional<Note> NoteBox::take(NoteTopic topic, int from) {
  for (auto& [place, texts] : notes_) {
    const auto& [sender, about] = place;
    if (about != topic || texts.empty() || (from != kAnyRank && from != sender)) continue;
    Note note{.from = sender, .text = std::move(texts.front()), .topic = topic};
    texts.pop_front();
    return note;
  }
  return std::nullopt;
}

}  // namespace oriel::boot
