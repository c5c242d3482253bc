// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/exchange/fd_link.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/system_table.hpp"
#include "base/try.hpp"

namespace oriel::window {
namespace {

constexpr std::uint32_t kMagic = 0x4446524f;  // "ORFD"
enum class PacketType : std::uint16_t { fds = 1, acknowledgement = 2 };

struct UnixAddress {
  sockaddr_un un{};
  socklen_t bytes = 0;
};

/// Builds an abstract address (leading zero byte): no file is left behind, however the process
/// ends.
UnixAddress unix_address_of(const FdSocketName& name) {
  UnixAddress address;
  address.un.sun_family = AF_UNIX;
  std::string text = "oriel-";
  for (const std::byte part : name) text += fmt::format("{:02x}", std::to_integer<int>(part));
  std::memcpy(address.un.sun_path + 1, text.data(), text.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

const sockaddr* as_sockaddr(const UnixAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.un);
}

Result<OwnedFd> make_socket() {
  OwnedFd made(sys().socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) return system_error("making a unix socket");
  return made;
}

bool must_wait(int status) {
  // ETOOMANYREFS: this user has too many descriptors in flight; they will be received soon.
  return status == EAGAIN || status == EWOULDBLOCK || status == EINTR || status == ETOOMANYREFS;
}

bool peer_has_gone(int status) {
  return status == EPIPE || status == ECONNRESET || status == ENOTCONN;
}

/// Room for the descriptors of one message. The kernel closes any excess and sets MSG_CTRUNC.
struct ControlBuffer {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(FdLink::kFdsPerMessage * sizeof(int))> bytes;
};

struct Received {
  PacketOutcome outcome = PacketOutcome::done;
  std::size_t bytes = 0;
  bool too_long = false;
  bool lost_fds = false;  // descriptors of this message that found no room
  std::vector<OwnedFd> fds;
};

/// Receives one message and takes ownership of all descriptors that the kernel installs. Without a
/// control buffer the kernel installs none.
Result<Received> receive_one(int socket, std::span<std::byte> into, ControlBuffer* control) {
  iovec part{into.data(), into.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (control != nullptr) {
    message.msg_control = control->bytes.data();
    message.msg_controllen = control->bytes.size();
  }
  const ssize_t got =
      sys().recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT | MSG_NOSIGNAL);
  Received received;
  if (got < 0) {
    if (must_wait(errno)) {
      received.outcome = PacketOutcome::blocked;
      return received;
    }
    if (!peer_has_gone(errno)) return system_error("receiving from a unix socket");
    received.outcome = PacketOutcome::closed;
    return received;
  }
  // An empty message looks like the end of the connection, and might carry descriptors; no peer
  // sends one.
  if (got == 0) received.outcome = PacketOutcome::closed;
  received.bytes = static_cast<std::size_t>(got);
  received.too_long = (message.msg_flags & MSG_TRUNC) != 0;
  received.lost_fds = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
      OwnedFd owned(fd);  // moving a low number may fail for lack of free descriptors
      received.lost_fds = received.lost_fds || !owned;
      if (owned) received.fds.push_back(std::move(owned));
    }
  }
  return received;
}

}  // namespace

Result<bool> same_user(const OwnedFd& socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (sys().getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return system_error("reading the credentials of a unix socket's peer");
  }
  return bytes == sizeof peer && peer.uid == ::geteuid();
}

Result<OwnedFd> listen_at(const FdSocketName& name) {
  ORIEL_TRY(OwnedFd socket, make_socket());
  const UnixAddress address = unix_address_of(name);
  if (sys().bind(socket.get(), as_sockaddr(address), address.bytes) != 0) {
    return system_error("binding a unix socket");
  }
  if (sys().listen(socket.get(), SOMAXCONN) != 0) return system_error("listening");
  return socket;
}

Result<OwnedFd> connect_to(const FdSocketName& name) {
  ORIEL_TRY(OwnedFd socket, make_socket());
  const UnixAddress address = unix_address_of(name);
  if (sys().connect(socket.get(), as_sockaddr(address), address.bytes) != 0) {
    if (must_wait(errno)) return OwnedFd();
    return system_error("connecting to a unix socket");
  }
  ORIEL_TRY(const bool same, same_user(socket));
  if (!same) return Error(ErrorCode::remote, "another user listens at the peer's socket");
  return socket;
}

