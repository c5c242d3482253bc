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

/// What one end of a fabric wire tells the others, over the bootstrap's proven links: where it is,
/// and what they need to prove to each other who sends. As bytes, all numbers little-endian:
///
///     u32 magic, u16 version, u16 flags, u64 id, 32 bytes nonce, u32 payload_bytes_most,
///     u32 format, u32 length and provider's name, u32 length and address
struct FabricAddress {
  static constexpr std::size_t kProviderBytesMost = 64;
  static constexpr std::size_t kAddressBytesMost = 256;
  static constexpr std::size_t kEncodedBytesMost = 64 + kProviderBytesMost + kAddressBytesMost;

  std::uint64_t id = 0;                  ///< a WireAddress: random, never 0
  std::array<std::byte, 32> nonce{};     ///< random: another one each time an end is made
  bool proves_payloads = false;          ///< it sends, and wants, proofs of payloads too
  std::uint32_t payload_bytes_most = 0;  ///< that it has room for in one message
  std::uint32_t format = 0;              ///< of the address: libfabric's number
  std::string provider;
  Bytes address;

  bool operator==(const FabricAddress&) const = default;
};

Bytes encode(const FabricAddress& address);
/// All of `bytes`. The error names the field that is wrong. A value has one encoding only.
Result<FabricAddress> decode_fabric_address(ByteView bytes);

}  // namespace oriel::net
