// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <span>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "base/system_table.hpp"
#include "base/try.hpp"
#include "comm/nic_process_starter.hpp"
#include "net/syndrome.hpp"
#include "topo/node_identity.hpp"
#include "topo/placement.hpp"
#include "topo/process_machine.hpp"

namespace oriel::comm {
namespace {

constexpr std::uint32_t kRingPieceBytes = 64 << 10;  // so that some fit into a ring
constexpr std::uint32_t kQueueDepth = 512;
constexpr std::uint32_t kFetchSlots = 16;
constexpr int kLastTurns = 64;
constexpr Duration kProbeInterval = std::chrono::seconds(1);
constexpr Duration kNicProcessMost = std::chrono::seconds(20);

const char* describe(std::uint32_t syndrome) {
  switch (static_cast<net::Syndrome>(syndrome)) {
    case net::Syndrome::local_length:
      return "an entry of a length that cannot be";
    case net::Syndrome::local_operation:
      return "an entry that makes no sense";
    case net::Syndrome::local_protection:
      return "the key or the range of this rank's own memory was refused";
    case net::Syndrome::flushed:
      return "the queue had failed before";
    case net::Syndrome::remote_invalid:
      return "the peer cannot do what was asked";
    case net::Syndrome::remote_access:
      return "the peer refused the key or the range";
    case net::Syndrome::remote_operation:
      return "the peer failed to do it";
    case net::Syndrome::transport_retry:
      return "the peer did not answer";
    case net::Syndrome::receiver_retry:
      return "the peer had no room";
    default:
      return "unknown";
  }
}

/// Whether the fault is the peer's.
bool is_of_peer(std::uint32_t syndrome) {
  const auto what = static_cast<net::Syndrome>(syndrome);
  return what == net::Syndrome::transport_retry || what == net::Syndrome::remote_operation ||
         what == net::Syndrome::receiver_retry;
}

std::uint64_t machine_of_this_process() {
  return topo::host_hash(topo::read_host_facts(topo::process_machine().sources().files), "");
}

// Sockets are not the session's, which tells the ranks who waits for whom: there has to be time
// left in which those who wait for this rank learn whom it lacks.
Deadline descriptors_due(const EventLoop& loop, Deadline deadline) {
  if (deadline.is_never()) return deadline;
  const TimePoint now = loop.clock().now();
  return Deadline::at(now + deadline.remaining(now) * 3 / 4);
}

}  // namespace

Network::Network(NetworkOptions options) : options_(std::move(options)) {
  const auto& teams = options_.topology->teams;
  const int own = teams.team[static_cast<std::size_t>(options_.rank)];
  for (std::size_t rank = 0; rank < teams.team.size(); ++rank) {
    if (teams.team[rank] != own) peers_of_rank_.push_back(static_cast<int>(rank));
  }
}

Network::~Network() {
  end_threads();
  // What peers have asked for and wait for the answer to.
  // A GPU takes its time to do it.
  const Deadline last = Deadline::after(on_gpu() ? kLastAnswers : Duration::zero());
  for (int turn = 0; nic_.progress(); ++turn) {
    if (turn >= kLastTurns && last.expired(SteadyClock::instance().now())) break;
  }
  if (fabric_ != nullptr) static_cast<void>(fabric_->flush(Deadline::after(kLastAnswers)));
  if (options_.windows != nullptr) options_.windows->detach();
  if (kernel_view_ != nullptr) static_cast<void>(view_pool_->free(kernel_view_));
}

Task<Result<std::unique_ptr<Network>>> Network::make(EventLoop& loop, NetworkOptions options,
                                                     Deadline deadline) {
  std::unique_ptr<Network> self(new Network(std::move(options)));
  ORIEL_CO_CHECK(self->check_paths());
  self->nic_process_ = self->options_.device->begin_nic_process(*self->options_.settings);
  boot::Group& world = *self->options_.world;
  Bytes place = encode({machine_of_this_process(), self->options_.settings->wire});
  auto places = co_await world.all_gather(boot::Operation::network, std::move(place));
  if (!places.ok()) co_return std::move(places).error();
  ORIEL_CO_CHECK(self->take_places(places.value()));
  ORIEL_CO_CHECK(co_await self->await_nic_process(loop, deadline));
  std::vector<boot::AgreedField> none, none_again;
  Status local = self->prepare();
  self->hello_.windows.failed = !local.ok();
  if (!local.ok()) self->hello_.windows.keys.clear();
  Bytes message = encode(self->hello_);
  auto gathered = co_await world.all_gather(boot::Operation::network, std::move(message));
  if (!gathered.ok()) co_return std::move(gathered).error();
  if (local.ok()) local = self->take_hellos(gathered.value());
  if (local.ok() && !self->others_failed_ && self->exchange_ != nullptr) {
    std::vector<window::FdSocketName> names;
    for (const Bytes& one : gathered.value()) {
      names.push_back(decode_hello(one).value().socket);
    }
    local = co_await self->exchange_->dial(loop, std::move(names), descriptors_due(loop, deadline));
  }
  ORIEL_CO_CHECK(co_await world.agree(boot::Operation::network, std::move(local), std::move(none)));
  local = co_await self->join_rings(loop, descriptors_due(loop, deadline));
  if (local.ok()) local = self->connect_queues();
  if (local.ok()) local = self->start();
  if (local.ok()) self->join_windows();
  ORIEL_CO_CHECK(
      co_await world.agree(boot::Operation::network, std::move(local), std::move(none_again)));
  NetworkWindows& windows = *self->options_.windows;
  local = co_await windows.map_earlier(loop, descriptors_due(loop, deadline));
  std::vector<boot::AgreedField> none_at_last;
  ORIEL_CO_CHECK(
      co_await world.agree(boot::Operation::network, std::move(local), std::move(none_at_last)));
  windows.use_earlier();
  co_return std::move(self);
}

/// The same on all ranks: a function of what they have told each other.
Status Network::check_paths() const {
  const auto& infos = options_.topology->infos;
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

/// Without it this process copies, which the ranks need not do alike.
Task<Status> Network::await_nic_process(EventLoop& loop, Deadline deadline) {
  constexpr Duration kBetweenLooks = std::chrono::milliseconds(2);
  const TimePoint begin = loop.clock().now();
  const Duration most = std::min<Duration>(deadline.remaining(begin) / 2, kNicProcessMost);
  const Deadline due = Deadline::at(begin + most);
  while (nic_process_ != nullptr && !nic_process_->has_answered() &&
         !due.expired(loop.clock().now())) {
    const Deadline next = Deadline::at(loop.clock().now() + kBetweenLooks);
    ORIEL_CO_CHECK(co_await loop.sleep_until(next));
  }
  if (nic_process_ == nullptr) co_return Status();
  const Status ready = nic_process_->await_ready(Deadline::after(Duration::zero()));
  if (ready.ok()) co_return Status();
  warn_of_no_nic_process(ready.error());
  nic_process_.reset();
  co_return Status();
}

Status Network::prepare() {
  ORIEL_TRY(nic_memory_, options_.device->make_nic_memory(std::move(nic_process_)));
  if (nic_memory_.mover != nullptr) nic_.serve_gpu(*nic_memory_.mover);
  domain_ = nic_.create_domain();
  ORIEL_TRY(bell_fd_, make_sealed_memfd(net::RingBell::kMemoryBytes));
  ORIEL_TRY(SharedMapping bell, SharedMapping::map(bell_fd_, net::RingBell::kMemoryBytes));
  bell_.emplace(std::move(bell));
  ORIEL_CHECK(open_fabric());
  ORIEL_CHECK(make_queues());
  ORIEL_TRY(hello_.windows.keys,
            options_.windows->attach(nic_, domain_, options_.communicator | 1,
                                     {nic_memory_.process.get(), &options_.device->memory()}));
  return listen_for_rings();
}

Duration Network::silence(const Settings& settings) {
  const net::QueueSetup usual;
  const Duration most = usual.answer_timeout * (usual.repeats_most + 1);
  return settings.collective_timeout ? std::min(most, *settings.collective_timeout / 3) : most;
}

/// Elsewhere than those of other ranks and communicators.
std::uint32_t Network::first_queue() const {
  const std::uint64_t mixed = options_.communicator * 0x9e3779b97f4a7c15u +
                              static_cast<std::uint64_t>(options_.rank + 1) * 0xd1b54a32d192ed03u;
  auto first = static_cast<std::uint32_t>(mixed >> 40);
  const auto is_none = [&](int rank) { return queue_number(first, rank) == 0; };
  while (std::any_of(peers_of_rank_.begin(), peers_of_rank_.end(), is_none)) {
    first = (first + 1) & 0xffffff;
  }
  return first;
}

Status Network::make_queues() {
  net::SendQueue::Options queue;
  queue.domain = domain_;
  queue.depth = kQueueDepth;
  queue.fetch_slots = kFetchSlots;
  queue.pages = nic_memory_.pages.get();
  queue.answer_timeout = silence(*options_.settings) / (queue.repeats_most + 1);
  hello_.first_queue = first_queue();
  for (const int rank : peers_of_rank_) {
    const bool by_fabric = by_fabric_[static_cast<std::size_t>(rank)];
    queue.peer = rank;
    queue.number = queue_number(hello_.first_queue, rank);
    queue.piece_bytes = by_fabric ? kFabricPieceBytes : kRingPieceBytes;
    ORIEL_TRY(net::SendQueue made, net::SendQueue::create(nic_, queue));
    peers_.push_back({rank, by_fabric, std::move(made)});
  }
  return {};
}

/// Each rank's queue for this one, and the keys of its windows.
Status Network::take_hellos(const std::vector<Bytes>& messages) {
  std::vector<KeysMessage> windows;
  std::vector<NetworkHello> hellos;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    auto decoded = decode_hello(messages[rank]);
    if (!decoded.ok()) return std::move(decoded).error().with_origin(static_cast<int>(rank));
    others_failed_ = others_failed_ || decoded->windows.failed;
    windows.push_back(decoded->windows);
    hellos.push_back(std::move(decoded).value());
  }
  if (others_failed_) return {};  // the agreement tells why
  for (Peer& peer : peers_) {
    const NetworkHello& hello = hellos[static_cast<std::size_t>(peer.rank)];
    peer.far_queue = queue_number(hello.first_queue, options_.rank);
    if (peer.far_queue == 0) {
      return Error(ErrorCode::remote,
                   fmt::format("rank {} has no queue for rank {}", peer.rank, options_.rank))
          .with_origin(peer.rank);
    }
    if (!peer.by_fabric) continue;
    auto added =
        fabric_->add_peer(hello.fabric, fmt::format("rank {}", peer.rank), peer.queue.number());
    if (!added.ok()) return std::move(added).error().with_origin(peer.rank);
    peer.address = added.value();
  }
  return options_.windows->learn(windows);
}

Status Network::start() {
  queues_.resize(static_cast<std::size_t>(options_.world->size()));
  for (const Peer& peer : peers_) {
    queues_[static_cast<std::size_t>(peer.rank)] = peer.queue.view();
  }
  view_.number = options_.communicator | 1;
  view_.world_size = options_.world->size();
  view_.queues = queues_.data();
  view_.nic = this;
  view_.drive = [](void* nic) {
    auto* const self = static_cast<Network*>(nic);
    self->turns_of_waiters_.fetch_add(1, std::memory_order_relaxed);
    static_cast<void>(self->progress());
  };
  view_.bell = &bell_->doorbell();
  net::NicThread::Options options;
  options.progress = [this] { return progress(); };
  options.begin = [this] { topo::run_this_thread_on(options_.cpus); };
  if (on_gpu()) {
    ORIEL_CHECK(show_to_kernels());
  } else {
    options.bell = view_.bell;
  }
  ORIEL_TRY(thread_, net::NicThread::start(std::move(options)));
  return fabric_ != nullptr ? start_fabric_thread() : Status();
}

Status Network::show_to_kernels() {
  const std::size_t room = std::bit_ceil(queues_.size()) * sizeof(device::queue::QueueView);
  ORIEL_TRY(view_pool_, options_.device->object_pool(sizeof view_ + room, 64));
  ORIEL_TRY(kernel_view_, view_pool_->allocate({}));
  device::NetworkView shown = view_;
  shown.queues = reinterpret_cast<const device::queue::QueueView*>(
      static_cast<const std::byte*>(kernel_view_) + sizeof shown);
  shown.drive = nullptr;
  shown.nic = nullptr;
  shown.bell = nullptr;
  ORIEL_CHECK(view_pool_->write(kernel_view_, 0, std::as_bytes(std::span(&shown, 1))));
  ORIEL_CHECK(view_pool_->write(kernel_view_, sizeof shown, std::as_bytes(std::span(queues_))));
  return view_pool_->flush();
}

void Network::end_threads() {
  fabric_thread_.reset();
  thread_.reset();
}

bool Network::progress() {
  if (!nic_.progress()) return false;
  wake_waiters();
  return true;
}

void Network::add_doorbell(device::Doorbell& bell) {
  const std::lock_guard lock(doorbells_mutex_);
  doorbells_.push_back(&bell);
}

void Network::remove_doorbell(device::Doorbell& bell) {
  const std::lock_guard lock(doorbells_mutex_);
  std::erase(doorbells_, &bell);
}

void Network::wake_waiters() {
  const std::lock_guard lock(doorbells_mutex_);
  device::ring_fence();
  for (device::Doorbell* const bell : doorbells_) device::ring_fenced(*bell);
}

// A peer that has left answers no more; what matters is whether anybody has asked it for something.
bool Network::may_be_ignored(const Peer& peer, const device::queue::QueueError& error) const {
  if (static_cast<net::Syndrome>(error.syndrome) != net::Syndrome::transport_retry) return false;
  const std::lock_guard lock(probe_mutex_);
  return peer.probe == error.index && options_.has_left && options_.has_left(peer.rank);
}

std::optional<Error> Network::queue_failure(const Peer& peer) const {
  const std::uint64_t word = std::atomic_ref<std::uint64_t>(*peer.queue.memory().first_error)
                                 .load(std::memory_order_acquire);
  if (word == 0) return std::nullopt;
  const auto error = device::queue::decode_error(word);
  if (may_be_ignored(peer, error)) return std::nullopt;
  const int origin = is_of_peer(error.syndrome) ? peer.rank : options_.rank;
  std::string cause;
  if (peer.by_fabric && origin == peer.rank) {
    Status wire = fabric_->peer_status(peer.address);
    if (wire.ok()) wire = fabric_->status();
    if (!wire.ok()) cause = "; its wire says: " + wire.error().to_string();
  }
  return Error(ErrorCode::remote,
               fmt::format("the queue from rank {} to rank {} has failed: {} (syndrome {:#04x}, "
                           "operation {:#04x}, entry {}){}",
                           options_.rank, peer.rank, describe(error.syndrome), error.syndrome,
                           error.opcode, error.index, cause))
      .with_origin(origin);
}

std::optional<Error> Network::failure() const {
  if (rings_ != nullptr) {
    if (auto failed = rings_->failure()) return failed;
  }
  for (const Peer& peer : peers_) {
    if (auto failed = queue_failure(peer)) return failed;
  }
  return std::nullopt;
}

void Network::probe(TimePoint now, const std::uint32_t* abort) {
  namespace dq = device::queue;
  if (on_gpu()) return;  // what a queue's threads share lies in the GPU's memory
  device::WaitControl control;
  control.abort = abort;
  const std::lock_guard lock(probe_mutex_);
  if (now - probed_ < kProbeInterval) return;
  probed_ = now;
  for (Peer& peer : peers_) {
    if (options_.has_left && options_.has_left(peer.rank)) continue;
    const dq::QueueView& queue = peer.queue.view();
    if (!dq::detail::look_in_turn<device::Memory>(queue)) continue;
    const auto completed = dq::detail::load_index<device::Memory>(&queue.indexes->completed);
    const auto reserved = dq::detail::load_index<device::Memory>(&queue.indexes->reserved);
    if (completed != reserved) continue;  // something else will tell
    // A write of no bytes, for which no key is needed.
    dq::Reservation place;
    const device::Thread self;
    if (dq::reserve(self, queue, 1, place, control) != dq::QueueOutcome::done) continue;
    peer.probe = static_cast<std::uint16_t>(place.base);
    dq::write_entry(queue, place, 0,
                    dq::inline_write_entry({queue.number, place.base}, dq::kSignalled, {},
                                           dq::InlineBytes(nullptr, 0)));
    static_cast<void>(dq::publish(self, queue, place, control));
  }
  device::ring(*view_.bell);
}

}  // namespace oriel::comm
