// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/gpu_rank_info.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "topo/choice/reach.hpp"
#include "topo/model/nvlink_generation.hpp"

namespace oriel::topo {
namespace {

PathFacts facts_of(const CommunicatorMachine& known, int from, int to) {
  const Path path = path_between(known.machine, from, to);
  PathFacts facts;
  facts.kind = path.kind;
  facts.hops = static_cast<std::uint8_t>(std::clamp(path.hops, 0, int{kHopsMost}));
  facts.bandwidth_class = bandwidth_class(path.gbps);
  facts.atomics = path.atomics || path.kind == PathKind::same_device;
  if (path.kind == PathKind::pcie_peer && path.atomics && !known.links_known) {
    const auto gpu = [&](int index) { return known.machine.gpus[static_cast<std::size_t>(index)]; };
    facts.kind = PathKind::nvlink;
    facts.hops = 0;
    const auto most = [&](int index) {
      const NvlinkGeneration links = nvlink_generation_of(gpu(index).architecture);
      return links.links * links.link_gbps;
    };
    facts.bandwidth_class = bandwidth_class(std::min(most(from), most(to)));
  }
  return facts;
}

/// Returns the bandwidth of all NVLinks of a GPU together, reported or inferred.
double links_gbps_of(const CommunicatorMachine& known, int index) {
  const Gpu& gpu = known.machine.gpus[static_cast<std::size_t>(index)];
  double gbps = gpu.switch_links * gpu.link_gbps;
  for (const GpuPair& pair : known.machine.pairs) {
    if (pair.from == index) gbps += pair.gbps > 0 ? pair.gbps : pair.links * gpu.link_gbps;
  }
  return gbps;
}

}  // namespace

std::optional<DeviceUuid> parse_device_uuid(std::string_view text) {
  if (!text.starts_with("GPU-") && !text.starts_with("MIG-")) return std::nullopt;
  text.remove_prefix(4);
  constexpr std::size_t kTextBytes = 36;
  if (text.size() != kTextBytes) return std::nullopt;
  DeviceUuid uuid{};
  std::size_t at = 0;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) {
      if (text[at++] != '-') return std::nullopt;
    }
    unsigned value = 0;
    const char* const begin = text.data() + at;
    const auto [rest, error] = std::from_chars(begin, begin + 2, value, 16);
    if (error != std::errc() || rest != begin + 2) return std::nullopt;
    uuid[i] = static_cast<std::byte>(value);
    at += 2;
  }
  return uuid;
}

RankInfo host_rank_info(const NodeIdentity& node, const CommunicatorMachine& machine,
                        const std::optional<std::vector<int>>& cpus) {
  const std::vector<NumaNode>& numa = machine.machine.numa;
  RankInfo info = host_rank_info(node);
  info.numa = numa_number_of(numa, cpus);
  // A rank bound to no node may run anywhere: the slowest node counts.
  double slowest = numa.empty() ? 0 : numa.front().memory_gbps;
  for (const NumaNode& one : numa) {
    if (info.numa == one.os_index) {
      slowest = one.memory_gbps;
      break;
    }
    slowest = std::min(slowest, one.memory_gbps);
  }
  info.host_class = bandwidth_class(slowest);
  return info;
}

Result<RankInfo> gpu_rank_info(const NodeIdentity& node, const CommunicatorMachine& machine,
                               int ordinal) {
  const auto& gpus = machine.machine.gpus;
  const auto own = std::find_if(gpus.begin(), gpus.end(),
                                [&](const Gpu& gpu) { return gpu.ordinal == ordinal; });
  if (own == gpus.end()) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("device {} is none of the {} that the process had at its first call",
                             ordinal, gpus.size()))
        .with_hint("make all GPUs visible to CUDA before the first communicator starts");
  }
  const auto uuid = parse_device_uuid(own->uuid);
  if (!uuid) {
    return Error(ErrorCode::cuda,
                 fmt::format("device {} has '{}', which is no UUID", ordinal, own->uuid));
  }
  const auto from = static_cast<int>(own - gpus.begin());
  RankInfo info = host_rank_info(node);
  info.kind = DeviceKind::cuda;
  info.device = ordinal;
  info.uuid = *uuid;
  if (own->pci) info.pci_id = own->pci->to_string();
  if (own->numa >= 0) {
    info.numa = machine.machine.numa[static_cast<std::size_t>(own->numa)].os_index;
  }
  info.fabric = own->fabric;
  info.fabric_handles = own->fabric && own->fabric_handles;
  info.links_class = bandwidth_class(links_gbps_of(machine, from));
  info.host_class = bandwidth_class(own->pcie_gbps);
  info.may_learn_more = machine.may_learn_more;
  for (int to = 0; to < static_cast<int>(gpus.size()); ++to) {
    const Gpu& gpu = gpus[static_cast<std::size_t>(to)];
    const auto other = parse_device_uuid(gpu.uuid);
    if (!other || (to != from && *other == *uuid)) continue;
    if (!reach_is_known(machine.machine, from, to)) continue;
    info.seen.push_back({.uuid = *other,
                         .reachable = may_map(machine.machine, from, to),
                         .visible = gpu.ordinal >= 0,
                         .path = facts_of(machine, from, to)});
  }
  const auto by_uuid = [](const SeenDevice& a, const SeenDevice& b) { return a.uuid < b.uuid; };
  std::sort(info.seen.begin(), info.seen.end(), by_uuid);
  const auto same = [](const SeenDevice& a, const SeenDevice& b) { return a.uuid == b.uuid; };
  info.seen.erase(std::unique(info.seen.begin(), info.seen.end(), same), info.seen.end());
  return info;
}

void add_network(RankInfo& info, const Settings& settings, Wanted wanted) {
  if (!wanted.network) return;
  info.network_class = bandwidth_class(process_machine().network_gbps(settings));
}

}  // namespace oriel::topo
