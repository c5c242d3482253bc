// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/lsa_teams.hpp"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>

namespace oriel::topo {
namespace {

bool device_reaches(const RankInfo& from, const RankInfo& to) {
  if (from.kind == DeviceKind::host || from.uuid == to.uuid) return true;
  if (const SeenDevice* seen = find_seen(from, to.uuid)) return seen->reachable;
  if (from.fabric && from.fabric == to.fabric) return true;
  return from.node.host == to.node.host;  // no source has information
}

}  // namespace

bool descriptors_travel(const RankInfo& a, const RankInfo& b) {
  if (a.node.host != b.node.host) return false;
  if (a.process == b.process) return true;
  const auto space = a.node.network_namespace;
  return space != 0 && space == b.node.network_namespace && a.uid == b.uid;
}

bool fabric_handles_travel(const RankInfo& a, const RankInfo& b) {
  if (!a.fabric_handles || !b.fabric_handles || !a.fabric || a.fabric != b.fabric) return false;
  return a.node.host == b.node.host || (!a.node.named && !b.node.named);
}

bool can_map(const RankInfo& from, const RankInfo& to) {
  return from.kind == to.kind && !from.keeps_apart && !to.keeps_apart &&
         (descriptors_travel(from, to) || fabric_handles_travel(from, to)) &&
         device_reaches(from, to);
}

bool reach_is_assumed(const RankInfo& from, const RankInfo& to) {
  const bool reported = from.kind == DeviceKind::host || from.uuid == to.uuid ||
                        find_seen(from, to.uuid) != nullptr ||
                        (from.fabric && from.fabric == to.fabric);
  return !reported && can_map(from, to);
}

namespace {

bool map_each_other(const RankInfo& a, const RankInfo& b) {
  return can_map(a, b) && can_map(b, a);
}

class Teams {
 public:
  Teams(std::span<const RankInfo> ranks, int most)
      : ranks_(ranks), most_(most), brought_(ranks.size(), 0) {
    for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
      ranks_of_host_[info_of(rank).node.host].push_back(rank);
    }
  }

  void add(int rank) {
    std::size_t team = 0;
    while (team < teams_.members.size() && !fits(rank, team)) ++team;
    if (team == teams_.members.size()) {
      teams_.members.emplace_back();
      places_.push_back(0);
    }
    std::vector<int>& members = teams_.members[team];
    if (!has_host_of(rank, team)) places_[team] += on_host_of(rank);
    teams_.team.push_back(static_cast<int>(team));
    teams_.index.push_back(static_cast<int>(members.size()));
    members.push_back(rank);
  }

  LsaTeams take() { return std::move(teams_); }

 private:
  const RankInfo& info_of(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  /// Checks the size first, which is quick: most teams are full.
  bool fits(int rank, std::size_t team) {
    if (!has_host_of(rank, team) && places_[team] + on_host_of(rank) > most_) return false;
    const std::vector<int>& members = teams_.members[team];
    const auto mutual = [&](int member) { return map_each_other(info_of(rank), info_of(member)); };
    return std::all_of(members.begin(), members.end(), mutual);
  }

  bool has_host_of(int rank, std::size_t team) const {
    const std::vector<int>& members = teams_.members[team];
    return std::any_of(members.begin(), members.end(), [&](int member) {
      return info_of(member).node.host == info_of(rank).node.host;
    });
  }

  /// Returns the number of ranks of its host that can join a team with `rank`, wherever they are
  /// now. A rank that came earlier and did not fit must not be separated from later ones. Cached,
  /// because many teams are tried.
  int on_host_of(int rank) {
    int& count = brought_[static_cast<std::size_t>(rank)];
    if (count > 0) return count;
    const RankInfo& own = info_of(rank);
    const std::vector<int>& beside = ranks_of_host_.at(own.node.host);
    count = static_cast<int>(std::count_if(beside.begin(), beside.end(), [&](int one) {
      return one == rank || map_each_other(own, info_of(one));
    }));
    return count;
  }

  std::span<const RankInfo> ranks_;
  int most_;
  LsaTeams teams_;
  std::vector<int> places_;   // by team: the places taken or reserved for all ranks of its hosts
  std::vector<int> brought_;  // by rank: the cached result of on_host_of(), or 0
  std::unordered_map<std::uint64_t, std::vector<int>> ranks_of_host_;
};

}  // namespace

LsaTeams form_lsa_teams(std::span<const RankInfo> ranks, int most) {
  Teams teams(ranks, most);
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) teams.add(rank);
  return teams.take();
}

std::vector<int> descriptor_domains(std::span<const RankInfo> ranks, std::span<const int> members) {
  std::vector<int> domains;
  std::vector<const RankInfo*> first;  // first member by domain
  for (const int member : members) {
    const RankInfo& own = ranks[static_cast<std::size_t>(member)];
    const auto found = std::find_if(first.begin(), first.end(), [&](const RankInfo* one) {
      return descriptors_travel(*one, own);
    });
    domains.push_back(static_cast<int>(found - first.begin()));
    if (found == first.end()) first.push_back(&own);
  }
  return domains;
}

}  // namespace oriel::topo
