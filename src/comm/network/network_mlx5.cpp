// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_mlx5.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "comm/network/network_places.hpp"
#include "comm/network/queue_failure.hpp"
#include "net/mlx5/mlx5_exchange.hpp"
#include "net/queue/syndrome.hpp"
#include "topo/choice/interface_choice.hpp"
#include "topo/choice/placement.hpp"

namespace oriel::comm {

namespace dq = device::queue;

namespace {

constexpr std::uint32_t kAdapterQueueDepth = 512;
constexpr std::uint32_t kAdapterFetchSlots = 16;
constexpr Duration kAdapterProbeInterval = std::chrono::seconds(1);

/// Returns a first PSN that differs by communicator and pair, so that late packets are not accepted
/// by another queue.
std::uint32_t first_packet(std::uint64_t communicator, int from, int to) {
  std::uint64_t mixed = communicator;
  for (const int rank : {from, to}) {
    mixed = (mixed ^ static_cast<std::uint64_t>(rank + 1)) * 0x9e3779b97f4a7c15u;
    mixed ^= mixed >> 29;
  }
  return static_cast<std::uint32_t>(mixed >> 40);
}

}  // namespace

Mlx5Network::Mlx5Network(NetworkOptions options)
    : Network(std::move(options)), on_gpu_(options_.device->backend() != kernels::Backend::host) {}

Mlx5Network::~Mlx5Network() {
  if (options_.windows != nullptr) options_.windows->detach();
  hide_from_kernels();
}

Task<Result<std::unique_ptr<Network>>> Mlx5Network::make(NetworkOptions options) {
  std::unique_ptr<Mlx5Network> self(new Mlx5Network(std::move(options)));
  boot::Group& world = self->world();
  const NetworkPlace place = place_of_this_process();
  ORIEL_CO_CHECK(co_await self->gather_places(place));
  KeysMessage keys;
  Status local = self->prepare(keys);
  ORIEL_CO_CHECK(co_await net::connect_queues(world, std::move(local), self->queues_));
  Bytes message = encode(keys);
  auto gathered = co_await world.all_gather(boot::Operation::network, std::move(message));
  if (!gathered.ok()) co_return std::move(gathered).error();
  Status ready = self->learn_windows(gathered.value());
  if (ready.ok()) ready = self->start();
  std::vector<boot::AgreedField> none;
  ORIEL_CO_CHECK(co_await world.agree(boot::Operation::network, std::move(ready), std::move(none)));
  co_return std::unique_ptr<Network>(std::move(self));
}

Status Mlx5Network::prepare(KeysMessage& keys) {
  const auto own = static_cast<std::size_t>(options_.rank());
  const auto user = topo::interface_user(options_.topology->infos, own);
  auto port = topo::own_adapter(user, *options_.settings);
  if (!port.ok()) {
    return std::move(port).error().with_context("choosing an adapter (ORIEL_NIC=mlx5)");
  }
  net::NicMlx5::Options adapter;
  adapter.device.name = port->name;
  adapter.device.port = static_cast<std::uint32_t>(port->port);
  adapter.begin = [cpus = options_.cpus] { topo::run_this_thread_on(cpus); };
  ORIEL_TRY(nic_, net::NicMlx5::open(adapter));
  ORIEL_TRY(memory_, options_.device->make_adapter_memory());
  ORIEL_CHECK(make_queues());
  windows_.emplace(*nic_, *memory_);
  WindowNics nics;
  nics.ports.push_back(&*windows_);
  nics.memory = &options_.device->memory();
  ORIEL_TRY(keys, options_.windows->attach(std::move(nics), options_.communicator, {}));
  return {};
}

Status Mlx5Network::make_queues() {
  std::vector<net::Mlx5Queue::Options> wanted;
  for (const int rank : peers_of_rank_) {
    net::Mlx5Queue::Options queue;
    queue.depth = kAdapterQueueDepth;
    queue.fetch_slots = kAdapterFetchSlots;
    queue.peer = rank;
    queue.ring_on_host = on_gpu_;  // lets the host see errors and pending work
    queue.doorbell = options_.settings->doorbell;
    queue.psn = first_packet(options_.communicator, options_.rank(), rank);
    wanted.push_back(queue);
  }
  ORIEL_TRY(std::vector<net::Mlx5Queue> made, nic_->create_queues(*memory_, wanted));
  queues_.resize(static_cast<std::size_t>(options_.size()));
  for (std::size_t i = 0; i < made.size(); ++i) {
    queues_[static_cast<std::size_t>(peers_of_rank_[i])].push_back(std::move(made[i]));
  }
  return {};
}

Status Mlx5Network::learn_windows(const std::vector<Bytes>& messages) {
  std::vector<KeysMessage> windows;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    auto decoded = decode_keys(messages[rank]);
    if (!decoded.ok()) return std::move(decoded).error().with_origin(static_cast<int>(rank));
    windows.push_back(std::move(decoded).value());
  }
  return options_.windows->learn(windows);
}

