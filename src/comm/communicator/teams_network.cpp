// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "oriel/device/queue.hpp"

#include "base/log.hpp"
#include "base/try.hpp"
#include "comm/communicator/rank_communicator.hpp"
#include "comm/device/rank_affinity.hpp"
#include "comm/network/queue_failure.hpp"

/// The network between the LSA teams of a communicator: when there is one, how it is made, and how
/// it is emptied before the end.
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

bool Communicator::needs_network() const {
  const auto& infos = topology_.infos;
  return topology_.teams.members.size() > 1 &&
         std::all_of(infos.begin(), infos.end(),
                     [&](const topo::RankInfo& info) { return info.kind == infos[0].kind; });
}

/// None where no queue will ever lead to another rank: the same on all ranks, for participants take
/// part in every registration.
Result<std::unique_ptr<NetworkWindows>> Communicator::make_network_windows() {
  if (!needs_network()) return std::unique_ptr<NetworkWindows>();
  std::vector<bool> in_team(static_cast<std::size_t>(size()), false);
  for (const int member : team_facts_.members) in_team[static_cast<std::size_t>(member)] = true;
  ORIEL_TRY(auto tables, device_->object_pool(KeyTables::table_bytes(size()), 64));
  const auto windows_lie = on_host() ? net::MemoryPlace::host : net::MemoryPlace::gpu;
  return std::make_unique<NetworkWindows>(
      session_->world(), rank(), std::move(in_team), std::move(tables),
      [device = device_](std::size_t bytes) { return device->object_pool(bytes, 64); },
      windows_lie);
}

Task<Status> Communicator::make_network(EventLoop& loop, Deadline deadline) {
  if (network_ != nullptr || topology_.teams.members.size() == 1) co_return Status();
  NetworkOptions options;
  options.session = session_.get();
  options.topology = &topology_;
  options.settings = settings_;
  options.communicator = team_facts_.communicator;
  options.cpus = affinity_of(*device_).cpus;
  options.device = device_;
  options.windows = network_windows_.get();
  auto made = co_await Network::make(loop, std::move(options), deadline);
  if (!made.ok()) {
    co_return std::move(made).error().with_context("making queues to the ranks of other nodes");
  }
  network_ = std::move(made).value();
  live_network_ = network_.get();
  if (on_host()) network_->add_doorbell(*own_doorbell());
  begin_exchanges();
  if (poisoned_) network_->abort();  // by somebody who has not seen it
  no_network_.reset();
  co_return Status();
}

Task<Status> Communicator::connect_teams(EventLoop& loop, Deadline deadline) {
  if (network_windows_ == nullptr) {
    if (topology_.teams.members.size() > 1) {
      no_network_ = no_network_between_kinds(topology_, team_facts_.members.size());
    }
    co_return Status();
  }
  Status made = co_await make_network(loop, deadline);
  if (made.ok() || made.error().code() != ErrorCode::invalid_usage) co_return made;
  // Ranks that have no path to each other may still use what they have inside their teams.
  no_network_ = std::move(made).error();
  Log(rank()).info("no collectives among teams: {}", no_network_->to_string());
  co_return Status();
}

void Communicator::flush_network() {
  if (network_ == nullptr || poisoned_) return;
  if (!on_host()) {
    // The NIC's own thread sends the entries that kernels have posted.
    const Clock& clock = SteadyClock::instance();
    const Deadline deadline = Deadline::after(kDrainGrace, clock);
    while (!network_->is_idle()) {
      if (deadline.expired(clock.now())) {
        Log(rank()).info("the NIC has not sent all that kernels have posted");
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return;
  }
  device::WaitControl control = wait_control(nullptr);
  control.stall = nullptr;
  control.timeout_ns = static_cast<std::uint64_t>(kDrainGrace.count());
  const device::detail::Driving driving(&network_->view());
  for (int peer = 0; peer < size(); ++peer) {
    const device::queue::QueueView& queue = network_->view().queues[peer];
    if (queue.depth == 0) continue;
    const auto has_left = [&] { return session_->has_left(peer); };
    if (wait_all_unless(queue, control, has_left)) continue;
    Log(rank()).info("rank {} has not taken all that it was sent", peer);
    return;
  }
}

}  // namespace oriel::comm
