// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/peer_processes.hpp"

#include <cstddef>
#include <cstdint>

#include "base/log.hpp"
#include "base/process_memory.hpp"
#include "base/process_number.hpp"
#include "kernels/plan/layout.hpp"

namespace oriel::comm {
namespace {

using Reach = kernels::PeerProcess::Reach;

kernels::ReadingProbe* probe_in(std::byte* scratch) {
  return reinterpret_cast<kernels::ReadingProbe*>(scratch + kernels::ScratchLayout::reading_probe);
}

/// Returns how this rank reaches the memory of the team's rank `index`.
kernels::PeerProcess find_process(const CommunicatorParts& parts, std::size_t index) {
  const auto& infos = parts.topology.infos;
  const topo::RankInfo& own = infos[static_cast<std::size_t>(parts.team_facts.world_rank)];
  const topo::RankInfo& other = infos[static_cast<std::size_t>(parts.team_facts.members[index])];
  if (other.process == own.process) return {Reach::own_process};
  if (!topo::shares_pids(own, other)) return {};
  const kernels::ReadingProbe& probe =
      *probe_in(parts.control.flat_base + index * parts.slot_bytes);
  std::uint64_t word = 0;
  const bool can_read =
      read_process_memory(other.pid, reinterpret_cast<std::byte*>(&word),
                          reinterpret_cast<const std::byte*>(probe.address), sizeof word);
  if (!can_read || word != probe.token) return {};
  return {Reach::other_process, other.pid};
}

}  // namespace

void write_reading_probe(CommunicatorParts& parts) {
  if (!on_host(parts)) return;
  // The word differs on each rank. So a pid that denotes another process here is detected.
  parts.probed_word = process_number() + static_cast<std::uint64_t>(parts.session->rank());
  kernels::ReadingProbe& probe = *probe_in(static_cast<std::byte*>(parts.scratch));
  probe.address = reinterpret_cast<std::uintptr_t>(&parts.probed_word);
  probe.token = parts.probed_word;
}

void find_peer_processes(CommunicatorParts& parts) {
  if (!on_host(parts)) return;
  const std::size_t size = parts.team_facts.members.size();
  const auto own = static_cast<std::size_t>(parts.team_facts.index);
  std::size_t unread = 0;
  for (std::size_t index = 0; index < size; ++index) {
    parts.processes.push_back(index == own ? kernels::PeerProcess{} : find_process(parts, index));
    if (index != own && parts.processes.back().reach == Reach::none) ++unread;
  }
  if (unread == 0) return;
  Log(parts.session->rank())
      .info(
          "may not read the memory of {} of the {} other ranks of its team: what they send from "
          "outside windows takes two copies",
          unread, size - 1);
}

}  // namespace oriel::comm
