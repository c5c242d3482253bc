// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/auth/unique_id_format.hpp"
#include "fuzz/input.hpp"

using namespace oriel;
using namespace oriel::boot;

// Every second input gets a valid checksum, because the checksum would reject nearly all inputs.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  UniqueId::Encoded bytes{};
  const ByteView input = view(data + 1, std::min(size - 1, bytes.size()));
  std::copy(input.begin(), input.end(), bytes.begin());
  if (data[0] % 2 == 0) {
    const Digest checksum = plain_hash(ByteView(bytes).first(bytes.size() - 8));
    std::copy_n(checksum.begin(), 8, bytes.end() - 8);
  }
  const auto id = UniqueId::decode(bytes);
  // Every accepted id has exactly one encoding.
  if (id.ok()) expect(id.value().encode() == bytes);
  return 0;
}
