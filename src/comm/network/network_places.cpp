// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_places.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/paths/path_interfaces.hpp"
#include "topo/machine/process_machine.hpp"
#include "topo/model/node_identity.hpp"

namespace oriel::comm {
namespace {

const char* name_of(WireChoice wire) {
  return wire == WireChoice::fabric ? "fabric" : "auto";
}

const char* name_of(NicKind nic) {
  return nic == NicKind::mlx5 ? "mlx5" : "soft";
}

std::string text_of_nic(std::uint64_t kind) {
  return name_of(static_cast<NicKind>(kind));
}

std::string text_of_wire(std::uint64_t choice) {
  return name_of(static_cast<WireChoice>(choice));
}

std::string text_of_paths(std::uint64_t asked) {
  return describe_paths(static_cast<std::uint8_t>(asked));
}

}  // namespace

NetworkPlace place_of_this_process() {
  NetworkPlace place;
  place.machine =
      topo::host_hash(topo::read_host_facts(topo::process_machine().sources().files), "");
  return place;
}

std::vector<boot::AgreedField> network_fields(const Settings& settings) {
  return {
      {"the kind of NIC (ORIEL_NIC)", static_cast<std::uint64_t>(settings.nic), text_of_nic},
      {"the wire between nodes (ORIEL_WIRE)", static_cast<std::uint64_t>(settings.wire),
       text_of_wire},
      {"the choice of paths (ORIEL_PATHS)", paths_asked(settings.paths), text_of_paths},
  };
}

Status check_network_settings(const Settings& settings) {
  const std::uint8_t paths = paths_asked(settings.paths);
  if (paths <= 1 || settings.nic != NicKind::mlx5) return {};
  return Error(ErrorCode::invalid_usage,
               fmt::format("ORIEL_PATHS {}, and queues of adapters (ORIEL_NIC=mlx5) have no backup "
                           "paths",
                           describe_paths(paths)))
      .with_hint("unset one of the two");
}

}  // namespace oriel::comm
