// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/auth/auth.hpp"

#include <array>
#include <vector>

#include <catch2/catch.hpp>

namespace oriel::boot {
namespace {

constexpr std::uint64_t kRealm = 77;
const AuthClaim kClaim = {.from = 3, .to = 1, .tag = 9};

AuthResponder::KeyLookup lookup(const Key& key) {
  return [&key](std::uint64_t realm) { return realm == kRealm ? &key : nullptr; };
}

}  // namespace

TEST_CASE("both sides prove the key, and the responder learns the claim", "[req:1.8]") {
  const Key key = Key::random();
  AuthResponder responder(KeyPurpose::link);
  AuthInitiator initiator(KeyPurpose::link, kRealm, key, kClaim);
  const auto response = initiator.respond(responder.challenge());
  REQUIRE(response.ok());
  const auto confirmation = responder.answer(response.value(), lookup(key));
  REQUIRE(confirmation.ok());
  CHECK(initiator.confirm(confirmation.value()).ok());
  CHECK(responder.claim() == kClaim);
  CHECK(responder.realm() == kRealm);
}

TEST_CASE("any changed bit of any message is refused", "[req:1.8]") {
  const Key key = Key::random();
  for (std::size_t bit = 0; bit < 8 * AuthSizes::kChallenge; ++bit) {
    AuthResponder responder(KeyPurpose::link);
    AuthInitiator initiator(KeyPurpose::link, kRealm, key, kClaim);
    AuthChallenge challenge = responder.challenge();
    challenge[bit / 8] ^= std::byte(1 << bit % 8);
    const auto response = initiator.respond(challenge);
    if (response.ok()) CHECK_FALSE(responder.answer(response.value(), lookup(key)).ok());
  }
  for (std::size_t bit = 0; bit < 8 * AuthSizes::kResponse; ++bit) {
    AuthResponder responder(KeyPurpose::link);
    AuthInitiator initiator(KeyPurpose::link, kRealm, key, kClaim);
    auto response = initiator.respond(responder.challenge());
    REQUIRE(response.ok());
    response.value()[bit / 8] ^= std::byte(1 << bit % 8);
    CHECK_FALSE(responder.answer(response.value(), lookup(key)).ok());
  }
  for (std::size_t bit = 0; bit < 8 * AuthSizes::kConfirmation; ++bit) {
    AuthResponder responder(KeyPurpose::link);
    AuthInitiator initiator(KeyPurpose::link, kRealm, key, kClaim);
    const auto response = initiator.respond(responder.challenge());
    REQUIRE(response.ok());
    auto confirmation = responder.answer(response.value(), lookup(key));
    REQUIRE(confirmation.ok());
    confirmation.value()[bit / 8] ^= std::byte(1 << bit % 8);
    CHECK_FALSE(initiator.confirm(confirmation.value()).ok());
  }
}

TEST_CASE("a response is refused with another key, realm or purpose, and when it is replayed",
          "[req:1.8]") {
  const Key key = Key::random();
  const Key other = Key::random();
  const AuthResponder first(KeyPurpose::link);
  AuthInitiator initiator(KeyPurpose::link, kRealm, key, kClaim);
  const auto response = initiator.respond(first.challenge());
  REQUIRE(response.ok());

  AuthResponder again(KeyPurpose::link);  // has another nonce
  CHECK_FALSE(again.answer(response.value(), lookup(key)).ok());

  AuthResponder wrong_key = first;
  CHECK_FALSE(wrong_key.answer(response.value(), lookup(other)).ok());
  AuthResponder unknown = first;
  CHECK_FALSE(unknown.answer(response.value(), [](std::uint64_t) { return nullptr; }).ok());

  AuthResponder other_purpose(KeyPurpose::rendezvous);
  AuthInitiator confused(KeyPurpose::link, kRealm, key, kClaim);
  CHECK_FALSE(confused.respond(other_purpose.challenge()).ok());

  // A responder without the key can only echo the response.
  AuthResponder honest = first;
  REQUIRE(honest.answer(response.value(), lookup(key)).ok());
  AuthConfirmation echo{};
  std::copy(response.value().end() - AuthSizes::kConfirmation, response.value().end(),
            echo.begin());
  CHECK_FALSE(initiator.confirm(echo).ok());
}

TEST_CASE("keys differ by purpose and by communicator", "[req:1.8]") {
  const Key secret = Key::random();
  const auto bytes = [&](KeyPurpose purpose, std::uint64_t realm) {
    const Key key = Key::derive(secret, purpose, realm);
    return std::vector<std::byte>(key.bytes().begin(), key.bytes().end());
  };
  CHECK(bytes(KeyPurpose::link, 1) == bytes(KeyPurpose::link, 1));
  CHECK(bytes(KeyPurpose::link, 1) != bytes(KeyPurpose::link, 2));
  CHECK(bytes(KeyPurpose::link, 1) != bytes(KeyPurpose::rendezvous, 1));
  CHECK(equal_in_constant_time(bytes(KeyPurpose::link, 1), bytes(KeyPurpose::link, 1)));
  CHECK_FALSE(equal_in_constant_time(bytes(KeyPurpose::link, 1), Bytes(31)));
}

}  // namespace oriel::boot
