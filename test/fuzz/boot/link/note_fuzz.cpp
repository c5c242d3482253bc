// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/notes.hpp"
#include "fuzz/input.hpp"

using namespace oriel;
using namespace oriel::boot;

// Decodes a note that passes through one of five ranks.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView bytes = view(data, size);
  const auto note = decode_note(bytes, 5);
  if (!note.ok()) return 0;
  expect(note->from >= 0 && note->from < 5 && note->to >= 0 && note->to < 5);
  expect(note->text.size() <= kMaxNoteBytes);
  expect(encode_note(*note) == Bytes(bytes.begin(), bytes.end()));
  const int hop = next_hop(note->from, note->to, 5, {0, 1, 3, 4});
  expect(hop >= -1 && hop < 5 && hop != note->from);
  return 0;
}
