// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.hpp"
#include "net/wire/wire.hpp"
#include "net/wire/wire_format.hpp"

namespace oriel::net::test {

/// Sockets between each two of several processes, created before the processes are forked. Each
/// process takes its own ends once and closes all others. So messages to a process that has died
/// are lost.
class SocketMesh {
 public:
  explicit SocketMesh(int processes) : ends_(at(processes), std::vector<int>(at(processes), -1)) {
    for (std::size_t a = 0; a < ends_.size(); ++a) {
      for (std::size_t b = a + 1; b < ends_.size(); ++b) {
        int pair[2] = {-1, -1};
        if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
          throw std::runtime_error("no sockets for the wires of adapters");
        }
        ends_[a][b] = pair[0];
        ends_[b][a] = pair[1];
      }
    }
  }
  SocketMesh(const SocketMesh&) = delete;
  SocketMesh& operator=(const SocketMesh&) = delete;
  ~SocketMesh() { close_all(); }

  /// Returns the sockets of `process`, by peer; -1 for itself. The caller closes them.
  std::vector<int> take(int process) {
    std::vector<int> own = std::exchange(ends_[at(process)], {});
    close_all();
    return own;
  }

 private:
  static std::size_t at(int process) { return static_cast<std::size_t>(process); }
  void close_all() {
    for (std::vector<int>& row : ends_) {
      for (int& end : row) {
        if (end >= 0) ::close(std::exchange(end, -1));
      }
    }
  }
  std::vector<std::vector<int>> ends_;
};

/// Wire to the NICs of other processes; messages to itself are lost. A socket's buffer has to hold
/// all data that is sent at once: pieces of 64 KiB fit.
class SocketWire final : public Wire {
 public:
  static WireAddress address_of(int process) { return {static_cast<std::uint64_t>(process) + 1}; }

  SocketWire(int process, std::vector<int> ends) : process_(process), ends_(std::move(ends)) {}
  SocketWire(const SocketWire&) = delete;
  SocketWire& operator=(const SocketWire&) = delete;
  ~SocketWire() override {
    for (const int end : ends_) {
      if (end >= 0) ::close(end);
    }
  }
  WireAddress address() const override { return address_of(process_); }
  bool send(WireAddress to, WireMessage& message) override {
    const std::size_t peer = to.value - 1;
    if (peer >= ends_.size() || ends_[peer] < 0) return true;
    const Bytes bytes = encode_message(message);
    const ssize_t sent =
        ::send(ends_[peer], bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent >= 0 || (errno != EAGAIN && errno != ENOBUFS);
  }
  bool receive(WireMessage& message) override {
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      const int end = ends_[next_++ % ends_.size()];
      if (end < 0) continue;
      buffer_.resize(kMost);
      const ssize_t got = ::recv(end, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (got <= 0) continue;
      auto decoded = decode_message(ByteView(buffer_).first(static_cast<std::size_t>(got)));
      if (!decoded.ok()) continue;
      message = std::move(decoded).value();
      return true;
    }
    return false;
  }

 private:
  static constexpr std::size_t kMost = 128 << 10;
  const int process_;
  std::vector<int> ends_;
  std::size_t next_ = 0;
  Bytes buffer_;  // memory that a received message may refer to
};

}  // namespace oriel::net::test
