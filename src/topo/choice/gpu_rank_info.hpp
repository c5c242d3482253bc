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

/// The info of a rank of this process that keeps its windows on the GPU with this CUDA ordinal:
/// which GPU it is, which others it can map and by what path, its NUMA node and fabric clique.
/// `fabric_handles` says what the device can do; whether the process may is for the caller to try.
/// A function of its arguments (and of what identifies the process).
///
/// Exact: who maps whom, atomics, and, where NVML or a file told of links, kinds of paths and their
/// bandwidth. Where neither did (`machine.links_known` is false), a peer with native atomics is
/// taken for one over NVLink, with the bandwidth that GPUs of its architecture have at most and an
/// unknown number of hops.
///
/// Devices of which no source says whether they can be mapped are left out of `seen`; see can_map()
/// for what that means.
Result<RankInfo> gpu_rank_info(const NodeIdentity& node, const CommunicatorMachine& machine,
                               int ordinal);

/// The info of a rank of this process that keeps its windows on the host and may run on these
/// processors (nothing: on any): its NUMA node, where they are of one, and what is known of speeds.
RankInfo host_rank_info(const NodeIdentity& node, const CommunicatorMachine& machine,
                        const std::optional<std::vector<int>>& cpus);

/// The class of this machine's network, if it is wanted.
void add_network(RankInfo& info, const Settings& settings, Wanted wanted);

/// The 16 bytes of a UUID as NVML and CUDA print it ("GPU-" or "MIG-" and 32 digits in groups);
/// nothing for any other text.
std::optional<DeviceUuid> parse_device_uuid(std::string_view text);

}  // namespace oriel::topo
