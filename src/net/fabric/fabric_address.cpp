// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/fabric_address.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {
namespace {

constexpr std::uint32_t kAddressMagic = 0x4146524f;  // ORFA
constexpr std::uint16_t kAddressVersion = 1;
constexpr std::uint16_t kAuthenticatesPayloads = 1;

Error bad_address(const char* field, std::uint64_t value, const std::string& wanted) {
  return Error(ErrorCode::remote,
               fmt::format("a fabric address has {} {}; it must be {}", field, value, wanted));
}

}  // namespace

Bytes encode(const FabricAddress& address) {
  ByteWriter to;
  to.put(kAddressMagic).put(kAddressVersion);
  to.put(address.authenticates_payloads ? kAuthenticatesPayloads : std::uint16_t{0});
  to.put(address.id).put_raw(address.nonce);
  to.put(address.payload_bytes_most).put(address.format);
  to.put_string(address.provider).put_blob(address.address);
  return to.take();
}

Result<FabricAddress> decode_fabric_address(ByteView bytes) {
  ByteReader from(bytes);
  FabricAddress address;
  const auto magic = from.get<std::uint32_t>();
  const auto version = from.get<std::uint16_t>();
  const auto flags = from.get<std::uint16_t>();
  address.id = from.get<std::uint64_t>();
  const ByteView nonce = from.get_raw(address.nonce.size());
  std::copy(nonce.begin(), nonce.end(), address.nonce.begin());
  address.payload_bytes_most = from.get<std::uint32_t>();
  address.format = from.get<std::uint32_t>();
  const ByteView provider = from.get_blob();
  const ByteView where = from.get_blob();
  ORIEL_CHECK(from.finish("a fabric address"));
  if (magic != kAddressMagic)
    return bad_address("a beginning", magic, std::to_string(kAddressMagic));
  if (version != kAddressVersion)
    return bad_address("version", version, std::to_string(kAddressVersion));
  if (flags > kAuthenticatesPayloads) return bad_address("flags", flags, "0 or 1");
  if (address.id == 0) return bad_address("an id", 0, "another");
  if (address.payload_bytes_most == 0 || address.payload_bytes_most > kPieceBytesMost) {
    return bad_address("a largest payload of bytes", address.payload_bytes_most,
                       fmt::format("1 to {}", kPieceBytesMost));
  }
  if (provider.empty() || provider.size() > FabricAddress::kProviderBytesMost) {
    return bad_address("a provider's name of bytes", provider.size(),
                       fmt::format("1 to {}", FabricAddress::kProviderBytesMost));
  }
  const auto is_printable = [](std::byte c) { return c > std::byte{' '} && c < std::byte{127}; };
  if (!std::all_of(provider.begin(), provider.end(), is_printable)) {
    return Error(ErrorCode::remote,
                 fmt::format("a fabric address has a provider's name of {} bytes, of which some "
                             "cannot be printed",
                             provider.size()));
  }
  if (where.empty() || where.size() > FabricAddress::kAddressBytesMost) {
    return bad_address("an address of bytes", where.size(),
                       fmt::format("1 to {}", FabricAddress::kAddressBytesMost));
  }
  address.authenticates_payloads = flags == kAuthenticatesPayloads;
  address.provider.assign(reinterpret_cast<const char*>(provider.data()), provider.size());
  address.address.assign(where.begin(), where.end());
  return address;
}

}  // namespace oriel::net
