// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/paths/path_pairs.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace oriel::comm {
namespace {

using Interfaces = std::vector<PathInterface>;

/// Returns the length of the longest prefix of an interface's networks that matches this address; 0
/// if none matches.
std::size_t closeness(const PathInterface& from, const PathInterface& to) {
  std::size_t most = 0;
  if (from.family == 0 || from.family != to.family) return most;
  for (const IpNetwork& network : from.networks) {
    if (is_within(to.address, network)) most = std::max<std::size_t>(most, network.length);
  }
  return most;
}

/// Returns whether the host would send to the other's address through this interface rather than
/// through another of the list.
bool leads_to(const Interfaces& from, std::size_t at, const PathInterface& to) {
  const std::size_t own = closeness(from[at], to);
  return own != 0 && std::all_of(from.begin(), from.end(), [&](const PathInterface& other) {
           return closeness(other, to) <= own;
         });
}

}  // namespace

bool is_network(const IpNetwork& network, std::uint8_t family) {
  const std::size_t bits = family == 4 ? 32 : family == 6 ? 128 : 0;
  if (network.length == 0 || network.length > bits) return false;
  for (std::size_t bit = network.length; bit < network.bytes.size() * 8; ++bit) {
    if ((network.bytes[bit / 8] >> (7 - bit % 8) & 1) != 0) return false;
  }
  return true;
}

bool is_within(const std::array<std::uint8_t, 16>& address, const IpNetwork& network) {
  const std::size_t whole = network.length / 8;
  const std::size_t rest = network.length % 8;
  if (whole + (rest != 0 ? 1 : 0) > address.size()) return false;
  if (!std::equal(address.begin(), address.begin() + whole, network.bytes.begin())) return false;
  return rest == 0 || (address[whole] ^ network.bytes[whole]) >> (8 - rest) == 0;
}

std::vector<PathPair> pair_paths(const Interfaces& own, const Interfaces& far, bool by_own_order) {
  const Interfaces& first = by_own_order ? own : far;
  const Interfaces& second = by_own_order ? far : own;
  // Partner of each interface of `first`; an index past the end of `second` means none. The
  // identity comes first, and is kept unless another permutation matches more interfaces.
  std::vector<std::size_t> partners(std::max(first.size(), second.size()));
  std::iota(partners.begin(), partners.end(), std::size_t{0});
  std::vector<std::size_t> best = partners;
  std::size_t most = 0;
  do {
    std::size_t joined = 0;
    for (std::size_t i = 0; i < first.size(); ++i) {
      const std::size_t partner = partners[i];
      if (partner >= second.size()) continue;
      joined += leads_to(first, i, second[partner]) && leads_to(second, partner, first[i]);
    }
    if (joined > most) {
      most = joined;
      best = partners;
    }
  } while (std::next_permutation(partners.begin(), partners.end()));
  std::vector<PathPair> pairs;
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (best[i] >= second.size()) continue;
    PathPair pair{static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(best[i])};
    if (!by_own_order) std::swap(pair.own, pair.far);
    pairs.push_back(pair);
  }
  return pairs;
}

}  // namespace oriel::comm
