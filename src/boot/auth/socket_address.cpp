// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/auth/socket_address.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>

#include "base/system_table.hpp"
#include "base/try.hpp"

namespace oriel::boot {

SocketAddress SocketAddress::ipv4(std::array<std::uint8_t, 4> address, std::uint16_t port) {
  SocketAddress out;
  out.family_ = 4;
  out.port_ = port;
  std::copy(address.begin(), address.end(), out.address_.begin());
  return out;
}

SocketAddress SocketAddress::ipv6(std::array<std::uint8_t, 16> address, std::uint32_t scope,
                                  std::uint16_t port) {
  SocketAddress out;
  out.family_ = 6;
  out.port_ = port;
  out.scope_ = scope;
  out.address_ = address;
  return out;
}

Result<SocketAddress> SocketAddress::from_native(const sockaddr_storage& native, socklen_t length) {
  if (native.ss_family == AF_INET && length >= sizeof(sockaddr_in)) {
    sockaddr_in in{};
    std::memcpy(&in, &native, sizeof in);
    std::array<std::uint8_t, 4> address{};
    std::memcpy(address.data(), &in.sin_addr, address.size());
    return ipv4(address, ntohs(in.sin_port));
  }
  if (native.ss_family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
    sockaddr_in6 in{};
    std::memcpy(&in, &native, sizeof in);
    std::array<std::uint8_t, 16> address{};
    std::memcpy(address.data(), &in.sin6_addr, address.size());
    return ipv6(address, in.sin6_scope_id, ntohs(in.sin6_port));
  }
  return Error(
      ErrorCode::internal,
      fmt::format("a socket has address family {}, neither IPv4 nor IPv6", native.ss_family));
}

Result<SocketAddress> SocketAddress::decode(ByteReader& reader) {
  SocketAddress out;
  out.family_ = reader.get<std::uint8_t>();
  const auto reserved = reader.get<std::uint8_t>();
  out.port_ = reader.get<std::uint16_t>();
  out.scope_ = reader.get<std::uint32_t>();
  const ByteView raw = reader.get_raw(out.address_.size());
  if (!reader.good()) {
    return Error(ErrorCode::remote,
                 fmt::format("a socket address is shorter than {} bytes", 8 + out.address_.size()));
  }
  std::memcpy(out.address_.data(), raw.data(), out.address_.size());
  const bool tail_is_zero = std::all_of(out.address_.begin() + 4, out.address_.end(),
                                        [](std::uint8_t byte) { return byte == 0; });
  const bool well_formed =
      (out.family_ == 4 && out.scope_ == 0 && tail_is_zero) || out.family_ == 6;
  if (!well_formed || reserved != 0 || out.port_ == 0) {
    return Error(ErrorCode::remote,
                 fmt::format("a socket address is malformed (family {}, port {}, scope {})",
                             out.family_, out.port_, out.scope_));
  }
  return out;
}

void SocketAddress::encode(ByteWriter& writer) const {
  writer.put(family_).put(std::uint8_t{0}).put(port_).put(scope_);
  writer.put_raw(std::as_bytes(std::span(address_)));
}

socklen_t SocketAddress::to_native(sockaddr_storage& out) const {
  out = {};
  if (family_ == 4) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port_);
    std::memcpy(&in.sin_addr, address_.data(), 4);
    std::memcpy(&out, &in, sizeof in);
    return sizeof in;
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port_);
  in.sin6_scope_id = scope_;
  std::memcpy(&in.sin6_addr, address_.data(), address_.size());
  std::memcpy(&out, &in, sizeof in);
  return sizeof in;
}

int SocketAddress::family() const {
  return family_ == 4 ? AF_INET : AF_INET6;
}

bool SocketAddress::is_loopback() const {
  if (family_ == 4) return address_[0] == 127;
  const bool zero = std::all_of(address_.begin(), address_.end() - 1,
                                [](std::uint8_t byte) { return byte == 0; });
  return family_ == 6 && zero && address_[15] == 1;
}

