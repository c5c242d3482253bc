// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

/// Pairs the interfaces of two ranks, so that both ends of a path are in the same network.
namespace oriel::comm {

/// Prefix of IP addresses; the bits behind the prefix are 0.
struct IpNetwork {
  std::uint8_t length = 0;  ///< bits of the prefix, 1 to 32 or 128
  std::array<std::uint8_t, 16> bytes{};
  bool operator==(const IpNetwork&) const = default;
};

/// Description of one of a rank's interfaces, sent to the other ranks.
struct PathInterface {
  static constexpr std::size_t kNetworksMost = 32;

  std::uint8_t family = 0;  ///< 4 or 6; 0: no description, and the rest is empty
  std::array<std::uint8_t, 16> address{};
  /// Networks to which the rank's host sends through this interface, of the same family. The
  /// default route is not included, since it leads anywhere.
  std::vector<IpNetwork> networks;
  bool operator==(const PathInterface&) const = default;
};

/// Returns whether `network` is valid for this family: the prefix has 1 to all bits of an address,
/// and the remaining bits are 0. A single address is a valid network, since point-to-point links
/// have routes to their other end.
bool is_network(const IpNetwork& network, std::uint8_t family);
/// Returns whether `address` has the prefix of `network` and is long enough for it.
bool is_within(const std::array<std::uint8_t, 16>& address, const IpNetwork& network);

/// Both ends of a path, as indexes into the interface lists of the two ranks.
struct PathPair {
  std::uint8_t own = 0;
  std::uint8_t far = 0;
  bool operator==(const PathPair&) const = default;
};

/// Returns whether keys need aliases on the path: WQEs carry only the keys of first interfaces.
inline bool has_aliases(const PathPair& pair) {
  return pair.own != 0 || pair.far != 0;
}

/// Returns the paths between two ranks, the best first. There are as many as the shorter list has
/// interfaces. An interface is in at most one path.
///
/// Two interfaces match if each host would send to the other's address through that interface. This
/// holds if the longest matching prefix in the rank's lists is (also) this interface's. As many
/// interfaces as possible are matched. The others, or all if there are no descriptions, are paired
/// in order. The order of the paths is that of one end; `by_own_order` selects which.
///
/// Both ends compute the same pairs: with the lists swapped and `by_own_order` inverted, only own
/// and far are swapped. At most net::kPathsMost interfaces each.
std::vector<PathPair> pair_paths(const std::vector<PathInterface>& own,
                                 const std::vector<PathInterface>& far, bool by_own_order);

}  // namespace oriel::comm
