// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_soft.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <utility>

#include <fcntl.h>

#include "base/log.hpp"
#include "base/system_table.hpp"
#include "base/try.hpp"
#include "comm/device/nic_process_starter.hpp"
#include "net/queue/syndrome.hpp"
#include "topo/choice/placement.hpp"

namespace oriel::comm {
namespace {

constexpr int kLastTurns = 64;
constexpr Duration kNicProcessMost = std::chrono::seconds(20);

// Sockets are not the session's, which tells the ranks who waits for whom: there has to be time
// left in which those who wait for this rank learn whom it lacks.
Deadline descriptors_due(const EventLoop& loop, Deadline deadline) {
  if (deadline.is_never()) return deadline;
  const TimePoint now = loop.clock().now();
  return Deadline::at(now + deadline.remaining(now) * 3 / 4);
}

}  // namespace

SoftNetwork::SoftNetwork(NetworkOptions options)
    : Network(std::move(options)),
      no_memory_(Error(ErrorCode::system, "memory has run out in the software NIC of this rank")
                     .with_origin(options_.rank)) {
  nics_.push_back(std::make_unique<Nic>());
}

SoftNetwork::~SoftNetwork() {
  end_threads();
  // What peers have asked for and wait for the answer to.
  // A GPU takes its time to do it.
  const Deadline last = Deadline::after(on_gpu() ? kLastAnswers : Duration::zero());
  for (const auto& nic : nics_) {
    for (int turn = 0; nic->nic.progress(); ++turn) {
      if (turn >= kLastTurns && last.expired(SteadyClock::instance().now())) break;
    }
    if (nic->fabric == nullptr) continue;
    try {
      static_cast<void>(nic->fabric->flush(Deadline::after(kLastAnswers)));
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): then they have been lost
    }
  }
  if (options_.windows != nullptr) options_.windows->detach();
  hide_from_kernels();
}

Task<Result<std::unique_ptr<Network>>> SoftNetwork::make(EventLoop& loop, NetworkOptions options,
                                                         Deadline deadline) {
  std::unique_ptr<SoftNetwork> self(new SoftNetwork(std::move(options)));
  self->nic_process_ = self->options_.device->begin_nic_process(*self->options_.settings);
  boot::Group& world = *self->options_.world;
  ORIEL_CO_TRY(const auto places, co_await self->gather_places(self->own_place()));
  self->join_places(places);
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
  co_return std::unique_ptr<Network>(std::move(self));
}

