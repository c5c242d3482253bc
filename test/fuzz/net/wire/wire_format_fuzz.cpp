// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fuzz/input.hpp"
#include "net/wire/wire_format.hpp"

using namespace oriel;
using namespace oriel::net;

// An accepted message is encoded to the same bytes again; no shorter or longer input is accepted
// for it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView input = view(data, size);
  const Result<WireMessage> message = decode_message(input);
  if (!message.ok()) {
    expect(!message.error().message().empty());
    return 0;
  }
  const Bytes again = encode_message(message.value());
  expect(std::equal(again.begin(), again.end(), input.begin(), input.end()));
  expect(encode_head(message.value()).size() + payload_of(message.value()).size() == size);
  expect(!decode_message(input.first(size - 1)).ok());
  Bytes longer(input.begin(), input.end());
  longer.push_back(std::byte{0});
  expect(!decode_message(longer).ok());
  return 0;
}
