// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/path_networks.hpp"

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

constexpr std::uint32_t kUp = 0x1;        // RTF_UP
constexpr std::uint32_t kRefuse = 0x200;  // RTF_REJECT

std::optional<std::uint32_t> hex(std::string_view text) {
  std::uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, 16);
  if (error != std::errc() || rest != end) return std::nullopt;
  return value;
}

bool is_in_use(std::string_view flags) {
  const auto value = hex(flags);
  return value && (*value & kUp) != 0 && (*value & kRefuse) == 0;
}

/// Addresses that lead nowhere else than where they are written.
bool is_local(std::uint8_t family, const std::array<std::uint8_t, 16>& bytes) {
  if (family == 4) {
    return bytes[0] == 127 || (bytes[0] == 169 && bytes[1] == 254) || bytes[0] >= 224;
  }
  return bytes[0] == 0xff || (bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80);
}

/// A line of /proc/net/route: name, destination, gateway, flags, three numbers, mask; both words
/// as they lie in memory.
std::optional<IpNetwork> network_of_4(const std::vector<std::string>& words,
                                      const std::string& name) {
  if (words.size() < 8 || words[0] != name || !is_in_use(words[3])) return std::nullopt;
  const auto destination = hex(words[1]), mask = hex(words[7]);
  if (!destination || !mask) return std::nullopt;
  IpNetwork network;
  network.length = static_cast<std::uint8_t>(std::popcount(*mask));
  std::memcpy(network.bytes.data(), &*destination, sizeof *destination);
  return network;
}

/// Of /proc/net/ipv6_route: destination, the length of its prefix, the same of sources, gateway,
/// three numbers, flags, name.
std::optional<IpNetwork> network_of_6(const std::vector<std::string>& words,
                                      const std::string& name) {
  if (words.size() < 10 || words[9] != name || !is_in_use(words[8])) return std::nullopt;
  const auto length = hex(words[1]);
  if (words[0].size() != 32 || !length || *length > 128 || hex(words[3]) != 0u) return std::nullopt;
  IpNetwork network;
  network.length = static_cast<std::uint8_t>(*length);
  for (std::size_t i = 0; i < network.bytes.size(); ++i) {
    const auto byte = hex(std::string_view(words[0]).substr(i * 2, 2));
    if (!byte) return std::nullopt;
    network.bytes[i] = static_cast<std::uint8_t>(*byte);
  }
  return network;
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
  PathInterface told;
  if (!address.valid() || address.is_loopback() || address.is_link_local()) return told;
  told.family = address.family() == AF_INET ? 4 : 6;
  set_address(address, told);
  const bool is_4 = told.family == 4;
  std::istringstream lines(
      files.read(is_4 ? "/proc/net/route" : "/proc/net/ipv6_route").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> words;
    std::string word;
    for (std::istringstream text(line); text >> word;) words.push_back(word);
    const auto network = is_4 ? network_of_4(words, name) : network_of_6(words, name);
    if (!network || !is_network(*network, told.family)) continue;
    const auto& known = told.networks;
    const bool is_known = std::find(known.begin(), known.end(), *network) != known.end();
    if (!is_known && !is_local(told.family, network->bytes)) told.networks.push_back(*network);
  }
  std::sort(told.networks.begin(), told.networks.end(), [](const auto& a, const auto& b) {
    return std::tie(a.length, a.bytes) < std::tie(b.length, b.bytes);
  });
  if (told.networks.size() > PathInterface::kNetworksMost) {
    told.networks.resize(PathInterface::kNetworksMost);
  }
  return told;
}

}  // namespace oriel::comm
