// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/lsa_teams.hpp"

#include <algorithm>

namespace oriel::topo {
namespace {

bool device_reaches(const RankInfo& from, const RankInfo& to) {
  if (from.kind == DeviceKind::host || from.uuid == to.uuid) return true;
  if (const SeenDevice* seen = find_seen(from, to.uuid)) return seen->reachable;
  if (from.fabric && from.fabric == to.fabric) return true;
  return from.node.host == to.node.host;  // no source says
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
  return from.kind == to.kind &&
         (descriptors_travel(from, to) || fabric_handles_travel(from, to)) &&
         device_reaches(from, to);
}

bool reach_is_assumed(const RankInfo& from, const RankInfo& to) {
  const bool told = from.kind == DeviceKind::host || from.uuid == to.uuid ||
                    find_seen(from, to.uuid) != nullptr ||
                    (from.fabric && from.fabric == to.fabric);
  return !told && can_map(from, to);
}

LsaTeams form_lsa_teams(std::span<const RankInfo> ranks, int most) {
  LsaTeams teams;
  const auto info_of = [&](int rank) -> const RankInfo& {
    return ranks[static_cast<std::size_t>(rank)];
  };
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankInfo& own = ranks[rank];
    const auto fits = [&](const std::vector<int>& members) {
      const auto mutual = [&](int member) {
        return can_map(own, info_of(member)) && can_map(info_of(member), own);
      };
      if (!std::all_of(members.begin(), members.end(), mutual)) return false;
      if (static_cast<int>(members.size()) < most) return true;
      return std::all_of(members.begin(), members.end(),
                         [&](int member) { return info_of(member).node.host == own.node.host; });
    };
    auto team = std::find_if(teams.members.begin(), teams.members.end(), fits);
    if (team == teams.members.end()) team = teams.members.insert(team, std::vector<int>());
    teams.team.push_back(static_cast<int>(team - teams.members.begin()));
    teams.index.push_back(static_cast<int>(team->size()));
    team->push_back(static_cast<int>(rank));
  }
  return teams;
}

std::vector<int> descriptor_domains(std::span<const RankInfo> ranks, std::span<const int> members) {
  std::vector<int> domains;
  std::vector<const RankInfo*> first;  // of each domain
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
