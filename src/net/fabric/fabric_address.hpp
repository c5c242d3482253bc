// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

namespace oriel::net {

/// Address of one end of a fabric wire, sent to the others over the bootstrap's authenticated
/// links. It says how to reach the end and holds what authenticates frames between two ends.
/// Encoding, with all numbers little-endian:
///
///     u32 magic, u16 version, u16 flags, u64 id, 32 bytes nonce, u32 payload_bytes_most,
///     u32 format, u32 length and provider's name, u32 length and address
struct FabricAddress {
  static constexpr std::size_t kProviderBytesMost = 64;
  static constexpr std::size_t kAddressBytesMost = 256;
  static constexpr std::size_t kEncodedBytesMost = 64 + kProviderBytesMost + kAddressBytesMost;

  std::uint64_t id = 0;                  ///< value of the WireAddress: random, never 0
  std::array<std::byte, 32> nonce{};     ///< random, drawn anew for each end
  bool authenticates_payloads = false;   ///< this end sends and wants MACs of payloads
  std::uint32_t payload_bytes_most = 0;  ///< largest payload of a message to this end
  std::uint32_t format = 0;              ///< libfabric's number for the format of `address`
  std::string provider;
  Bytes address;

  bool operator==(const FabricAddress&) const = default;
};

Bytes encode(const FabricAddress& address);
/// Decodes all of `bytes`. The error names the wrong field, or says that the length is wrong. Each
/// value has exactly one encoding.
Result<FabricAddress> decode_fabric_address(ByteView bytes);

}  // namespace oriel::net
