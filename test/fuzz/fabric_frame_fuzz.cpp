// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "input.hpp"
#include "net/fabric_frame.hpp"

using namespace oriel;
using namespace oriel::net;

namespace {

const FrameKeys& keys() {
  static const FrameKeys made = [] {
    FabricAddress from, to;
    from.id = 1;
    to.id = 2;
    return frame_keys(boot::Key(), from, to);
  }();
  return made;
}

// The messages of a batch lie in it one behind the other, and each is taken or refused.
void walk(ByteView batch) {
  const std::byte* const end = batch.data() + batch.size();
  while (!batch.empty()) {
    const std::byte* const before = batch.data();
    const ByteView one = next_of_batch(batch);
    if (one.empty()) {
      static_cast<void>(decode_message(one));
      if (batch.data() == before) break;  // no length, or one that leads beyond the end
      continue;
    }
    expect(one.data() == before + sizeof(std::uint32_t) && one.data() + one.size() <= end);
    expect(batch.data() == one.data() + one.size());
    static_cast<void>(decode_message(one));
  }
}

void check_frame(ByteView input) {
  const auto head = read_frame(input);
  if (!head.has_value()) return;
  expect(input.size() == kFrameHeadBytes + head->head_bytes + head->payload_bytes);
  expect(!head->is_batch || head->payload_bytes == 0);
  // Nobody guesses a proof.
  expect(!is_proven(keys(), input, *head, false));
  const ByteView body = input.subspan(kFrameHeadBytes);
  if (head->is_batch) {
    walk(body);
  } else {
    static_cast<void>(decode_message(body));
  }
}

// What is sealed is read and proven, and not with a bit changed.
void check_seal(ByteView input) {
  const bool is_batch = input[0] != std::byte{0};
  const bool proves = input[1] != std::byte{0};
  ByteView rest = input.subspan(2);
  const std::size_t head_bytes =
      std::min(rest.size(), is_batch ? kBatchBytesMost : kWireHeadBytesMost);
  Bytes frame(kFrameHeadBytes + head_bytes);
  const ByteView head = rest.first(head_bytes);
  const ByteView payload = is_batch ? ByteView() : rest.subspan(head_bytes);
  if (is_batch) {
    std::copy(head.begin(), head.end(), frame.begin() + kFrameHeadBytes);
    seal_batch(keys(), 1, 7, frame.data(), head_bytes);
    walk(ByteView(frame).subspan(kFrameHeadBytes));
  } else {
    expect(seal_frame(keys(), 1, 7, head, payload, proves, frame.data()) == frame.size());
    frame.insert(frame.end(), payload.begin(), payload.end());
  }
  const auto found = read_frame(frame);
  expect(found.has_value() && found->sequence == 7 && found->is_batch == is_batch);
  expect(is_proven(keys(), frame, *found, proves));
  const std::size_t sealed =
      proves && !is_batch ? frame.size() : kFrameHeadBytes + found->head_bytes;
  frame[input.size() * 7919 % sealed] ^= std::byte{1};
  const auto changed = read_frame(frame);
  expect(!changed.has_value() || !is_proven(keys(), frame, *changed, proves));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check_frame(view(data, size));
  if (size >= 2) check_seal(view(data, size));
  return 0;
}
