// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/fd.hpp"

namespace oriel::window {

/// Name of a socket in the abstract namespace of this network namespace; random, not secret.
using FdSocketName = std::array<std::byte, 16>;

/// Opens a SOCK_SEQPACKET unix socket that listens at `name`. The socket is non-blocking and closes
/// on exec.
Result<OwnedFd> listen_at(const FdSocketName& name);
/// Connects to the listener at `name`; returns an invalid descriptor if its queue is full at
/// present. Refused if the listener belongs to another user.
Result<OwnedFd> connect_to(const FdSocketName& name);
/// Accepts the next connection of a listener; returns an invalid descriptor if none waits.
Result<OwnedFd> accept_packets(int listener_fd);
/// Returns whether the process at the other end runs as this process's user.
Result<bool> same_user(const OwnedFd& socket);

/// Result of sending or receiving one message without an error.
enum class PacketOutcome : std::uint8_t { done, blocked, closed };
/// Sends one message without descriptors.
Result<PacketOutcome> send_packet(int socket, ByteView bytes);
/// Receives one message of exactly into.size() bytes; any other length is an error. For peers that
/// have proved nothing yet: descriptors sent along never enter this process.
Result<PacketOutcome> receive_packet(int socket, std::span<std::byte> into);

/// Sends file descriptors in both directions over one authenticated connection. A message carries
/// at most kFdsPerMessage and is acknowledged before the next. This way neither the receiver's
/// buffer nor the kernel's limit on descriptors in flight fills up. The owner calls advance() first
/// and whenever the socket is readable, and again after a pause while blocked().
///
/// Owns the socket and the received descriptors. After an error the object is unusable.
class FdLink {
 public:
  static constexpr std::size_t kFdsPerMessage = 64;
  /// Limit on the number of descriptors in one exchange; larger numbers are refused.
  static constexpr std::size_t kFdsMost = 1U << 16;

  /// `rank` is the peer's world rank, used in error messages.
  FdLink(OwnedFd socket, int rank) : socket_(std::move(socket)), rank_(rank) {}

  int fd() const { return socket_.get(); }

  /// Starts exchange number `sequence`, which both sides count. Sends `outgoing`, borrowed until
  /// done(), and receives `expected` descriptors.
  void begin(std::uint64_t sequence, std::span<const OwnedFd> outgoing, std::size_t expected);
  Status advance();
  bool done() const {
    return acknowledged_ == outgoing_.size() && arrived_.size() == expected_ &&
           !owes_acknowledgement_;
  }
  /// Returns whether a message could not be sent because the socket would block.
  bool blocked() const { return blocked_; }
  std::vector<OwnedFd> take_arrived() { return std::move(arrived_); }

 private:
  struct Packet;
  Status receive_all();
  Error without_all_fds(const Packet& packet, std::size_t came) const;
  Status accept_fds(const Packet& packet, std::vector<OwnedFd> fds);
  Status accept_acknowledgement(const Packet& packet);
  Status send_due();
  Result<bool> send(const Packet& packet, std::span<const OwnedFd> fds);
  Error violation(const std::string& what) const;

  OwnedFd socket_;
  int rank_;
  std::uint64_t sequence_ = 0;
  std::span<const OwnedFd> outgoing_;
  std::size_t sent_ = 0;
  std::size_t acknowledged_ = 0;
  std::size_t expected_ = 0;
  std::vector<OwnedFd> arrived_;
  bool owes_acknowledgement_ = false;
  bool blocked_ = false;
};

}  // namespace oriel::window