Result<OwnedFd> accept_packets(int listener_fd) {
  for (;;) {
    OwnedFd socket(sys().accept4(listener_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) return socket;
    if (errno == ECONNABORTED || errno == EINTR) continue;
    if (must_wait(errno)) return OwnedFd();
    return system_error("accepting on a unix socket");
  }
}

Result<PacketOutcome> send_packet(int socket, ByteView bytes) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};  // NOLINT: sendmsg only reads
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (sys().sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
    return PacketOutcome::done;  // a message is sent as a whole or not at all
  }
  if (must_wait(errno)) return PacketOutcome::blocked;
  if (peer_has_gone(errno)) return PacketOutcome::closed;
  return system_error("sending to a unix socket");
}

Result<PacketOutcome> receive_packet(int socket, std::span<std::byte> into) {
  ORIEL_TRY(const Received received, receive_one(socket, into, nullptr));
  if (received.outcome != PacketOutcome::done) return received.outcome;
  const bool cut = received.too_long || received.lost_fds;
  if (cut || received.bytes != into.size()) {
    return Error(ErrorCode::remote, fmt::format("a message of {}{} bytes{} where {} bytes were due",
                                                cut ? "at least " : "", received.bytes,
                                                cut ? " or with descriptors" : "", into.size()));
  }
  return PacketOutcome::done;
}

/// Fixed-size header; `first` and `total` count descriptors of the exchange.
struct FdLink::Packet {
  static constexpr std::size_t kBytes = 24;
  PacketType type = PacketType::fds;
  std::uint16_t count = 0;
  std::uint64_t sequence = 0;
  std::uint32_t first = 0;
  std::uint32_t total = 0;

  Bytes encoded() const {
    ByteWriter writer;
    writer.put(kMagic).put(type).put(count).put(sequence).put(first).put(total);
    return writer.take();
  }
  static Result<Packet> decode(ByteView bytes) {
    ByteReader reader(bytes);
    const auto magic = reader.get<std::uint32_t>();
    Packet packet;
    packet.type = static_cast<PacketType>(reader.get<std::uint16_t>());
    packet.count = reader.get<std::uint16_t>();
    packet.sequence = reader.get<std::uint64_t>();
    packet.first = reader.get<std::uint32_t>();
    packet.total = reader.get<std::uint32_t>();
    ORIEL_CHECK(reader.finish("descriptor message"));
    if (magic != kMagic) {
      return Error(
          ErrorCode::remote,
          fmt::format("a descriptor message has the mark {:#x}, not {:#x}", magic, kMagic));
    }
    return packet;
  }
};

void FdLink::begin(std::uint64_t sequence, std::span<const OwnedFd> outgoing,
                   std::size_t expected) {
  sequence_ = sequence;
  outgoing_ = outgoing;
  sent_ = acknowledged_ = 0;
  expected_ = expected;
  arrived_.clear();
  owes_acknowledgement_ = blocked_ = false;
}

Error FdLink::violation(const std::string& what) const {
  return Error(ErrorCode::remote,
               fmt::format("exchange of file descriptors with rank {}: {}", rank_, what))
      .with_origin(rank_);
}

Status FdLink::advance() {
  if (done()) return {};
  ORIEL_CHECK(send_due());
  return receive_all();
}

