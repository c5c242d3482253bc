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

/// Names a socket in the abstract namespace of this network namespace; random, no secret.
using FdSocketName = std::array<std::byte, 16>;

/// A SOCK_SEQPACKET unix socket that listens at `name`, for the same user; neither blocks nor
/// survives exec.
Result<OwnedFd> listen_at(const FdSocketName& name);
/// A socket connected to the listener at `name`, or an invalid one if its queue is full just now.
/// Refused if the listener belongs to another user.
Result<OwnedFd> connect_to(const FdSocketName& name);
/// The next connection of a listener, invalid if none waits.
Result<OwnedFd> accept_packets(int listener_fd);
/// Returns whether the process at the other end runs as this process's user.
Result<bool> same_user(const OwnedFd& socket);

/// Whether a message was sent, has come, or must wait.
enum class PacketOutcome : std::uint8_t { done, blocked, closed };
/// One message of exactly `bytes`, without descriptors.
Result<PacketOutcome> send_packet(int socket, ByteView bytes);
/// One message of exactly into.size() bytes; anything else is an error. For peers that have proved
/// nothing yet: descriptors that come along never enter this process.
Result<PacketOutcome> receive_packet(int socket, std::span<std::byte> into);

/// File descriptors in both directions over one proven connection: at most kFdsPerMessage a
/// message, each acknowledged before the next, so that neither the receiver's buffer nor the
/// kernel's limit on descriptors in flight fills up. A state machine: the owner calls advance() at
/// first and whenever the socket is readable, and again after a pause while blocked().
///
/// Owns the socket and the descriptors that have arrived. After an error it is of no further use.
class FdLink {
 public:
  static constexpr std::size_t kFdsPerMessage = 64;
  /// More descriptors than this in one exchange are refused.
  static constexpr std::size_t kFdsMost = 1U << 16;

  /// `rank` is the peer's, for messages.
  FdLink(OwnedFd socket, int rank) : socket_(std::move(socket)), rank_(rank) {}

  int fd() const { return socket_.get(); }

  /// Begins exchange number `sequence`, which both sides count: `outgoing`, borrowed until done(),
  /// goes to the peer, and `expected` come.
  void begin(std::uint64_t sequence, std::span<const OwnedFd> outgoing, std::size_t expected);
  Status advance();
  bool done() const {
    return acknowledged_ == outgoing_.size() && arrived_.size() == expected_ &&
           !owes_acknowledgement_;
  }
  /// Whether something could not be sent for want of room.
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
