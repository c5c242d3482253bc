// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/auth/unique_id_format.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::boot {
namespace {

constexpr std::string_view kMagic = "ORIEL-ID";
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kChecksumBytes = 8;
// Fields: magic, version, zeros, number, address, secret, padding, checksum.
constexpr std::size_t kPaddingBytes = UniqueId::kBytes - kChecksumBytes -
                                      (8 + 2 + 6 + 8 + SocketAddress::kEncodedBytes + Key::kBytes);

Error bad_id(const std::string& why) {
  return Error(ErrorCode::invalid_argument, "the unique id is not usable: " + why)
      .with_hint("pass the 128 bytes of ncclGetUniqueId unchanged to every rank");
}

}  // namespace

UniqueId::Encoded UniqueId::encode() const {
  // Reserves the full size: a buffer that grew would leave copies of the secret behind.
  ByteWriter writer(kBytes);
  writer.put_raw(std::as_bytes(std::span(kMagic))).put(kVersion).put(std::uint16_t{0});
  writer.put(std::uint32_t{0}).put(number);
  root.encode(writer);
  writer.put_raw(secret.bytes());
  writer.put_raw(std::array<std::byte, kPaddingBytes>{});
  Bytes body = writer.take();
  const Digest checksum = plain_hash(body);
  Encoded out{};
  std::copy(body.begin(), body.end(), out.begin());
  std::copy_n(checksum.begin(), kChecksumBytes, out.end() - kChecksumBytes);
  wipe(body);
  return out;
}

Result<UniqueId> UniqueId::decode(std::span<const std::byte, kBytes> bytes) {
  ByteReader reader(bytes);
  const ByteView magic = reader.get_raw(kMagic.size());
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    return bad_id(
        "it does not begin with Oriel's mark, so it comes from another library or was "
        "never filled in");
  }
  const auto version = reader.get<std::uint16_t>();
  if (version != kVersion) {
    return bad_id(
        fmt::format("it has version {}, this library reads version {}", version, kVersion));
  }
  const Digest checksum = plain_hash(bytes.first<kBytes - kChecksumBytes>());
  if (!equal_in_constant_time(bytes.last<kChecksumBytes>(),
                              ByteView(checksum).first(kChecksumBytes))) {
    return bad_id("its checksum does not fit, so it was garbled or cut on its way");
  }
  const auto reserved16 = reader.get<std::uint16_t>();
  const auto reserved32 = reader.get<std::uint32_t>();
  UniqueId id;
  id.number = reader.get<std::uint64_t>();
  auto root = SocketAddress::decode(reader);
  if (!root.ok()) return bad_id(root.error().message());
  id.root = root.value();
  const ByteView secret = reader.get_raw(Key::kBytes);
  if (secret.size() != Key::kBytes) return bad_id("it is too short");
  id.secret = Key(secret.first<Key::kBytes>());
  const ByteView padding = reader.get_raw(kPaddingBytes);
  const bool padding_is_zero = std::all_of(padding.begin(), padding.end(),
                                           [](std::byte byte) { return byte == std::byte{0}; });
  if (reserved16 != 0 || reserved32 != 0 || !padding_is_zero) {
    return bad_id("reserved bytes are set");
  }
  return id;
}

}  // namespace oriel::boot
