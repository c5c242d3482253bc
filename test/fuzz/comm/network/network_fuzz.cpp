// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <vector>

#include "comm/keys/key_chunks.hpp"
#include "comm/network/network_message.hpp"
#include "fuzz/input.hpp"

using namespace oriel;
using namespace oriel::comm;

namespace {

/// Windows in pieces can be cut for a key table, and each chunk has one key.
void check_pieces(const KeysMessage& message) {
  for (const WindowKey& window : message.keys) {
    std::vector<std::uint64_t> ends;
    for (const WindowPiece& piece : window.later_pieces) ends.push_back(piece.begin);
    const KeyChunks chunks = cut_at(window.bytes, ends);
    const std::uint64_t chunk = std::uint64_t{1} << chunks.shift;
    expect(chunks.skip < chunk && chunks.count >= 1 && chunks.count <= kChunksMost);
    for (const std::uint64_t end : ends) {
      expect((chunks.skip + end) % chunk == 0);
      expect((chunks.skip + end) >> chunks.shift < chunks.count);
    }
  }
}

}  // namespace

// Accepted messages about a rank's network are encoded to the same bytes again, and paths can be
// chosen from them.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView input = view(data, size);
  const auto is_input = [&](const Bytes& again) {
    return std::equal(again.begin(), again.end(), input.begin(), input.end());
  };
  const auto hello = decode_hello(input);
  if (hello.ok()) expect(is_input(encode(hello.value())));
  const auto place = decode_place(input);
  if (place.ok()) {
    expect(is_input(encode(place.value())));
    const auto& ours = place->interfaces;
    expect(pair_paths(ours, ours, true).size() == ours.size());
  }
  const auto keys = decode_keys(input);
  if (keys.ok()) {
    expect(is_input(encode(keys.value())));
    check_pieces(keys.value());
  }
  return 0;
}
