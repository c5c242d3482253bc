// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "boot/auth/secret.hpp"

/// Proves to each other that both ends hold a key, as a state machine: bytes in, bytes out. The
/// messages have fixed sizes, so no buffer grows with what a peer sends. Before the MAC is
/// checked, only the header and the realm are interpreted. The messages are:
///
///   - challenge, responder to initiator: magic, version, purpose, nonce;
///   - response, initiator to responder: magic, version, purpose, realm, claim, nonce, MAC;
///   - confirmation, responder to initiator: MAC.
///
/// Each MAC (message authentication code) is a keyed hash over the challenge and the response
/// without its MAC field. The nonces rule out replays. A label for the direction rules out
/// reflections. A key for each purpose rules out MACs that were made for another purpose.
namespace oriel::boot {

/// Names both ends of the connection; covered by the MACs. The purpose defines the numbers: world
/// ranks for links.
struct AuthClaim {
  std::int32_t from = -1;
  std::int32_t to = -1;
  std::uint64_t tag = 0;
  bool operator==(const AuthClaim&) const = default;
};

struct AuthSizes {
  static constexpr std::size_t kChallenge = 48;
  static constexpr std::size_t kResponse = 104;
  static constexpr std::size_t kConfirmation = 32;
};
using AuthChallenge = std::array<std::byte, AuthSizes::kChallenge>;
using AuthResponse = std::array<std::byte, AuthSizes::kResponse>;
using AuthConfirmation = std::array<std::byte, AuthSizes::kConfirmation>;

/// Refusal byte, sent instead of the confirmation before the connection is closed. A connection
/// that closes without this byte says nothing about the MAC, so the initiator may retry.
inline constexpr std::array kAuthRefused = {std::byte{0x52}};

/// Accepting side. If answer() succeeds, the initiator has proved the key.
class AuthResponder {
 public:
  /// Returns the key of a realm (the number in the unique id); null if the realm is unknown.
  using KeyLookup = std::function<const Key*(std::uint64_t realm)>;

  explicit AuthResponder(KeyPurpose purpose);

  const AuthChallenge& challenge() const { return challenge_; }
  /// Checks the response. Returns the confirmation to send, or invalid_argument with the reason,
  /// which must not be sent to the peer.
  Result<AuthConfirmation> answer(std::span<const std::byte, AuthSizes::kResponse> response,
                                  const KeyLookup& lookup);

  /// Claim and realm of the authenticated initiator; both require that answer() has succeeded.
  const AuthClaim& claim() const { return claim_; }
  std::uint64_t realm() const { return realm_; }

 private:
  KeyPurpose purpose_;
  AuthChallenge challenge_;
  AuthClaim claim_;
  std::uint64_t realm_ = 0;
};

/// Connecting side. If confirm() succeeds, the responder has proved the key.
class AuthInitiator {
 public:
  AuthInitiator(KeyPurpose purpose, std::uint64_t realm, const Key& key, AuthClaim claim);

  Result<AuthResponse> respond(std::span<const std::byte, AuthSizes::kChallenge> challenge);
  Status confirm(std::span<const std::byte, AuthSizes::kConfirmation> confirmation);

 private:
  KeyPurpose purpose_;
  std::uint64_t realm_;
  Key key_;
  AuthClaim claim_;
  Digest expected_{};
};

}  // namespace oriel::boot
