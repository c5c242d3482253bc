// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "oriel/error.hpp"

#include "topo/choice/rank_info.hpp"
#include "topo/machine/process_machine.hpp"

namespace oriel::topo {

/// Returns the info of a rank of this process that keeps its windows on the GPU with this CUDA
/// ordinal. The info names the GPU, the GPUs that it can map and by what path, its NUMA node and
/// fabric clique. `fabric_handles` states what the device supports; the caller must try whether the
/// process may. Depends only on its arguments and on the identities of the process and its machine.
///
/// Mappability and atomics are exact. Path kinds and bandwidths are exact if NVML or a file
/// reported links. Otherwise (`machine.links_known` is false), a peer with native atomics is
/// assumed to be connected by NVLink. Its bandwidth is then the lower of both architectures'
/// maxima, its number of hops unknown.
///
/// `seen` omits devices of which no source says whether they can be mapped; see can_map() for the
/// consequence.
Result<RankInfo> gpu_rank_info(const NodeIdentity& node, const CommunicatorMachine& machine,
                               int ordinal);

/// Returns the info of a rank of this process that keeps its windows on the host. `cpus` are its
/// processors (nothing: any). The info has its NUMA node if the processors belong to one, and known
/// bandwidths.
RankInfo host_rank_info(const NodeIdentity& node, const CommunicatorMachine& machine,
                        const std::optional<std::vector<int>>& cpus);

/// Sets the bandwidth class of this machine's network if `wanted` requests it.
void add_network(RankInfo& info, const Settings& settings, Wanted wanted);

/// Parses a UUID as NVML and CUDA print it ("GPU-" or "MIG-" and 32 digits in groups) into 16
/// bytes. Returns nothing for any other text.
std::optional<DeviceUuid> parse_device_uuid(std::string_view text);

}  // namespace oriel::topo
