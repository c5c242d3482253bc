// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/rank_routes.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "base/try.hpp"
#include "boot/auth/socket_address.hpp"
#include "comm/network/network_places.hpp"
#include "comm/paths/path_interfaces.hpp"
#include "comm/paths/path_networks.hpp"
#include "topo/choice/placement.hpp"
#include "topo/machine/process_machine.hpp"

namespace oriel::comm {

RankRoutes::RankRoutes(const NetworkOptions& options, std::vector<int> peers)
    : options_(options), peers_(std::move(peers)) {}

NetworkPlace RankRoutes::own_place() {
  auto chosen = choose_paths(
      *options_.settings,
      topo::interface_user(options_.topology->infos, static_cast<std::size_t>(options_.rank())));
  if (chosen.ok()) {
    interfaces_ = std::move(chosen).value();
  } else {
    failure_ = std::move(chosen).error().with_context("choosing network interfaces");
  }
  NetworkPlace place = place_of_this_process();
  place.interfaces.resize(std::min<std::size_t>(interfaces_.size(), net::kPathsMost));
  // Interfaces are described only if some rank may have several.
  const bool may_choose = paths_asked(options_.settings->paths) > 1;
  for (std::size_t i = 0; i < place.interfaces.size() && may_choose; ++i) {
    auto described = describe(interfaces_[i]);
    if (described.ok()) {
      place.interfaces[i] = std::move(described).value();
    } else if (!failure_.has_value()) {
      failure_ = std::move(described).error().with_context("describing network interfaces");
    }
  }
  return place;
}

/// Describes an interface. An interface without an address is an error later, when its wire is
/// made.
Result<PathInterface> RankRoutes::describe(const std::string& interface) const {
  boot::SocketOptions options{.ifname = options_.settings->socket_ifname};
  std::string name = interface;
  if (name.empty()) {
    ORIEL_TRY(const auto usable, boot::usable_interfaces(options));
    name = usable.front();
  }
  options.ifname = "=" + name;
  auto address = boot::choose_interface(options);
  if (!address.ok() && address.error().code() != ErrorCode::invalid_usage) {
    return std::move(address).error();
  }
  return describe_interface(topo::process_machine().sources().files, name,
                            address.ok() ? address.value() : boot::SocketAddress());
}

void RankRoutes::number_hosts(const std::vector<NetworkPlace>& places) {
  const auto& infos = options_.topology->infos;
  std::map<std::array<std::uint64_t, 3>, std::size_t> numbers;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const topo::NodeIdentity& node = infos[rank].node;
    const bool by_node = options_.settings->wire == WireChoice::fabric;
    const std::array<std::uint64_t, 3> name{places[rank].machine, node.network_namespace,
                                            by_node ? node.host : 0};
    host_of_.push_back(numbers.try_emplace(name, numbers.size()).first->second);
  }
}

void RankRoutes::join(const std::vector<NetworkPlace>& places) {
  number_hosts(places);
  const auto& infos = options_.topology->infos;
  const auto self = static_cast<std::size_t>(options_.rank());
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto space = infos[rank].node.network_namespace;
    const bool shares_memory = places[rank].machine == places[self].machine && space != 0 &&
                               space == infos[self].node.network_namespace &&
                               infos[rank].uid == infos[self].uid;
    by_fabric_.push_back(!shares_memory || options_.settings->wire == WireChoice::fabric);
    const bool is_peer = std::binary_search(peers_.begin(), peers_.end(), static_cast<int>(rank));
    const bool may_choose = is_peer && by_fabric_.back();
    paths_to_.push_back(
        may_choose ? pair_paths(places[self].interfaces, places[rank].interfaces, self < rank)
                   : std::vector<PathPair>(1));
  }
}

std::size_t RankRoutes::nics() const {
  std::size_t nics = 1;
  for (const auto& paths : paths_to_) {
    for (const PathPair& path : paths) nics = std::max<std::size_t>(nics, path.own + 1u);
  }
  return nics;
}

std::vector<int> RankRoutes::fabric_peers(std::size_t nic) const {
  std::vector<int> reached;
  for (const int rank : peers_) {
    const auto& paths = paths_to(rank);
    const bool is_used = std::any_of(paths.begin(), paths.end(),
                                     [nic](const PathPair& path) { return path.own == nic; });
    if (by_fabric(rank) && is_used) reached.push_back(rank);
  }
  return reached;
}

}  // namespace oriel::comm
