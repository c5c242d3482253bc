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

/// Mutual proof of a shared key, as a state machine: bytes in, bytes out. Three messages of fixed
/// size, so that nothing is allocated or interpreted before the proof:
///
///   responder -> initiator  challenge     magic, version, purpose, fresh nonce
///   initiator -> responder  response      magic, version, purpose, realm, claim, fresh nonce,
///   proof responder -> initiator  confirmation  proof
///
/// Both proofs are keyed hashes over the challenge and the response without its proof, each with a
/// label for its direction, so neither a replay (the nonces differ) nor a reflection (the labels
/// differ) nor a proof for another purpose (the keys differ) is accepted.
namespace oriel::boot {

/// Who connects to whom; covered by the proofs. What the numbers mean is up to the purpose: world
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

/// Sent instead of the confirmation before the connection is closed, whatever is wrong with the
/// proof. A connection that is closed without a word says nothing of the proof: it may be made
/// again.
inline constexpr std::array kProofRefused = {std::byte{0x52}};

/// The side that accepts a connection. Once answer() has succeeded the initiator has proved the
/// key.
class AuthResponder {
 public:
  /// The key of a realm (the number in the unique id), null for an unknown one.
  using KeyLookup = std::function<const Key*(std::uint64_t realm)>;

  explicit AuthResponder(KeyPurpose purpose);

  const AuthChallenge& challenge() const { return challenge_; }
  /// Checks the response; the confirmation to send, or invalid_argument. The error says no more
  /// than which field was wrong, and the peer does not learn it.
  Result<AuthConfirmation> answer(std::span<const std::byte, AuthSizes::kResponse> response,
                                  const KeyLookup& lookup);

  /// Of the proven initiator; require answer() to have succeeded.
  const AuthClaim& claim() const { return claim_; }
  std::uint64_t realm() const { return realm_; }

 private:
  KeyPurpose purpose_;
  AuthChallenge challenge_;
  AuthClaim claim_;
  std::uint64_t realm_ = 0;
};

/// The side that connects. The responder has proved the key once confirm() has succeeded.
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