Status FdLink::receive_all() {
  // Later messages belong to the next exchange.
  while (!done()) {
    // One spare byte detects longer messages.
    std::array<std::byte, Packet::kBytes + 1> buffer{};
    ControlBuffer control;
    auto got = receive_one(socket_.get(), buffer, &control);
    if (!got.ok()) {
      return std::move(got).error().with_context(
          fmt::format("exchange of file descriptors with rank {}", rank_));
    }
    Received& received = got.value();
    if (received.outcome == PacketOutcome::blocked) return {};
    if (received.outcome == PacketOutcome::closed) {
      return violation("it closed the connection before the exchange had ended");
    }
    if (received.too_long) return violation("a message was longer than allowed");
    auto packet = Packet::decode(ByteView(buffer).first(received.bytes));
    if (!packet.ok()) return violation(packet.error().message());
    if (received.lost_fds) return without_all_fds(packet.value(), received.fds.size());
    if (packet->sequence != sequence_) {
      return violation(
          fmt::format("a message of exchange {} came in exchange {}", packet->sequence, sequence_));
    }
    switch (packet->type) {
      case PacketType::fds: {
        ORIEL_CHECK(accept_fds(packet.value(), std::move(received.fds)));
        break;
      }
      case PacketType::acknowledgement: {
        if (!received.fds.empty()) return violation("an acknowledgement brought descriptors");
        ORIEL_CHECK(accept_acknowledgement(packet.value()));
        break;
      }
      default:
        return violation("a message of an unknown type came");
    }
  }
  return {};
}

/// Returns the error for descriptors that the kernel dropped: the message had too many, or this
/// process has reached its limit.
Error FdLink::without_all_fds(const Packet& packet, std::size_t came) const {
  if (came >= std::min<std::size_t>(packet.count, kFdsPerMessage)) {
    return violation("a message had more descriptors than allowed");
  }
  return system_error(
      fmt::format("receiving {} file descriptors from rank {}", packet.count, rank_), EMFILE);
}

Status FdLink::accept_fds(const Packet& packet, std::vector<OwnedFd> fds) {
  const std::size_t due = std::min(kFdsPerMessage, expected_ - arrived_.size());
  if (owes_acknowledgement_ || due == 0) return violation("descriptors came that were not due");
  if (packet.first != arrived_.size() || packet.total != expected_ || packet.count != due) {
    return violation(fmt::format("it announced descriptors {} to {} of {}; {} to {} of {} were due",
                                 packet.first, packet.first + packet.count, packet.total,
                                 arrived_.size(), arrived_.size() + due, expected_));
  }
  if (fds.size() != due) {
    return violation(fmt::format("{} descriptors came instead of {}", fds.size(), due));
  }
  std::move(fds.begin(), fds.end(), std::back_inserter(arrived_));
  owes_acknowledgement_ = true;
  return send_due();
}

Status FdLink::accept_acknowledgement(const Packet& packet) {
  if (sent_ == acknowledged_ || packet.first != sent_ || packet.count != 0 ||
      packet.total != outgoing_.size()) {
    return violation("an acknowledgement came that was not due");
  }
  acknowledged_ = sent_;
  return send_due();
}

Status FdLink::send_due() {
  blocked_ = false;
  if (owes_acknowledgement_) {
    const Packet packet{.type = PacketType::acknowledgement,
                        .sequence = sequence_,
                        .first = static_cast<std::uint32_t>(arrived_.size()),
                        .total = static_cast<std::uint32_t>(expected_)};
    ORIEL_TRY(const bool went, send(packet, {}));
    owes_acknowledgement_ = !went;
  }
  if (!blocked_ && sent_ == acknowledged_ && sent_ < outgoing_.size()) {
    const std::size_t count = std::min(kFdsPerMessage, outgoing_.size() - sent_);
    const Packet packet{.type = PacketType::fds,
                        .count = static_cast<std::uint16_t>(count),
                        .sequence = sequence_,
                        .first = static_cast<std::uint32_t>(sent_),
                        .total = static_cast<std::uint32_t>(outgoing_.size())};
    ORIEL_TRY(const bool went, send(packet, outgoing_.subspan(sent_, count)));
    if (went) sent_ += count;
  }
  return {};
}

Result<bool> FdLink::send(const Packet& packet, std::span<const OwnedFd> fds) {
  const Bytes bytes = packet.encoded();
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};  // NOLINT: sendmsg only reads
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    control.bytes.fill(std::byte{0});
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (std::size_t i = 0; i < fds.size(); ++i) {
      const int fd = fds[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof fd, &fd, sizeof fd);
    }
  }
  if (sys().sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
  if (must_wait(errno)) {
    blocked_ = true;
    return false;
  }
  if (peer_has_gone(errno)) {
    return violation("it closed the connection before the exchange had ended");
  }
  return system_error(fmt::format("sending {} file descriptors to rank {}", fds.size(), rank_));
}

}  // namespace oriel::window
