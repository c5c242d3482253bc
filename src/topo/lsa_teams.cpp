// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/lsa_teams.hpp"

#include <algorithm>

namespace oriel::topo {
namespace {

bool descriptors_travel(const RankInfo& from, const RankInfo& to) {
  if (from.process == to.process) return true;
  const auto space = from.node.network_namespace;
  return space != 0 && space == to.node.network_namespace && from.uid == to.uid;
}

bool device_reaches(const RankInfo& from, const RankInfo& to) {
  if (from.kind == DeviceKind::host || from.uuid == to.uuid) return true;
  const auto seen = std::find_if(from.seen.begin(), from.seen.end(),
                                 [&](const SeenDevice& device) { return device.uuid == to.uuid; });
  return seen == from.seen.end() || seen->reachable;
}

}  // namespace

bool can_map(const RankInfo& from, const RankInfo& to) {
  return from.node.host == to.node.host && from.kind == to.kind && descriptors_travel(from, to) &&
         device_reaches(from, to);
}

LsaTeams form_lsa_teams(std::span<const RankInfo> ranks) {
  LsaTeams teams;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto fits = [&](const std::vector<int>& members) {
      return std::all_of(members.begin(), members.end(), [&](int member) {
        const RankInfo& other = ranks[static_cast<std::size_t>(member)];
        return can_map(ranks[rank], other) && can_map(other, ranks[rank]);
      });
    };
    auto team = std::find_if(teams.members.begin(), teams.members.end(), fits);
    if (team == teams.members.end()) team = teams.members.insert(team, std::vector<int>());
    teams.team.push_back(static_cast<int>(team - teams.members.begin()));
    teams.index.push_back(static_cast<int>(team->size()));
    team->push_back(static_cast<int>(rank));
  }
  return teams;
}

}  // namespace oriel::topo
