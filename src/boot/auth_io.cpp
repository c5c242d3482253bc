// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/auth_io.hpp"

#include <cerrno>
#include <span>

#include "base/try.hpp"
#include "boot/tcp.hpp"

namespace oriel::boot {
namespace {

Error cut_off() {
  return Error(ErrorCode::remote, "the peer closed the connection during the handshake");
}

// One packet must be exactly as long as the message: a longer one is cut by the kernel (MSG_TRUNC).
Task<Status> receive_packet(EventLoop& loop, int fd, std::span<std::byte> out, Deadline deadline) {
  for (;;) {
    ORIEL_CO_CHECK(co_await loop.readable(fd, deadline));
    iovec buffer{out.data(), out.size()};
    msghdr message{};
    message.msg_iov = &buffer;
    message.msg_iovlen = 1;
    const ssize_t count = sys().recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count < 0 && errno != ECONNRESET) co_return system_error("recvmsg");
    if (count <= 0) co_return cut_off();
    // Without room for control data the kernel drops attached descriptors and says so.
    const bool exact = static_cast<std::size_t>(count) == out.size() &&
                       (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
    if (!exact) {
      co_return Error(ErrorCode::remote, "the peer sent a packet that is no handshake message");
    }
    co_return Status();
  }
}

Task<Status> receive_exactly(EventLoop& loop, int fd, SocketKind kind, std::span<std::byte> out,
                             Deadline deadline) {
  if (kind == SocketKind::seqpacket) co_return co_await receive_packet(loop, fd, out, deadline);
  while (!out.empty()) {
    ORIEL_CO_CHECK(co_await loop.readable(fd, deadline));
    ORIEL_CO_TRY(const IoOutcome got, read_some(fd, out));
    if (got.closed) co_return cut_off();
    out = out.subspan(got.bytes);
  }
  co_return Status();
}

Task<Status> send_exactly(EventLoop& loop, int fd, ByteView bytes, Deadline deadline) {
  while (!bytes.empty()) {
    ORIEL_CO_TRY(const IoOutcome sent, write_some(fd, std::span(&bytes, 1)));
    if (sent.closed) co_return cut_off();
    bytes = bytes.subspan(sent.bytes);
    if (sent.would_block) ORIEL_CO_CHECK(co_await loop.writable(fd, deadline));
  }
  co_return Status();
}

}  // namespace

Task<Status> prove_as_initiator(EventLoop& loop, int fd, SocketKind kind, AuthInitiator initiator,
                                Deadline deadline) {
  AuthChallenge challenge{};
  ORIEL_CO_CHECK(co_await receive_exactly(loop, fd, kind, challenge, deadline));
  ORIEL_CO_TRY(const AuthResponse response, initiator.respond(challenge));
  ORIEL_CO_CHECK(co_await send_exactly(loop, fd, response, deadline));
  AuthConfirmation confirmation{};
  ORIEL_CO_CHECK(co_await receive_exactly(loop, fd, kind, confirmation, deadline));
  co_return initiator.confirm(confirmation);
}

Task<Result<AuthClaim>> prove_as_responder(EventLoop& loop, int fd, SocketKind kind,
                                           KeyPurpose purpose, std::uint64_t realm, Key key,
                                           Deadline deadline) {
  AuthResponder responder(purpose);
  ORIEL_CO_CHECK(co_await send_exactly(loop, fd, responder.challenge(), deadline));
  AuthResponse response{};
  ORIEL_CO_CHECK(co_await receive_exactly(loop, fd, kind, response, deadline));
  const AuthResponder::KeyLookup lookup = [&](std::uint64_t asked) -> const Key* {
    return asked == realm ? &key : nullptr;
  };
  ORIEL_CO_TRY(const AuthConfirmation confirmation, responder.answer(response, lookup));
  ORIEL_CO_CHECK(co_await send_exactly(loop, fd, confirmation, deadline));
  co_return responder.claim();
}

}  // namespace oriel::boot
