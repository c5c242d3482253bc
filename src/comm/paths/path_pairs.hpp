// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

/// Which interface of a rank is joined with which of another one, so that a path begins and ends in
/// the same network.
namespace oriel::comm {

/// The first bits of IP addresses; the others are 0.
struct IpNetwork {
  std::uint8_t length = 0;  ///< bits, as many as an address has at most, and not 0
  std::array<std::uint8_t, 16> bytes{};
  bool operator==(const IpNetwork&) const = default;
};

/// What a rank tells of an interface of its.
struct PathInterface {
  static constexpr std::size_t kNetworksMost = 32;

  std::uint8_t family = 0;  ///< 4 or 6; 0: nothing is told, and the rest is empty
  std::array<std::uint8_t, 16> address{};
  /// Those to which its host sends by this interface, of the same family; the default route, which
  /// leads anywhere, is not among them.
  std::vector<IpNetwork> networks;
  bool operator==(const PathInterface&) const = default;
};

/// Whether it is a network of this family: not all of it, and with 0 behind. One address is one
/// too: links from point to point have routes to their other end.
bool is_network(const IpNetwork& network, std::uint8_t family);
/// Whether the first bits of both are alike, and there are so many.
bool is_within(const std::array<std::uint8_t, 16>& address, const IpNetwork& network);

/// The ends of a path, as places in the lists of both ranks.
struct PathPair {
  std::uint8_t own = 0;
  std::uint8_t far = 0;
  bool operator==(const PathPair&) const = default;
};

/// Whether keys have other names on the path than in entries, which know first interfaces alone.
inline bool has_aliases(const PathPair& pair) {
  return pair.own != 0 || pair.far != 0;
}

/// The paths between two ranks, the best one first: as many as the shorter list has interfaces,
/// each of which has one path.
///
/// Two interfaces are joined where each host would send to the other's address by that interface:
/// of all networks that its rank has told, the smallest one with that address is (among others)
/// this interface's. As many of them are paired as can be; what is left, and everything where
/// nothing is told, is paired in order. The order of paths is that of one end, `by_own_order` says
/// whose.
///
/// Both ends come to the same: with the lists exchanged, and the other end's order, own and far are
/// exchanged and nothing else. At most net::kPathsMost interfaces each.
std::vector<PathPair> pair_paths(const std::vector<PathInterface>& own,
                                 const std::vector<PathInterface>& far, bool by_own_order);

}  // namespace oriel::comm
