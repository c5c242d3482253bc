// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/rank_paths.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace oriel::topo {
namespace {

constexpr std::size_t kTeamsInText = 16;

PathFacts network_path(std::uint8_t a, std::uint8_t b) {
  return {.kind = PathKind::network, .bandwidth_class = std::min(a, b)};
}

/// Returns the path between ranks that share host memory, or else a network.
PathFacts host_path(const RankInfo& a, const RankInfo& b) {
  if (!descriptors_travel(a, b)) return network_path(a.network_class, b.network_class);
  PathFacts path{.kind = PathKind::host_memory,
                 .hops = 2,
                 .bandwidth_class = std::min(a.host_class, b.host_class)};
  if (a.kind != DeviceKind::host || b.kind != DeviceKind::host) return path;
  if (a.process == b.process) {
    path.hops = 0;
  } else if (a.numa >= 0 && a.numa == b.numa) {
    path.hops = 1;
  }
  return path;
}

/// Returns the worse path by kind, hops and bandwidth, with atomics only if both have them.
PathFacts worse(const PathFacts& a, const PathFacts& b) {
  const auto rank_of = [](const PathFacts& path) {
    return std::tuple(path.kind, path.hops, -path.bandwidth_class);
  };
  PathFacts path = rank_of(a) < rank_of(b) ? b : a;
  path.atomics = a.atomics && b.atomics;
  return path;
}

/// Adds a number to an FNV-1a hash with 64 bits (Fowler, Noll, Vo).
constexpr std::uint64_t kNumbersHashBasis = 0xcbf29ce484222325u;
std::uint64_t add(std::uint64_t hash, std::uint64_t number) {
  constexpr std::uint64_t kPrime = 0x100000001b3u;
  for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (number >> (8 * byte) & 0xff)) * kPrime;
  return hash;
}

/// Ranks that share a node or a clique, in ascending lists.
class Neighbourhoods {
 public:
  explicit Neighbourhoods(std::span<const RankInfo> ranks) : ranks_(ranks) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      by_host_[ranks[rank].node.host].push_back(static_cast<int>(rank));
      if (ranks[rank].fabric)
        by_fabric_[key_of(*ranks[rank].fabric)].push_back(static_cast<int>(rank));
    }
  }
  /// Returns the ranks of these lists above `rank`, ascending.
  std::vector<int> behind(int rank) const {
    const RankInfo& own = ranks_[static_cast<std::size_t>(rank)];
    std::vector<int> list;
    const auto take = [&](const std::vector<int>& all) {
      list.insert(list.end(), std::upper_bound(all.begin(), all.end(), rank), all.end());
    };
    take(by_host_.at(own.node.host));
    if (own.fabric) take(by_fabric_.at(key_of(*own.fabric)));
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    return list;
  }

 private:
  using FabricKey = std::pair<std::array<std::byte, 16>, std::uint32_t>;
  static FabricKey key_of(const FabricClique& fabric) { return {fabric.cluster, fabric.clique}; }

  std::span<const RankInfo> ranks_;
  std::map<std::uint64_t, std::vector<int>> by_host_;
  std::map<FabricKey, std::vector<int>> by_fabric_;
};

}  // namespace

PathFacts rank_path(const RankInfo& from, const RankInfo& to) {
  if (from.kind == DeviceKind::cuda && can_map(from, to)) {
    if (from.uuid == to.uuid) return {.kind = PathKind::same_device, .atomics = true};
    if (const SeenDevice* seen = find_seen(from, to.uuid)) return seen->path;
    // Uses the other side's knowledge before an assumption: links work in both directions, and the
    // device may be hidden from `from` only.
    const SeenDevice* back = find_seen(to, from.uuid);
    if (back != nullptr && back->reachable) return back->path;
    if (from.fabric && from.fabric == to.fabric) {
      return {.kind = PathKind::nvlink,
              .hops = 2,
              .bandwidth_class = std::min(from.links_class, to.links_class),
              .atomics = true};
    }
    return {.kind = PathKind::pcie_peer};
  }
  return host_path(from, to);
}

RankPaths::RankPaths(std::span<const RankInfo> ranks) : near_(ranks.size()), asks_(ranks.size()) {
  const Neighbourhoods neighbourhoods(ranks);
  network_pairs_ = ranks.size() * (ranks.size() - (ranks.empty() ? 0 : 1)) / 2;
  for (const RankInfo& rank : ranks) network_.push_back(rank.network_class);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const int peer : neighbourhoods.behind(static_cast<int>(rank))) {
      const RankInfo& other = ranks[static_cast<std::size_t>(peer)];
      const RankInfo& own = ranks[rank];
      const PathFacts path = worse(rank_path(own, other), rank_path(other, own));
      const bool there = reach_is_assumed(own, other), back = reach_is_assumed(other, own);
      if (there || back) ++assumed_;
      if (there && own.may_learn_more) asks_[rank] = true;
      if (back && other.may_learn_more) asks_[static_cast<std::size_t>(peer)] = true;
      if (path.kind == PathKind::network) continue;
      near_[rank].push_back({peer, path});
      --network_pairs_;
    }
  }
}

