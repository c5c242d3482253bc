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

/// Selects the network interface for set-up.
struct SocketOptions {
  /// ORIEL_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME: comma-separated prefixes of interface names. A
  /// leading `=` asks for whole names, a leading `^` excludes, `^=` excludes whole names. If empty:
  /// the first usable interface that is neither loopback nor a container bridge, else such a
  /// bridge, else loopback.
  std::string ifname;
  /// AF_INET, AF_INET6, or AF_UNSPEC for either (IPv4 first).
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
  /// Converts an address that a system call returned; an error for any other family.
  static Result<SocketAddress> from_native(const sockaddr_storage& native, socklen_t length);
  /// Decodes kEncodedBytes bytes that encode() wrote; checks every field.
  static Result<SocketAddress> decode(ByteReader& reader);

  void encode(ByteWriter& writer) const;
  /// Fills `out` and returns the length for connect(2) and bind(2).
  socklen_t to_native(sockaddr_storage& out) const;

  bool valid() const { return family_ != 0; }
  int family() const;
  std::uint16_t port() const { return port_; }
  std::uint32_t scope() const { return scope_; }
  bool is_loopback() const;
  bool is_link_local() const;
  SocketAddress with_port(std::uint16_t port) const;
  SocketAddress with_scope(std::uint32_t scope) const;
  /// Formats the address like 192.0.2.1:4711 or [fe80::1%2]:4711.
  std::string to_string() const;

  bool operator==(const SocketAddress&) const = default;

 private:
  std::uint8_t family_ = 0;  // 4, 6, or 0 for none
  std::uint16_t port_ = 0;
  std::uint32_t scope_ = 0;  // IPv6 only: the interface of a link-local address
  std::array<std::uint8_t, 16> address_{};
};

/// Returns an address (port 0) of the interface that `options` selects. If `options.ifname` is set
/// and nothing fits, the error lists the interfaces that are up and connected.
Result<SocketAddress> choose_interface(const SocketOptions& options);

/// Returns the names of the usable interfaces, the choice of choose_interface() first. Loopback and
/// container bridges are listed only if `options` names them or choose_interface() takes one. Fails
/// like choose_interface().
Result<std::vector<std::string>> usable_interfaces(const SocketOptions& options);

/// Returns the address at which this host reaches `remote`, which another host may have sent. The
/// scope of a link-local IPv6 address is an interface number that is valid on one host only. Unless
/// `remote` belongs to this host, its scope is replaced by that of the interface that `options`
/// selects.
Result<SocketAddress> seen_from_here(const SocketAddress& remote, const SocketOptions& options);

}  // namespace oriel::boot