/// Without it this process copies, which the ranks need not do alike.
Task<Status> SoftNetwork::await_nic_process(EventLoop& loop, Deadline deadline) {
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

Status SoftNetwork::prepare() {
  if (no_interfaces_.has_value()) return Error(*no_interfaces_);
  ORIEL_TRY(nic_memory_, options_.device->make_nic_memory(std::move(nic_process_)));
  make_nics();
  ORIEL_TRY(bell_fd_, make_sealed_memfd(net::RingBell::kMemoryBytes));
  ORIEL_TRY(SharedMapping bell, SharedMapping::map(bell_fd_, net::RingBell::kMemoryBytes));
  bell_.emplace(std::move(bell));
  ORIEL_CHECK(open_fabric());
  ORIEL_CHECK(make_queues());
  ORIEL_TRY(hello_.windows,
            options_.windows->attach(window_nics(), options_.communicator,
                                     {nic_memory_.process.get(), &options_.device->memory()}));
  return listen_for_rings();
}

Status SoftNetwork::start() {
  std::vector<device::queue::QueueView> queues(static_cast<std::size_t>(options_.world->size()));
  for (const Peer& peer : peers_) queues[static_cast<std::size_t>(peer.rank)] = peer.view();
  fill_view(std::move(queues));
  view_.nic = this;
  view_.drive = [](void* nic) {
    auto* const self = static_cast<SoftNetwork*>(nic);
    self->turns_of_waiters_.fetch_add(1, std::memory_order_relaxed);
    static_cast<void>(self->progress());
  };
  view_.bell = &bell_->doorbell();
  // All of them before any thread, which may wake every one.
  for (const auto& nic : nics_) {
    if (nic->fabric == nullptr) continue;
    ORIEL_TRY(nic->sleeper, net::FabricSleeper::create(*nic->fabric));
  }
  net::NicThread::Options options;
  options.progress = [this] { return progress(); };
  options.begin = [this] { topo::run_this_thread_on(options_.cpus); };
  if (on_gpu()) {
    ORIEL_CHECK(show_to_kernels());
  } else {
    options.bell = view_.bell;
  }
  ORIEL_TRY(thread_, net::NicThread::start(std::move(options)));
  for (std::size_t path = 0; path < nics_.size(); ++path) {
    if (nics_[path]->fabric != nullptr) ORIEL_CHECK(start_fabric_thread(path));
  }
  return has_backups() ? start_keeper() : Status();
}

void SoftNetwork::end_threads() {
  keeper_.reset();
  for (const auto& nic : nics_) nic->thread.reset();
  thread_.reset();
}

void SoftNetwork::abort() {
  // First the NICs: no queue goes on by another path meanwhile.
  aborted_ = true;
  for (const auto& nic : nics_) nic->nic.end_sending();
  // The driver may keep its caller waiting.
  if (on_gpu()) {
    refusal_is_due_ = true;
  } else {
    refuse_posts();
  }
  wake_waiters();
}

void SoftNetwork::leave() {
  for (const auto& nic : nics_) {
    for (int turn = 0; turn < kLastTurns && nic->nic.progress(); ++turn) continue;
    nic->nic.end_receiving();
  }
  // Windows wait for whoever was told to fetch from them and has yet to say that it has. Those who
  // have left before will not, nor will others who leave as well after an abort.
  for (const Peer& peer : peers_) {
    if ((!has_left(peer) && !aborted_) || peer.failover != nullptr) continue;
    net::NicSoft& nic = nics_[peer.paths.front().own]->nic;
    static_cast<void>(nic.to_error(peer.number()));  // the queue is there
  }
}

void SoftNetwork::refuse_posts() {
  for (Peer& peer : peers_) {
    net::SendQueue& queue = peer.failover != nullptr ? peer.failover->queue() : *peer.single;
    const Status refused = queue.refuse_posts();
    if (!refused.ok()) Log(options_.rank).info("{}", refused.error().to_string());
  }
}

/// Of a queue with backups what counts is its work, wherever that is: its NICs also have probes,
/// which wait for as long as a path is dead.
/// What a peer that has left was asked for late is never done.
bool SoftNetwork::is_idle() const {
  return std::all_of(peers_.begin(), peers_.end(), [this](const Peer& peer) {
    if (has_left(peer)) return true;
    if (peer.failover != nullptr) return !peer.failover->pace().has_work;
    return nics_[peer.paths.front().own]->nic.is_idle(peer.number());
  });
}

/// Called where nobody could tell: in NICs' threads, and in waits of kernels on CPUs.
bool SoftNetwork::progress() {
  try {
    return work();
  } catch (const std::exception&) {
    run_out_of_memory();
    return false;
  }
}

/// What was left in the middle is in no state to go on from. The monitor tells all ranks.
void SoftNetwork::run_out_of_memory() {
  has_no_memory_ = true;
  for (const auto& nic : nics_) nic->nic.end_sending();
}

bool SoftNetwork::has_run_out_of_memory() const {
  return has_no_memory_ || std::any_of(nics_.begin(), nics_.end(),
                                       [](const auto& nic) { return nic->nic.has_failed(); });
}

bool SoftNetwork::work() {
  if (refusal_is_due_.load(std::memory_order_relaxed) && refusal_is_due_.exchange(false)) {
    refuse_posts();
  }
  if (probes_are_due_.load(std::memory_order_relaxed) && probes_are_due_.exchange(false)) {
    send_probes();
  }
  bool any = nics_.front()->nic.progress();
  if (has_backups()) any = progress_backups() || any;
  if (any) wake_waiters();
  return any;
}

void SoftNetwork::add_doorbell(device::Doorbell& bell) {
  const std::lock_guard lock(doorbells_mutex_);
  doorbells_.push_back(&bell);
}

void SoftNetwork::remove_doorbell(device::Doorbell& bell) {
  const std::lock_guard lock(doorbells_mutex_);
  std::erase(doorbells_, &bell);
}

void SoftNetwork::wake_waiters() {
  const std::lock_guard lock(doorbells_mutex_);
  device::ring_fence();
  for (device::Doorbell* const bell : doorbells_) device::ring_fenced(*bell);
}

Result<WindowNic::Keys> SoftWindowNic::register_memory(const net::MemoryRange& range) {
  ORIEL_TRY(const std::uint32_t key, nic_.register_memory(domain_, range));
  return Keys{key, key};
}

void SoftWindowNic::deregister_memory(std::uint32_t local_key) noexcept {
  try {
    static_cast<void>(nic_.deregister_memory(local_key));
  } catch (const std::exception&) {
    nic_.fail();
  }
}

Status SoftWindowNic::map_peer_memory(std::uint64_t peer, std::uint32_t key,
                                      const net::MemoryRange& range) {
  return nic_.map_peer_memory(peer, key, range);
}

void SoftWindowNic::unmap_peer_memory(std::uint64_t peer, std::uint32_t key) noexcept {
  try {
    static_cast<void>(nic_.unmap_peer_memory(peer, key));
  } catch (const std::exception&) {
    nic_.fail();
  }
}

void SoftWindowNic::set_reached(std::uint64_t peer, std::uint32_t key) noexcept {
  try {
    nic_.set_reached(peer, key, true);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it sends what it need not
  }
}

}  // namespace oriel::comm