bool SocketAddress::is_link_local() const {
  if (family_ == 4) return address_[0] == 169 && address_[1] == 254;
  return family_ == 6 && address_[0] == 0xfe && (address_[1] & 0xc0) == 0x80;
}

SocketAddress SocketAddress::with_port(std::uint16_t port) const {
  SocketAddress out = *this;
  out.port_ = port;
  return out;
}

SocketAddress SocketAddress::with_scope(std::uint32_t scope) const {
  SocketAddress out = *this;
  out.scope_ = scope;
  return out;
}

std::string SocketAddress::to_string() const {
  if (!valid()) return "no address";
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(family(), address_.data(), text.data(), text.size());
  if (family_ == 4) return fmt::format("{}:{}", text.data(), port_);
  if (scope_ == 0) return fmt::format("[{}]:{}", text.data(), port_);
  return fmt::format("[{}%{}]:{}", text.data(), scope_, port_);
}

namespace {

/// Filters interface names by a setting such as "^=docker0,lo".
class NameFilter {
 public:
  explicit NameFilter(std::string_view text) {
    if (text.starts_with('^')) {
      exclude_ = true;
      text.remove_prefix(1);
    }
    if (text.starts_with('=')) {
      whole_ = true;
      text.remove_prefix(1);
    }
    while (!text.empty()) {
      const auto comma = std::min(text.find(','), text.size());
      if (comma > 0) names_.emplace_back(text.substr(0, comma));
      text.remove_prefix(std::min(comma + 1, text.size()));
    }
  }
  bool accepts(std::string_view name) const {
    if (names_.empty()) return true;
    const bool listed = std::any_of(names_.begin(), names_.end(), [&](const std::string& entry) {
      return whole_ ? name == entry : name.starts_with(entry);
    });
    return listed != exclude_;
  }
  /// Returns whether the user has selected interfaces by name, so no default preference applies.
  bool selects() const { return !names_.empty() && !exclude_; }

