// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/paths/path_networks.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <sstream>
#include <string_view>
#include <tuple>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>

namespace oriel::comm {
namespace {

// Flags of routes (linux/route.h, linux/ipv6_route.h).
constexpr std::uint32_t kUp = 0x1;
constexpr std::uint32_t kGateway = 0x2;
constexpr std::uint32_t kRefuse = 0x200;
constexpr std::uint32_t kAnycast = 0x0010'0000;
constexpr std::uint32_t kOwnAddress = 0x8000'0000;
constexpr std::size_t kTableMost = std::size_t{8} << 20;

struct Route {
  IpNetwork network;
  bool by_router = false;
};

std::optional<std::uint32_t> hex(std::string_view text) {
  std::uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, 16);
  if (error != std::errc() || rest != end) return std::nullopt;
  return value;
}

bool is_in_use(std::uint32_t flags) {
  return (flags & kUp) != 0 && (flags & (kRefuse | kAnycast | kOwnAddress)) == 0;
}

/// Returns whether addresses are link-local, multicast, or (IPv4) loopback: they name different
/// places on each link or host.
bool is_local(std::uint8_t family, const std::array<std::uint8_t, 16>& bytes) {
  if (family == 4) {
    return bytes[0] == 127 || (bytes[0] == 169 && bytes[1] == 254) || bytes[0] >= 224;
  }
  return bytes[0] == 0xff || (bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80);
}

/// Parses a line of /proc/net/route: name, destination, gateway, flags, three numbers, mask.
/// Destination and mask are in network byte order as they lie in memory.
std::optional<Route> route_of_4(const std::vector<std::string>& words, const std::string& name) {
  if (words.size() < 8 || words[0] != name) return std::nullopt;
  const auto destination = hex(words[1]), flags = hex(words[3]), mask = hex(words[7]);
  if (!destination || !flags || !mask || !is_in_use(*flags)) return std::nullopt;
  Route route{{}, (*flags & kGateway) != 0};
  route.network.length = static_cast<std::uint8_t>(std::popcount(*mask));
  std::memcpy(route.network.bytes.data(), &*destination, sizeof *destination);
  return route;
}

/// Parses a line of /proc/net/ipv6_route: destination, prefix length, source, source prefix length,
/// gateway, three numbers, flags, name.
std::optional<Route> route_of_6(const std::vector<std::string>& words, const std::string& name) {
  if (words.size() < 10 || words[9] != name) return std::nullopt;
  const auto length = hex(words[1]), flags = hex(words[8]);
  if (!flags || !is_in_use(*flags)) return std::nullopt;
  if (words[0].size() != 32 || !length || *length > 128 || hex(words[3]) != 0u) return std::nullopt;
  Route route{{}, (*flags & kGateway) != 0};
  route.network.length = static_cast<std::uint8_t>(*length);
  for (std::size_t i = 0; i < route.network.bytes.size(); ++i) {
    const auto byte = hex(std::string_view(words[0]).substr(i * 2, 2));
    if (!byte) return std::nullopt;
    route.network.bytes[i] = static_cast<std::uint8_t>(*byte);
  }
  return route;
}

/// Returns the routes of this interface, the most specific about its location first.
std::vector<Route> routes_of(const std::string& table, const std::string& name,
                             const PathInterface& reported) {
  std::vector<Route> routes;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(name) == std::string::npos) continue;
    std::vector<std::string> words;
    std::string word;
    for (std::istringstream text(line); text >> word;) words.push_back(word);
    const auto route = reported.family == 4 ? route_of_4(words, name) : route_of_6(words, name);
    if (!route || !is_network(route->network, reported.family)) continue;
    if (!is_local(reported.family, route->network.bytes)) routes.push_back(*route);
  }
  const auto rank = [&](const Route& route) {
    return std::tuple(!is_within(reported.address, route.network), route.by_router,
                      -int{route.network.length});
  };
  std::sort(routes.begin(), routes.end(), [&](const Route& a, const Route& b) {
    return std::tuple(rank(a), a.network.bytes) < std::tuple(rank(b), b.network.bytes);
  });
  return routes;
}

void set_address(const boot::SocketAddress& from, PathInterface& to) {
  sockaddr_storage native{};
  from.to_native(native);
  if (from.family() == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &native, sizeof in);
    std::memcpy(to.address.data(), &in.sin_addr, sizeof in.sin_addr);
  } else {
    sockaddr_in6 in{};
    std::memcpy(&in, &native, sizeof in);
    std::memcpy(to.address.data(), &in.sin6_addr, sizeof in.sin6_addr);
  }
}

}  // namespace

PathInterface describe_interface(const topo::FileTree& files, const std::string& name,
                                 const boot::SocketAddress& address) {
  PathInterface reported;
  if (!address.valid() || address.is_loopback() || address.is_link_local()) return reported;
  reported.family = address.family() == AF_INET ? 4 : 6;
  set_address(address, reported);
  const auto* const path = reported.family == 4 ? "/proc/net/route" : "/proc/net/ipv6_route";
  for (const Route& route : routes_of(files.read(path, kTableMost).value_or(""), name, reported)) {
    auto& known = reported.networks;
    if (known.size() == PathInterface::kNetworksMost) break;
    if (std::find(known.begin(), known.end(), route.network) == known.end()) {
      known.push_back(route.network);
    }
  }
  return reported;
}

}  // namespace oriel::comm