PathFacts RankPaths::between(int a, int b) const {
  if (a == b) return {.kind = PathKind::same_device, .atomics = true};
  const auto& list = near_.at(static_cast<std::size_t>(std::min(a, b)));
  const int peer = std::max(a, b);
  const auto found = std::lower_bound(list.begin(), list.end(), peer,
                                      [](const Near& near, int key) { return near.peer < key; });
  if (found != list.end() && found->peer == peer) return found->path;
  return far_between(static_cast<std::size_t>(a), static_cast<std::size_t>(b));
}

PathFacts RankPaths::far_between(std::size_t a, std::size_t b) const {
  return network_path(network_.at(a), network_.at(b));
}

bool RankPaths::leave_questions() const {
  return network_pairs_ > 0 || std::find(asks_.begin(), asks_.end(), true) != asks_.end();
}

std::uint64_t RankPaths::hash() const {
  std::uint64_t hash = add(kNumbersHashBasis, near_.size());
  for (const std::uint8_t network : network_) hash = add(hash, network);
  for (const bool asks : asks_) hash = add(hash, asks ? 1 : 0);
  for (const auto& list : near_) {
    hash = add(hash, list.size());
    for (const auto& [peer, path] : list) {
      hash = add(hash, static_cast<std::uint64_t>(peer));
      hash = add(hash, static_cast<std::uint64_t>(path.kind) << 24 |
                           static_cast<std::uint64_t>(path.hops) << 16 |
                           static_cast<std::uint64_t>(path.bandwidth_class) << 8 |
                           static_cast<std::uint64_t>(path.atomics));
    }
  }
  return hash;
}

std::string RankPaths::summary() const {
  const std::size_t pairs = near_.size() * (near_.size() - (near_.empty() ? 0 : 1)) / 2;
  // Counts network pairs by class without enumerating all pairs. A pair is as slow as the slower of
  // its ranks.
  std::array<std::size_t, kBandwidthClassMost + 1> ranks{};
  for (const std::uint8_t network : network_) ++ranks[network];
  std::array<std::size_t, kBandwidthClassMost + 1> far{};
  std::size_t faster = 0;
  for (std::size_t one = ranks.size(); one-- > 0;) {
    far[one] = ranks[one] * faster + ranks[one] * (ranks[one] - (ranks[one] > 0 ? 1 : 0)) / 2;
    faster += ranks[one];
  }
  std::map<std::tuple<PathKind, std::uint8_t, int>, std::pair<PathFacts, std::size_t>> counts;
  const auto count = [&](const PathFacts& path, std::size_t more) {
    if (more == 0) return;
    auto& entry = counts[{path.kind, path.hops, -path.bandwidth_class}];
    entry.first = path;
    entry.second += more;
  };
  for (std::size_t rank = 0; rank < near_.size(); ++rank) {
    for (const auto& [peer, path] : near_[rank]) {
      count(path, 1);
      --far[far_between(rank, static_cast<std::size_t>(peer)).bandwidth_class];
    }
  }
  for (std::size_t one = 0; one < far.size(); ++one) {
    const auto network = static_cast<std::uint8_t>(one);
    count(network_path(network, network), far[one]);
  }
  std::string text;
  for (const auto& [key, entry] : counts) {
    text += fmt::format("{}{} by {}", text.empty() ? "" : "; ", entry.second, text_of(entry.first));
  }
  if (assumed_ > 0) {
    text += fmt::format(
        "; of {} no source says that they map each other's memory, which is assumed", assumed_);
  }
  return fmt::format("{} pair{} of ranks{}{}", pairs, pairs == 1 ? "" : "s",
                     text.empty() ? "" : ": ", text);
}

std::uint64_t add_teams(std::uint64_t hash, const LsaTeams& teams) {
  hash = add(hash, teams.members.size());
  for (const int team : teams.team) hash = add(hash, static_cast<std::uint64_t>(team));
  return hash;
}

std::string text_of(const LsaTeams& teams) {
  const std::size_t count = teams.members.size();
  std::string text = fmt::format("{} LSA team{}:", count, count == 1 ? "" : "s");
  for (std::size_t team = 0; team < std::min(count, kTeamsInText); ++team) {
    const auto& members = teams.members[team];
    text += team == 0 ? " " : ", ";
    for (std::size_t i = 0; i < members.size();) {
      std::size_t last = i;
      while (last + 1 < members.size() && members[last + 1] == members[last] + 1) ++last;
      text += i == 0 ? "" : "+";
      text +=
          last == i ? std::to_string(members[i]) : fmt::format("{}-{}", members[i], members[last]);
      i = last + 1;
    }
  }
  if (count > kTeamsInText) text += fmt::format(" and {} more", count - kTeamsInText);
  return text;
}

}  // namespace oriel::topo
