// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/teams_network.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "oriel/device/queue.hpp"

#include "base/log.hpp"
#include "base/try.hpp"
#include "comm/communicator/wait_control.hpp"
#include "comm/device/rank_affinity.hpp"
#include "comm/network/queue_failure.hpp"

namespace oriel::comm {
namespace {

Error no_network_between_kinds(const Topology& topology, std::size_t team_size) {
  return Error(ErrorCode::invalid_usage,
               fmt::format("{} of {} ranks can reach each other's memory ({}), and there is no "
                           "network between CPUs and GPUs",
                           team_size, topology.infos.size(), topo::text_of(topology.teams)))
      .with_hint("use GPUs only, or ranks on the CPU only (ORIEL_BACKEND=host)");
}

}  // namespace

bool needs_network(const Topology& topology) {
  const auto& infos = topology.infos;
  return topology.teams.members.size() > 1 &&
         std::all_of(infos.begin(), infos.end(),
                     [&](const topo::RankInfo& info) { return info.kind == infos[0].kind; });
}

Result<std::unique_ptr<NetworkWindows>> make_network_windows(const CommunicatorParts& parts) {
  if (!needs_network(parts.topology)) return std::unique_ptr<NetworkWindows>();
  const int size = parts.session->size();
  std::vector<bool> in_team(static_cast<std::size_t>(size), false);
  for (const int member : parts.team_facts.members)
    in_team[static_cast<std::size_t>(member)] = true;
  ORIEL_TRY(auto tables, parts.device->object_pool(KeyTables::table_bytes(size), 64));
  const auto windows_lie = on_host(parts) ? net::MemoryPlace::host : net::MemoryPlace::gpu;
  return std::make_unique<NetworkWindows>(
      parts.session->world(), parts.session->rank(), std::move(in_team), std::move(tables),
      [device = parts.device](std::size_t bytes) { return device->object_pool(bytes, 64); },
      windows_lie);
}

Task<Status> make_network(EventLoop& loop, CommunicatorParts& parts, Deadline deadline) {
  if (parts.network != nullptr || parts.topology.teams.members.size() == 1) co_return Status();
  NetworkOptions options;
  options.session = parts.session.get();
  options.topology = &parts.topology;
  options.settings = parts.settings;
  options.communicator = parts.team_facts.communicator;
  options.cpus = affinity_of(*parts.device).cpus;
  options.device = parts.device;
  options.windows = parts.network_windows.get();
  auto made = co_await Network::make(loop, std::move(options), deadline);
  if (!made.ok()) {
    co_return std::move(made).error().with_context("making queues to the ranks of other nodes");
  }
  parts.network = std::move(made).value();
  parts.live_network = parts.network.get();
  if (on_host(parts)) parts.network->add_doorbell(*own_doorbell(parts));
  begin_exchanges(parts);
  if (parts.has_failed) parts.network->abort();  // by a thread that has not seen it
  parts.no_network.reset();
  co_return Status();
}

Task<Status> connect_teams(EventLoop& loop, CommunicatorParts& parts, Deadline deadline) {
  if (parts.network_windows == nullptr) {
    if (parts.topology.teams.members.size() > 1) {
      parts.no_network = no_network_between_kinds(parts.topology, parts.team_facts.members.size());
    }
    co_return Status();
  }
  Status made = co_await make_network(loop, parts, deadline);
  if (made.ok() || made.error().code() != ErrorCode::invalid_usage) co_return made;
  // Ranks without a path to each other may still make calls inside their teams.
  parts.no_network = std::move(made).error();
  Log(parts.session->rank()).info("no collectives among teams: {}", parts.no_network->to_string());
  co_return Status();
}

void begin_exchanges(CommunicatorParts& parts) {
  kernels::ExchangeMemory memory;
  memory.scratch = parts.control.flat_base;
  memory.flat_base = parts.control.flat_base - parts.control.slot_offset;
  memory.stride_4g = static_cast<std::uint32_t>(parts.slot_bytes >> 32);
  memory.doorbell = parts.layout.doorbell;
  memory.failure = &parts.notices->on_device()->failure;
  memory.wait = wait_control(parts, own_doorbell(parts));
  if (!parts.processes.empty()) memory.processes = parts.processes.data();
  if (parts.network != nullptr) {
    memory.network = on_host(parts) ? &parts.network->view() : parts.network->kernel_view();
    memory.network_window = parts.sink->view(parts.control.handle).network;
  }
  if (!on_host(parts) && parts.teams.view().groups == 1) {
    memory.signatures = parts.layout.signatures;
    memory.signature_calls = parts.layout.epochs + offsetof(kernels::CtaCounters, signature);
  }
  // ORIEL_ALGORITHM=stream forces streams for every collective that has them.
  const bool may_use_copy_engines =
      parts.topology.may_use_copy_engines() && parts.settings->algorithm != AlgorithmChoice::stream;
  parts.exchanges->begin(memory, *parts.windows, may_use_copy_engines, parts.team_facts.on_one_gpu);
}

void flush_network(const CommunicatorParts& parts) {
  if (parts.network == nullptr || parts.has_failed) return;
  if (!on_host(parts)) {
    // The NIC executes the WQEs that kernels have posted, without this thread.
    const Clock& clock = SteadyClock::instance();
    const Deadline deadline = Deadline::after(kDrainGrace, clock);
    while (!parts.network->is_idle()) {
      if (deadline.expired(clock.now())) {
        Log(parts.session->rank()).info("the NIC has not sent all that kernels have posted");
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return;
  }
  device::WaitControl control = wait_control(parts, nullptr);
  control.stall = nullptr;
  control.timeout_ns = static_cast<std::uint64_t>(kDrainGrace.count());
  const device::detail::Driving driving(&parts.network->view());
  for (int peer = 0; peer < parts.session->size(); ++peer) {
    const device::queue::QueueView& queue = parts.network->view().queues[peer];
    if (queue.depth == 0) continue;
    const auto has_left = [&] { return parts.session->has_left(peer); };
    if (wait_all_unless(queue, control, has_left)) continue;
    Log(parts.session->rank()).info("rank {} has not taken all that it was sent", peer);
    return;
  }
}

}  // namespace oriel::comm