 private:
  bool exclude_ = false;
  bool whole_ = false;
  std::vector<std::string> names_;
};

bool is_container_bridge(std::string_view name) {
  for (const std::string_view prefix : {"docker", "virbr", "veth", "br-", "cni", "podman"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

/// An address of this host on an interface that is up and, unless loopback, running.
struct Interface {
  std::string name;
  bool loopback = false;
  SocketAddress address;  // port 0
};

Result<std::vector<Interface>> list_interfaces() {
  ifaddrs* raw_list = nullptr;
  if (sys().getifaddrs(&raw_list) != 0) return system_error("listing network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(raw_list, &::freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    const bool loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    // An interface that is up but has no carrier lacks IFF_RUNNING.
    unsigned needed = IFF_UP;
    if (!loopback) needed |= IFF_RUNNING;
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & needed) != needed) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    sockaddr_storage native{};
    std::memcpy(&native, entry->ifa_addr, length);
    ORIEL_TRY(const SocketAddress address, SocketAddress::from_native(native, length));
    interfaces.push_back({entry->ifa_name, loopback, address.with_port(0)});
  }
  return interfaces;
}

// Returns a rank of preference; smaller is better. Within its class, link-local IPv6 comes last:
// its scope is numbered differently on other hosts.
int preference(const Interface& interface, bool by_name) {
  int rank = 0;
  if (!by_name && is_container_bridge(interface.name)) rank = 10;
  if (!by_name && interface.loopback) rank = 20;
  if (interface.address.family() == AF_INET6) rank += interface.address.is_link_local() ? 2 : 1;
  return rank;
}

/// Returns the best address that `options` and `fits` accept; invalid if there is none.
template <typename Fits>
SocketAddress choose(const std::vector<Interface>& interfaces, const SocketOptions& options,
                     const Fits& fits) {
  const NameFilter filter(options.ifname);
  SocketAddress best;
  int best_rank = 0;
  for (const Interface& interface : interfaces) {
    if (!filter.accepts(interface.name) || !fits(interface.address)) continue;
    const int rank = preference(interface, filter.selects());
    if (best.valid() && rank >= best_rank) continue;
    best = interface.address;
    best_rank = rank;
  }
  return best;
}

/// Lists the distinct names for an error message.
std::string names_of(const std::vector<Interface>& interfaces) {
  std::vector<std::string> names;
  for (const Interface& interface : interfaces) {
    if (std::find(names.begin(), names.end(), interface.name) != names.end()) continue;
    names.push_back(interface.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

constexpr const char* kInterfaceHint = "set the variable that is named to one of them, or unset it";

}  // namespace

namespace {

Result<SocketAddress> choose_of(const std::vector<Interface>& interfaces,
                                const SocketOptions& options) {
  const SocketAddress best = choose(interfaces, options, [&](const SocketAddress& address) {
    return options.family == AF_UNSPEC || options.family == address.family();
  });
  if (best.valid()) return best;
  const char* const family = options.family == AF_INET    ? "IPv4"
                             : options.family == AF_INET6 ? "IPv6"
                                                          : "IP";
  const std::string none =
      fmt::format("no network interface that is up and connected has an {} address", family);
  if (interfaces.empty() || options.ifname.empty()) {
    return Error(ErrorCode::system, none)
        .with_hint("bring one up; the loopback is enough for ranks of one host");
  }
  return Error(ErrorCode::invalid_usage,
               fmt::format("{} and matches ORIEL_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, \"{}\"; "
                           "there are: {}",
                           none, options.ifname, names_of(interfaces)))
      .with_hint(kInterfaceHint);
}

}  // namespace

Result<SocketAddress> choose_interface(const SocketOptions& options) {
  ORIEL_TRY(const auto interfaces, list_interfaces());
  return choose_of(interfaces, options);
}

Result<std::vector<std::string>> usable_interfaces(const SocketOptions& options) {
  ORIEL_TRY(const auto interfaces, list_interfaces());
  ORIEL_TRY(const SocketAddress best, choose_of(interfaces, options));
  const NameFilter filter(options.ifname);
  std::vector<std::string> names;
  // An address label ("eth1:0") is not an interface of its own.
  const auto add = [&](const Interface& interface) {
    const std::string name = interface.name.substr(0, interface.name.find(':'));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const Interface& interface : interfaces) {
    if (interface.address == best) add(interface);
  }
  for (const Interface& interface : interfaces) {
    const bool is_lesser = interface.loopback || is_container_bridge(interface.name);
    if (!filter.accepts(interface.name) || (is_lesser && !filter.selects())) continue;
    if (options.family != AF_UNSPEC && options.family != interface.address.family()) continue;
    add(interface);
  }
  return names;
}

Result<SocketAddress> seen_from_here(const SocketAddress& remote, const SocketOptions& options) {
  if (!remote.is_link_local() || remote.family() != AF_INET6) return remote;
  ORIEL_TRY(const auto interfaces, list_interfaces());
  const bool ours = std::any_of(interfaces.begin(), interfaces.end(), [&](const Interface& own) {
    return own.address == remote.with_port(0);
  });
  if (ours) return remote;
  const SocketAddress best = choose(interfaces, options, [](const SocketAddress& address) {
    return address.family() == AF_INET6 && address.is_link_local();
  });
  if (best.valid()) return remote.with_scope(best.scope());
  return Error(ErrorCode::invalid_usage,
               fmt::format("{} is a link-local address, and no network interface that is up, "
                           "connected and has one matches ORIEL_SOCKET_IFNAME or "
                           "NCCL_SOCKET_IFNAME, \"{}\"; there are: {}",
                           remote.to_string(), options.ifname, names_of(interfaces)))
      .with_hint(kInterfaceHint);
}

}  // namespace oriel::boot
