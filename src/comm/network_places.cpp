// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network_places.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/path_interfaces.hpp"
#include "topo/node_identity.hpp"
#include "topo/process_machine.hpp"

namespace oriel::comm {
namespace {

const char* name_of(WireChoice wire) {
  return wire == WireChoice::fabric ? "fabric" : "auto";
}

const char* name_of(NicKind nic) {
  return nic == NicKind::mlx5 ? "mlx5" : "soft";
}

Error unlike(const std::string& what, std::size_t rank) {
  return Error(ErrorCode::invalid_usage, what)
      .with_origin(static_cast<int>(rank))
      .with_hint("set it alike on all ranks");
}

/// What all ranks ask for.
Status check_paths(const NetworkPlace& all) {
  const std::string asked = fmt::format("ORIEL_PATHS {}", describe_paths(all.paths_asked));
  if (all.paths_asked != kPathsAutomatic && all.paths_asked > net::kPathsMost) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{}: at most {} are possible", asked, net::kPathsMost));
  }
  if (all.paths_asked <= 1) return {};
  if (all.nic == NicKind::mlx5) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{}, and queues of adapters (ORIEL_NIC=mlx5) have no backup paths",
                             asked))
        .with_hint("unset one of the two");
  }
  return {};
}

}  // namespace

NetworkPlace place_of_this_process(const Settings& settings) {
  NetworkPlace place;
  place.machine =
      topo::host_hash(topo::read_host_facts(topo::process_machine().sources().files), "");
  place.wire = settings.wire;
  place.paths_asked = paths_asked(settings.paths);
  place.nic = settings.nic;
  return place;
}

Status check_places(const std::vector<NetworkPlace>& places) {
  const NetworkPlace& first = places[0];
  for (std::size_t rank = 1; rank < places.size(); ++rank) {
    const NetworkPlace& other = places[rank];
    if (other.nic != first.nic) {
      return unlike(fmt::format("ORIEL_NIC is {} on rank 0 and {} on rank {}", name_of(first.nic),
                                name_of(other.nic), rank),
                    rank);
    }
    if (other.wire != first.wire) {
      return unlike(fmt::format("ORIEL_WIRE is {} on rank 0 and {} on rank {}", name_of(first.wire),
                                name_of(other.wire), rank),
                    rank);
    }
    if (other.paths_asked != first.paths_asked) {
      return unlike(
          fmt::format("ORIEL_PATHS {} on rank 0 and {} on rank {}",
                      describe_paths(first.paths_asked), describe_paths(other.paths_asked), rank),
          rank);
    }
  }
  return check_paths(first);
}

}  // namespace oriel::comm
