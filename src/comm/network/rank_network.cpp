// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/rank_network.hpp"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/network/network_mlx5.hpp"
#include "comm/network/network_soft.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::comm {
namespace {

/// Checks that all ranks are on CPUs, or all on GPUs. The result is the same on all ranks.
Status check_kinds(const Topology& topology) {
  const auto& infos = topology.infos;
  for (std::size_t rank = 0; rank < infos.size(); ++rank) {
    if (infos[rank].kind == infos[0].kind) continue;
    const bool on_gpu = infos[rank].kind != topo::DeviceKind::host;
    return Error(ErrorCode::invalid_usage,
                 fmt::format("rank {} lives on {} and rank 0 on {}: there is no network between "
                             "CPUs and GPUs",
                             rank, on_gpu ? "a GPU" : "a CPU", on_gpu ? "a CPU" : "a GPU"))
        .with_origin(static_cast<int>(rank))
        .with_hint("use ranks of one kind (ORIEL_BACKEND), or one node");
  }
  return {};
}

}  // namespace

Network::Network(NetworkOptions options) : options_(std::move(options)) {
  const auto& teams = options_.topology->teams;
  const int own = teams.team[static_cast<std::size_t>(options_.rank())];
  for (std::size_t rank = 0; rank < teams.team.size(); ++rank) {
    if (teams.team[rank] != own) peers_of_rank_.push_back(static_cast<int>(rank));
  }
}

Task<Result<std::unique_ptr<Network>>> Network::make(EventLoop& loop, NetworkOptions options,
                                                     Deadline deadline) {
  ORIEL_CO_CHECK(check_kinds(*options.topology));
  if (options.settings->nic == NicKind::mlx5) {
    co_return co_await Mlx5Network::make(std::move(options));
  }
  co_return co_await SoftNetwork::make(loop, std::move(options), deadline);
}

Task<Result<std::vector<NetworkPlace>>> Network::gather_places(NetworkPlace own) {
  Bytes message = encode(own);
  auto gathered = co_await world().all_gather(boot::Operation::network, std::move(message));
  if (!gathered.ok()) co_return std::move(gathered).error();
  std::vector<NetworkPlace> places;
  for (std::size_t rank = 0; rank < gathered.value().size(); ++rank) {
    auto place = decode_place(gathered.value()[rank]);
    if (!place.ok()) co_return std::move(place).error().with_origin(static_cast<int>(rank));
    places.push_back(place.value());
  }
  ranks_on_machine_ = ranks_beside(places, static_cast<std::size_t>(options_.rank()));
  co_return places;
}

Duration Network::peer_timeout(const Settings& settings) {
  // Minimum: less would take a peer for silent that is briefly not scheduled, or not connected yet.
  constexpr Duration kLeast = std::chrono::milliseconds(300);
  const net::QueueSetup usual;
  const Duration most = usual.answer_timeout * (usual.retransmissions_most + 1);
  if (!settings.collective_timeout) return most;
  return std::clamp<Duration>(*settings.collective_timeout / 3, kLeast, most);
}

void Network::fill_view(std::vector<device::queue::QueueView> queues_by_rank) {
  queues_ = std::move(queues_by_rank);
  view_.number = options_.communicator;
  view_.world_size = options_.size();
  view_.queues = queues_.data();
}

Status Network::show_to_kernels() {
  const std::size_t table_bytes = std::bit_ceil(queues_.size()) * sizeof(device::queue::QueueView);
  ORIEL_TRY(view_pool_, options_.device->object_pool(sizeof view_ + table_bytes, 64));
  ORIEL_TRY(kernel_view_, view_pool_->allocate({}));
  device::NetworkView shown = view_;
  shown.queues = reinterpret_cast<const device::queue::QueueView*>(
      static_cast<const std::byte*>(kernel_view_) + sizeof shown);
  shown.drive = nullptr;
  shown.nic = nullptr;
  shown.doorbell = nullptr;
  ORIEL_CHECK(view_pool_->write(kernel_view_, 0, std::as_bytes(std::span(&shown, 1))));
  ORIEL_CHECK(view_pool_->write(kernel_view_, sizeof shown, std::as_bytes(std::span(queues_))));
  return view_pool_->flush();
}

void Network::hide_from_kernels() {
  if (kernel_view_ != nullptr) static_cast<void>(view_pool_->free(kernel_view_));
  kernel_view_ = nullptr;
}

}  // namespace oriel::comm
