// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/request/reported_call.hpp"
#include "fuzz/input.hpp"

using namespace oriel;
using namespace oriel::comm;

// Decodes another rank's description of its last call.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView bytes = view(data, size);
  const auto call = decode_reported_call(bytes);
  if (!call.ok()) return 0;
  expect(encode(*call) == Bytes(bytes.begin(), bytes.end()));
  expect(!text_of(*call).empty() && text_of(*call).find("unknown") == std::string::npos);
  return 0;
}
