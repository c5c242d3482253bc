// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/auth.hpp"

#include <array>
#include <chrono>
#include <thread>

#include <catch2/catch.hpp>
#include <sys/socket.h>

#include "base/fd.hpp"
#include "base/try.hpp"
#include "boot/auth_io.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kRealm = 77;
const AuthClaim kClaim = {.from = 3, .to = 1, .tag = 9};

AuthResponder::KeyLookup lookup(const Key& key) {
  return [&key](std::uint64_t realm) { return realm == kRealm ? &key : nullptr; };
}

}  // namespace

TEST_CASE("1.8 both sides prove the key, and the responder learns the claim") {
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

TEST_CASE("1.8 any changed bit of any message is refused") {
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

TEST_CASE("1.8 a proof is refused with another key, realm or purpose, and when it is replayed") {
  const Key key = Key::random();
  const Key other = Key::random();
  const AuthResponder first(KeyPurpose::link);
  AuthInitiator initiator(KeyPurpose::link, kRealm, key, kClaim);
  const auto response = initiator.respond(first.challenge());
  REQUIRE(response.ok());

  AuthResponder again(KeyPurpose::link);  // another nonce
  CHECK_FALSE(again.answer(response.value(), lookup(key)).ok());

  AuthResponder wrong_key = first;
  CHECK_FALSE(wrong_key.answer(response.value(), lookup(other)).ok());
  AuthResponder unknown = first;
  CHECK_FALSE(unknown.answer(response.value(), [](std::uint64_t) { return nullptr; }).ok());

  AuthResponder other_purpose(KeyPurpose::rendezvous);
  AuthInitiator confused(KeyPurpose::link, kRealm, key, kClaim);
  CHECK_FALSE(confused.respond(other_purpose.challenge()).ok());

  // A responder that does not hold the key can only echo what it has seen.
  AuthResponder honest = first;
  REQUIRE(honest.answer(response.value(), lookup(key)).ok());
  AuthConfirmation echo{};
  std::copy(response.value().end() - AuthSizes::kConfirmation, response.value().end(),
            echo.begin());
  CHECK_FALSE(initiator.confirm(echo).ok());
}

TEST_CASE("1.8 keys differ by purpose and by communicator") {
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

namespace {

struct SocketPair {
  OwnedFd a, b;
  explicit SocketPair(int type) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
    a = OwnedFd(ends[0]);
    b = OwnedFd(ends[1]);
  }
};

struct BothSides {
  Status initiator;
  Result<AuthClaim> responder = AuthClaim{};
};

Task<int> side_a(EventLoop& loop, int fd, SocketKind kind, Key key, BothSides& out) {
  AuthInitiator initiator(KeyPurpose::fd_exchange, kRealm, key, kClaim);
  out.initiator =
      co_await prove_as_initiator(loop, fd, kind, std::move(initiator), Deadline::after(2s));
  co_return 0;
}

Task<int> side_b(EventLoop& loop, int fd, SocketKind kind, Key key, BothSides& out) {
  out.responder = co_await prove_as_responder(loop, fd, kind, KeyPurpose::fd_exchange, kRealm,
                                              std::move(key), Deadline::after(2s));
  co_return 0;
}

BothSides prove(SocketKind kind, const Key& key_a, const Key& key_b) {
  const SocketPair pair(kind == SocketKind::stream ? SOCK_STREAM : SOCK_SEQPACKET);
  auto loop = std::move(EventLoop::create()).value();
  BothSides out;
  std::vector<Task<int>> tasks;
  tasks.push_back(side_a(loop, pair.a.get(), kind, key_a, out));
  tasks.push_back(side_b(loop, pair.b.get(), kind, key_b, out));
  static_cast<void>(loop.run_all(std::move(tasks)));
  return out;
}

}  // namespace

TEST_CASE("1.8 the handshake runs over stream and packet sockets") {
  const Key key = Key::random();
  for (const auto kind : {SocketKind::stream, SocketKind::seqpacket}) {
    const BothSides good = prove(kind, key, key);
    CHECK(good.initiator.ok());
    REQUIRE(good.responder.ok());
    CHECK(good.responder.value() == kClaim);
    const BothSides bad = prove(kind, key, Key::random());
    CHECK_FALSE(bad.responder.ok());
    CHECK_FALSE(bad.initiator.ok());
  }
}

TEST_CASE("1.8 packets of the wrong size, silence and hang-ups end the handshake") {
  const Key key = Key::random();
  const auto answer_to = [&](auto misbehave) {
    const SocketPair pair(SOCK_SEQPACKET);
    auto loop = std::move(EventLoop::create()).value();
    misbehave(pair.a);
    return loop.run(prove_as_responder(loop, pair.b.get(), SocketKind::seqpacket,
                                       KeyPurpose::fd_exchange, kRealm, key,
                                       Deadline::after(100ms)));
  };
  const Bytes longer(AuthSizes::kResponse + 1), shorter(AuthSizes::kResponse - 1);
  const auto sends = [](const Bytes& bytes) {
    return [&bytes](const OwnedFd& fd) {
      REQUIRE(::send(fd.get(), bytes.data(), bytes.size(), 0) > 0);
    };
  };
  CHECK(answer_to(sends(longer)).error().code() == ErrorCode::remote);
  CHECK(answer_to(sends(shorter)).error().code() == ErrorCode::remote);
  CHECK(answer_to([](const OwnedFd&) {}).error().code() == ErrorCode::timeout);
  const auto hang_up = [](const OwnedFd& fd) { ::shutdown(fd.get(), SHUT_RDWR); };
  CHECK_FALSE(answer_to(hang_up).ok());
}

}  // namespace oriel::boot
