// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "boot/session/split_message.hpp"
#include "fuzz/input.hpp"

using namespace oriel;
using namespace oriel::boot;

// An accepted place has exactly one encoding. An accepted failure stays the same when it is
// forwarded, except for control characters.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView input = view(data, size);
  const auto place = decode_split_place(input);
  if (place.ok()) {
    const Bytes again = encode(place.value());
    expect(std::equal(again.begin(), again.end(), input.begin(), input.end()));
  }
  const auto failure = decode_split_failure(input);
  if (failure.ok()) {
    const auto again = decode_split_failure(encode(failure.value()));
    expect(again.ok() && again->child == failure->child);
    expect(again->reason.to_string() == failure->reason.to_string());
  }
  return 0;
}