Status Mlx5Network::start() {
  std::vector<dq::QueueView> views(static_cast<std::size_t>(options_.size()));
  bool by_processor = false;
  for (const int rank : peers_of_rank_) {
    views[static_cast<std::size_t>(rank)] = queue_to(rank).view();
    by_processor = by_processor || queue_to(rank).is_rung_by_processor();
  }
  fill_view(std::move(views));
  if (by_processor) {
    // Lets waiting threads ring the doorbells, sooner than the thread that rings them for all
    // others.
    view_.nic = &*nic_;
    view_.drive = [](void* nic) { static_cast<void>(static_cast<net::NicMlx5*>(nic)->progress()); };
  }
  return on_gpu_ ? show_to_kernels() : Status();
}

std::optional<dq::QueueError> Mlx5Network::error_of(int peer) const {
  const net::Mlx5Queue& queue = queue_to(peer);
  std::optional<dq::QueueError> error;
  if (!on_gpu_) {
    // Reads the error that a thread of the rank saw before other completions overwrote the CQE.
    const std::uint64_t word = device::Memory::load<device::Order::acquire, device::Scope::device>(
        &queue.view().indexes->error);
    if (word != 0) error = dq::decode_error(word);
  }
  if (!error.has_value()) error = queue.error();
  // Ignores the timeout of a peer that has left, unless it was asked for something else.
  if (error.has_value() && is_of_probe(peer, *error) && options_.has_left(peer))
    return std::nullopt;
  return error;
}

bool Mlx5Network::is_of_probe(int peer, const dq::QueueError& error) const {
  return is_timeout(error) && probes_.is_of_probe(queue_to(peer).view(), error);
}

Error Mlx5Network::queue_failure(int peer, const dq::QueueError& error) const {
  const bool is_lost = static_cast<net::Syndrome>(error.syndrome) == net::Syndrome::flushed;
  const bool is_late = may_be_of_leaving(error.syndrome) && options_.has_left(peer);
  const net::Mlx5Place& place = nic_->device().place();
  FailedQueue failed;
  failed.rank = options_.rank();
  failed.peer = peer;
  failed.origin = is_lost || is_late || is_of_peer(error.syndrome) ? peer : failed.rank;
  failed.peer_has_left = failed.origin == peer && options_.has_left(peer);
  failed.is_probe = is_of_probe(peer, error);
  failed.error = error;
  failed.cause = describe_syndrome(error.syndrome);
  failed.where = fmt::format("; vendor's syndrome {:#04x}, {} port {}", error.vendor_syndrome,
                             place.device, place.port);
  return to_error(failed);
}

std::optional<Error> Mlx5Network::failure(TimePoint now, const std::uint32_t* /*abort*/) {
  if (aborted_) return std::nullopt;
  bool is_refused = false;
  for (const int rank : peers_of_rank_) {
    const auto error = error_of(rank);
    if (!error.has_value()) continue;
    if (!may_be_of_leaving(error->syndrome) || leaving_.is_over(options_.has_left(rank), now)) {
      return queue_failure(rank, *error);
    }
    is_refused = true;
  }
  is_in_doubt_ = is_refused;
  return std::nullopt;
}

void Mlx5Network::probe(TimePoint now, const std::uint32_t* abort) {
  if (on_gpu_ || aborted_ || !probes_.are_due(now, kAdapterProbeInterval)) return;
  for (const int rank : peers_of_rank_) {
    if (!options_.has_left(rank)) probes_.post(queue_to(rank).view(), abort);
  }
}

bool Mlx5Network::is_idle() const {
  return std::all_of(peers_of_rank_.begin(), peers_of_rank_.end(), [this](int rank) {
    return options_.has_left(rank) || queue_to(rank).is_idle();
  });
}

void Mlx5Network::abort() {
  aborted_ = true;
  for (const int rank : peers_of_rank_) {
    net::Mlx5Queue& queue = queues_[static_cast<std::size_t>(rank)].front();
    if (!on_gpu_) {
      dq::detail::give_up<device::Memory>(queue.view());
      continue;
    }
    const Status ended = queue.to_error();
    if (!ended.ok()) Log(options_.rank()).info("{}", ended.error().to_string());
  }
}

void Mlx5Network::leave() {
  for (const int rank : peers_of_rank_) {
    const Status ended = queues_[static_cast<std::size_t>(rank)].front().to_error();
    if (!ended.ok()) Log(options_.rank()).info("{}", ended.error().to_string());
  }
}

}  // namespace oriel::comm
