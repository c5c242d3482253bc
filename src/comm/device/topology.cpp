// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/topology.hpp"

#include <algorithm>
#include <map>
#include <string>

#include <fmt/format.h>

namespace oriel::comm {

boot::AgreedField Topology::agreed_field() const {
  const auto text = [](std::uint64_t hash) {
    return fmt::format("ones with the hash {:#018x}", hash);
  };
  return {"the teams and paths computed from what the ranks have sent",
          topo::add_teams(paths.hash(), teams), text};
}

std::string Topology::summary() const {
  return fmt::format("{}; {}", topo::text_of(teams), paths.summary());
}

bool Topology::may_use_copy_engines() const {
  return infos.size() > 1 && teams.members.size() == 1 &&
         std::all_of(infos.begin(), infos.end(),
                     [](const topo::RankInfo& info) { return info.wants_copy_engines; });
}

std::string Topology::reach_of(int rank) const {
  std::map<std::string, std::string> ranks_by_path;
  for (int peer = 0; peer < static_cast<int>(infos.size()); ++peer) {
    const auto& own = infos[static_cast<std::size_t>(rank)].node.host;
    if (peer == rank || infos[static_cast<std::size_t>(peer)].node.host != own) continue;
    std::string& ranks = ranks_by_path[topo::text_of(paths.between(rank, peer))];
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", peer);
  }
  std::string text;
  for (const auto& [path, ranks] : ranks_by_path) {
    const bool is_one = ranks.find(',') == std::string::npos;
    text +=
        fmt::format("{}rank{} {} by {}", text.empty() ? "" : "; ", is_one ? "" : "s", ranks, path);
  }
  return text;
}

namespace {

bool are_complete(const std::vector<Bytes>& messages) {
  return std::none_of(messages.begin(), messages.end(),
                      [](const Bytes& message) { return message.empty(); });
}

void conclude(Topology& topology, int most_gpus) {
  topology.teams = topo::form_lsa_teams(topology.infos, most_gpus);
  topology.paths = topo::RankPaths(topology.infos);
}

// Applies ORIEL_P2P_DISABLE of any rank to all ranks of a communicator.
void keep_all_apart_if_one_asks(std::vector<topo::RankInfo>& infos) {
  const auto asks = [](const topo::RankInfo& info) { return info.keeps_apart; };
  if (std::none_of(infos.begin(), infos.end(), asks)) return;
  for (topo::RankInfo& info : infos) info.keeps_apart = info.kind == topo::DeviceKind::cuda;
}

}  // namespace

Result<Topology> make_topology(const std::vector<Bytes>& messages, int most_gpus) {
  Topology topology;
  if (!are_complete(messages)) return topology;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    auto info = topo::decode_rank_info(messages[rank]);
    if (!info.ok()) return std::move(info).error().with_origin(static_cast<int>(rank));
    topology.infos.push_back(std::move(info).value());
  }
  keep_all_apart_if_one_asks(topology.infos);
  conclude(topology, most_gpus);
  return topology;
}

Result<Topology> complete_topology(Topology first, const std::vector<Bytes>& messages,
                                   int most_gpus) {
  if (!are_complete(messages)) return Topology{};
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    const topo::Wanted wanted = first.paths.wanted_of(static_cast<int>(rank));
    Status reported = topo::add_supplement(first.infos[rank], messages[rank], wanted);
    if (!reported.ok()) return std::move(reported).error().with_origin(static_cast<int>(rank));
  }
  conclude(first, most_gpus);
  return first;
}

}  // namespace oriel::comm
