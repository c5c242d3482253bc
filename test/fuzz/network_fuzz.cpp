// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "comm/network_message.hpp"
#include "input.hpp"

using namespace oriel;
using namespace oriel::comm;

// What is taken of a rank's network is encoded to the same bytes again, and paths are chosen by it.
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
    const auto& told = place->interfaces;
    expect(pair_paths(told, told, true).size() == told.size());
  }
  const auto keys = decode_keys(input);
  if (keys.ok()) expect(is_input(encode(keys.value())));
  return 0;
}
