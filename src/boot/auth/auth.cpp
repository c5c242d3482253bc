// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/auth/auth.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

namespace oriel::boot {
namespace {

constexpr std::string_view kChallengeMagic = "ORIEL-CH";
constexpr std::string_view kResponseMagic = "ORIEL-RE";
constexpr std::uint16_t kHandshakeVersion = 1;
constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kResponseBeforeMac = AuthSizes::kResponse - std::tuple_size_v<Digest>;

template <std::size_t kSize>
std::array<std::byte, kSize> to_array(Bytes bytes) {
  std::array<std::byte, kSize> out{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), kSize), out.begin());
  return out;
}

void put_header(ByteWriter& writer, std::string_view magic, KeyPurpose purpose) {
  writer.put_raw(std::as_bytes(std::span(magic)));
  writer.put(kHandshakeVersion).put(purpose).put(std::uint32_t{0});
}

Status check_header(ByteReader& reader, std::string_view magic, KeyPurpose purpose) {
  const ByteView mark = reader.get_raw(magic.size());
  if (mark.size() != magic.size() || std::memcmp(mark.data(), magic.data(), magic.size()) != 0) {
    return Error(ErrorCode::invalid_argument, "the peer does not speak Oriel's handshake")
        .with_hint("another program has the peer's address and port: make a new unique id");
  }
  const auto version = reader.get<std::uint16_t>();
  if (version != kHandshakeVersion) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("the peer's handshake has version {}, ours is {}", version,
                             kHandshakeVersion))
        .with_hint("use the same version of Oriel on every rank");
  }
  const auto theirs = reader.get<std::uint16_t>();
  const auto reserved = reader.get<std::uint32_t>();
  if (theirs != static_cast<std::uint16_t>(purpose) || reserved != 0) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("the peer's handshake is for purpose {}, ours for {}", theirs,
                             static_cast<int>(purpose)))
        .with_hint("give all ranks the same unique id, and the same version of Oriel");
  }
  return {};
}

Error wrong_secret(std::uint64_t realm) {
  return Error(ErrorCode::invalid_argument,
               fmt::format("the peer does not hold the secret of communicator {:#x}", realm))
      .with_hint("pass the 128 bytes of ncclGetUniqueId unchanged to every rank");
}

Digest mac(std::string_view label, const Key& key, ByteView challenge, ByteView response) {
  return keyed_hash(
      key, {std::as_bytes(std::span(label)), challenge, response.first(kResponseBeforeMac)});
}

Digest initiator_mac(const Key& key, ByteView challenge, ByteView response) {
  return mac("oriel initiator proves", key, challenge, response);
}

Digest responder_mac(const Key& key, ByteView challenge, ByteView response) {
  return mac("oriel responder proves", key, challenge, response);
}

}  // namespace

AuthResponder::AuthResponder(KeyPurpose purpose) : purpose_(purpose) {
  std::array<std::byte, kNonceBytes> nonce;
  fill_random(nonce);
  ByteWriter writer;
  put_header(writer, kChallengeMagic, purpose);
  writer.put_raw(nonce);
  challenge_ = to_array<AuthSizes::kChallenge>(writer.take());
}

Result<AuthConfirmation> AuthResponder::answer(
    std::span<const std::byte, AuthSizes::kResponse> response, const KeyLookup& lookup) {
  ByteReader reader(response);
  if (Status header = check_header(reader, kResponseMagic, purpose_); !header.ok()) {
    return std::move(header).error();
  }
  const auto realm = reader.get<std::uint64_t>();
  const AuthClaim claim = {.from = reader.get<std::int32_t>(),
                           .to = reader.get<std::int32_t>(),
                           .tag = reader.get<std::uint64_t>()};
  const Key* key = lookup(realm);
  if (key == nullptr) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("the peer asks for communicator {:#x}, which is unknown here", realm))
        .with_hint("give all ranks of a communicator the same unique id");
  }
  const Digest expected = initiator_mac(*key, challenge_, response);
  if (!equal_in_constant_time(expected, response.last<std::tuple_size_v<Digest>>())) {
    return wrong_secret(realm);
  }
  realm_ = realm;
  claim_ = claim;
  return responder_mac(*key, challenge_, response);
}

AuthInitiator::AuthInitiator(KeyPurpose purpose, std::uint64_t realm, const Key& key,
                             AuthClaim claim)
    : purpose_(purpose), realm_(realm), key_(key), claim_(claim) {}

Result<AuthResponse> AuthInitiator::respond(
    std::span<const std::byte, AuthSizes::kChallenge> challenge) {
  ByteReader reader(challenge);
  if (Status header = check_header(reader, kChallengeMagic, purpose_); !header.ok()) {
    return std::move(header).error();
  }
  std::array<std::byte, kNonceBytes> nonce;
  fill_random(nonce);
  ByteWriter writer;
  put_header(writer, kResponseMagic, purpose_);
  writer.put(realm_).put(claim_.from).put(claim_.to).put(claim_.tag).put_raw(nonce);
  AuthResponse response = to_array<AuthSizes::kResponse>(writer.take());
  const Digest mine = initiator_mac(key_, challenge, response);
  std::copy(mine.begin(), mine.end(), response.begin() + kResponseBeforeMac);
  expected_ = responder_mac(key_, challenge, response);
  return response;
}

Status AuthInitiator::confirm(std::span<const std::byte, AuthSizes::kConfirmation> confirmation) {
  if (!equal_in_constant_time(expected_, confirmation)) {
    return wrong_secret(realm_);
  }
  return {};
}

}  // namespace oriel::boot
