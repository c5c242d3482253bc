// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fuzz/input.hpp"
#include "net/fabric/fabric_frame.hpp"

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

// Walks the consecutive messages of a batch; each is accepted or refused.
void walk(ByteView batch, ByteView payload) {
  const std::byte* const end = batch.data() + batch.size();
  while (!batch.empty()) {
    const std::byte* const before = batch.data();
    const auto [one, has_payload_behind] = next_of_batch(batch);
    if (one.empty()) {
      static_cast<void>(decode_message(one));
      if (batch.data() == before) break;  // no length, or a length beyond the end
      continue;
    }
    expect(one.data() == before + sizeof(std::uint32_t) && one.data() + one.size() <= end);
    expect(batch.data() == one.data() + one.size());
    if (has_payload_behind) {
      const auto head = decode_head(one, one.size() + payload.size());
      expect(!head.ok() || head->bytes + head->payload_bytes == one.size() + payload.size());
    } else {
      static_cast<void>(decode_message(one));
    }
    static_cast<void>(is_at_end(batch));
  }
}

void check_frame(ByteView input) {
  const auto head = read_frame(input);
  if (!head.has_value()) return;
  expect(input.size() ==
         kFrameHeadBytes + head->batch_bytes + head->payload_bytes + head->padding_bytes);
  // A random input never contains a valid MAC.
  expect(!is_authenticated(keys(), input, *head, false));
  const ByteView body = input.subspan(kFrameHeadBytes);
  walk(body.first(head->batch_bytes), body.subspan(head->batch_bytes, head->payload_bytes));
}

// A sealed frame is read and authenticated; with one bit changed it is not.
void check_seal(ByteView input) {
  const bool authenticates_payload = input[1] != std::byte{0};
  const ByteView rest = input.subspan(2);
  // Splits the rest anywhere into batch and payload.
  const std::size_t batch_bytes =
      std::min(rest.size() * std::to_integer<std::size_t>(input[0]) / 255, kBatchBytesMost);
  const ByteView batch = rest.first(batch_bytes), payload = rest.subspan(batch_bytes);
  Bytes frame(kFrameHeadBytes);
  frame.insert(frame.end(), batch.begin(), batch.end());
  const std::size_t padding_bytes = input.size() % 3 * 100;
  const FrameHead head{1, 7, static_cast<std::uint16_t>(batch_bytes), 0, 9, padding_bytes};
  seal_frame(keys(), head, frame.data(), payload, authenticates_payload);
  frame.insert(frame.end(), payload.begin(), payload.end());
  const std::size_t meant = frame.size();
  frame.resize(meant + padding_bytes);
  walk(batch, payload);
  const auto found = read_frame(frame);
  expect(found.has_value() && found->sequence == 7 && found->batch_bytes == batch_bytes &&
         found->accepted == 9);
  expect(is_authenticated(keys(), frame, *found, authenticates_payload));
  const std::size_t sealed = authenticates_payload ? meant : kFrameHeadBytes + batch_bytes;
  frame[input.size() * 7919 % sealed] ^= std::byte{1};
  const auto changed = read_frame(frame);
  expect(!changed.has_value() || !is_authenticated(keys(), frame, *changed, authenticates_payload));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check_frame(view(data, size));
  if (size >= 2) check_seal(view(data, size));
  return 0;
}
