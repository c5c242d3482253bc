// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "comm/network_message.hpp"
#include "input.hpp"

using namespace oriel;
using namespace oriel::comm;

// What is taken of a rank's network is encoded to the same bytes again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const ByteView input = view(data + 1, size - 1);
  const auto is_input = [&](const Bytes& again) {
    return std::equal(again.begin(), again.end(), input.begin(), input.end());
  };
  const auto hello = decode_hello(input, data[0]);
  if (hello.ok()) {
    expect(hello.value().queues.size() == data[0] && is_input(encode(hello.value())));
  }
  const auto place = decode_place(input);
  if (place.ok()) expect(is_input(encode(place.value())));
  const auto keys = decode_keys(input);
  if (keys.ok()) expect(is_input(encode(keys.value())));
  return 0;
}
