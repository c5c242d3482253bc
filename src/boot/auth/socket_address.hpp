// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

namespace oriel::boot {

/// Which network interface set-up uses.
struct SocketOptions {
  /// ORIEL_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME: comma-separated prefixes of interface names;
  /// a leading `=` asks for whole names, a leading `^` excludes, `^=` excludes whole names. Empty:
  /// the first usable interface that is neither loopback nor a bridge of containers, else such a
  /// bridge, else loopback.
  std::string ifname;
  /// AF_INET, AF_INET6, or AF_UNSPEC for whichever the interface has (IPv4 first).
  int family = AF_UNSPEC;
};

/// An IPv4 or IPv6 address and port; a plain value.
class SocketAddress {
 public:
  static constexpr std::size_t kEncodedBytes = 24;

  SocketAddress() = default;  ///< no address: valid() is false
  static SocketAddress ipv4(std::array<std::uint8_t, 4> address, std::uint16_t port);
  static SocketAddress ipv6(std::array<std::uint8_t, 16> address, std::uint32_t scope,
                            std::uint16_t port);
  /// From what the system calls yield; an error for any other family.
  static Result<SocketAddress> from_native(const sockaddr_storage& native, socklen_t length);
  /// kEncodedBytes, as encode() writes them; every field is checked.
  static Result<SocketAddress> decode(ByteReader& reader);

  void encode(ByteWriter& writer) const;
  /// Fills `out` and yields the length for connect(2) and bind(2).
  socklen_t to_native(sockaddr_storage& out) const;

  bool valid() const { return family_ != 0; }
  int family() const;
  std::uint16_t port() const { return port_; }
  std::uint32_t scope() const { return scope_; }
  bool is_loopback() const;
  bool is_link_local() const;
  SocketAddress with_port(std::uint16_t port) const;
  SocketAddress with_scope(std::uint32_t scope) const;
  /// As in 192.0.2.1:4711 or [fe80::1%2]:4711.
  std::string to_string() const;

  bool operator==(const SocketAddress&) const = default;

 private:
  std::uint8_t family_ = 0;  // 4, 6, or 0 for none
  std::uint16_t port_ = 0;
  std::uint32_t scope_ = 0;  // IPv6 only: the interface of a link-local address
  std::array<std::uint8_t, 16> address_{};
};

/// An address (port 0) of the interface that `options` asks for. The error names the interfaces
/// that there are.
Result<SocketAddress> choose_interface(const SocketOptions& options);

/// The names of the interfaces of which choose_interface() takes one, that one first; without
/// loopback and bridges of containers unless `options` or need lets it take such a one. Fails as it
/// does.
Result<std::vector<std::string>> usable_interfaces(const SocketOptions& options);

/// Where this host connects to reach `remote`, an address that another host may have given: the
/// scope of a link-local IPv6 address is that host's number of an interface, so unless the address
/// is one of this host, this yields it with the scope of the interface that `options` asks for.
Result<SocketAddress> seen_from_here(const SocketAddress& remote, const SocketOptions& options);

}  // namespace oriel::boot
