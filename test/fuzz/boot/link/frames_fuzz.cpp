// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "boot/link/frame.hpp"
#include "boot/link/liveness.hpp"
#include "fuzz/input.hpp"

using namespace oriel;
using namespace oriel::boot;

// Feeds a stream of frames, cut at the offset in the first byte, into a rank's Liveness.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::size_t cut = std::min<std::size_t>(size - 1, data[0]);
  const ByteView stream = view(data + 1, size - 1);
  FrameReader reader;
  std::vector<Frame> frames;
  const bool fed =
      reader.feed(stream.first(cut), frames).ok() && reader.feed(stream.subspan(cut), frames).ok();
  FrameReader at_once;
  std::vector<Frame> same;
  expect(at_once.feed(stream, same).ok() == fed);
  expect(same.size() == frames.size());

  Liveness liveness(1, 5);
  std::size_t bytes = 0;
  for (const Frame& frame : frames) {
    bytes += frame.payload.size() + kFrameHeaderBytes;
    if (frame.kind == FrameKind::message || frame.kind > FrameKind::stuck) continue;
    static_cast<void>(liveness.receive(frame));
    // Forwarded notices are well-formed.
    for (const Bytes& notice : liveness.take_outgoing()) {
      FrameReader again;
      std::vector<Frame> one;
      expect(again.feed(notice, one).ok() && one.size() == 1);
      expect(one[0].payload.size() + kFrameHeaderBytes == notice.size());
      Liveness other(0, 5);
      expect(other.receive(one[0]).ok());
    }
  }
  expect(bytes <= stream.size());
  static_cast<void>(liveness.everything());
  static_cast<void>(liveness.end_of_chain(0));
  return 0;
}
