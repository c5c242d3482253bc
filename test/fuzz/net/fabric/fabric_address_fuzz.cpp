// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fuzz/input.hpp"
#include "net/fabric/fabric_address.hpp"

using namespace oriel;
using namespace oriel::net;

// An accepted address of a peer's fabric wire is encoded to the same bytes again and respects its
// limits.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView input = view(data, size);
  const auto address = decode_fabric_address(input);
  if (!address.ok()) {
    expect(!address.error().message().empty());
    return 0;
  }
  const FabricAddress& found = address.value();
  expect(found.id != 0 && found.payload_bytes_most != 0);
  expect(!found.provider.empty() && found.provider.size() <= FabricAddress::kProviderBytesMost);
  expect(!found.address.empty() && found.address.size() <= FabricAddress::kAddressBytesMost);
  expect(size <= FabricAddress::kEncodedBytesMost);
  const Bytes again = encode(found);
  expect(std::equal(again.begin(), again.end(), input.begin(), input.end()));
  expect(!decode_fabric_address(input.first(size - 1)).ok());
  return 0;
}
