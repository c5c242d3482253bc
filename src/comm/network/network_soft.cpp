// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_soft.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/try.hpp"
#include "topo/choice/placement.hpp"

namespace oriel::comm {
namespace {

// Returns 3/4 of the remaining time as deadline for descriptors. Their sockets do not belong to the
// session. So ranks that wait for this rank need time left to learn which rank it misses.
Deadline descriptors_due(const EventLoop& loop, Deadline deadline) {
  if (deadline.is_never()) return deadline;
  const TimePoint now = loop.clock().now();
  return Deadline::at(now + deadline.remaining(now) * 3 / 4);
}

Task<Status> agree(boot::Group& world, Status local) {
  std::vector<boot::AgreedField> none;
  co_return co_await world.agree(boot::Operation::network, std::move(local), std::move(none));
}

}  // namespace

SoftNetwork::SoftNetwork(NetworkOptions options)
    : Network(std::move(options)),
      routes_(options_, peers_of_rank_),
      ports_(options_),
      parts_{options_, routes_, ports_},
      rings_(options_),
      detector_(parts_, queues_),
      failover_(parts_, queues_) {}

SoftNetwork::~SoftNetwork() {
  failover_.stop();
  ports_.stop_threads();
  thread_.reset();
  ports_.answer_last();
  if (options_.windows != nullptr) options_.windows->detach();
  hide_from_kernels();
}

Task<Result<std::unique_ptr<Network>>> SoftNetwork::make(EventLoop& loop, NetworkOptions options,
                                                         Deadline deadline) {
  std::unique_ptr<SoftNetwork> self(new SoftNetwork(std::move(options)));
  boot::Group& world = self->world();
  ORIEL_CO_TRY(const auto places, co_await self->gather_places(self->routes_.own_place()));
  self->routes_.join(places);
  ORIEL_CO_CHECK(co_await self->ports_.await_process(loop, deadline));
  Status local = self->prepare();
  self->hello_.windows.failed = !local.ok();
  if (!local.ok()) self->hello_.windows.keys.clear();
  Bytes message = encode(self->hello_);
  auto gathered = co_await world.all_gather(boot::Operation::network, std::move(message));
  if (!gathered.ok()) co_return std::move(gathered).error();
  std::vector<window::FdSocketName> names;
  if (local.ok()) local = self->take_hellos(gathered.value(), names);
  if (local.ok() && !names.empty() && self->rings_.is_listening()) {
    local = co_await self->rings_.dial(loop, std::move(names), descriptors_due(loop, deadline));
  }
  ORIEL_CO_CHECK(co_await agree(world, std::move(local)));
  const Deadline rings_due = descriptors_due(loop, deadline);
  local = co_await self->rings_.join(loop, self->ports_.at(0).nic(), rings_due);
  if (local.ok()) local = self->connect();
  if (local.ok()) local = self->start();
  ORIEL_CO_CHECK(co_await agree(world, std::move(local)));
  NetworkWindows& windows = *self->options_.windows;
  local = co_await windows.map_earlier(loop, descriptors_due(loop, deadline));
  ORIEL_CO_CHECK(co_await agree(world, std::move(local)));
  windows.use_earlier();
  co_return std::unique_ptr<Network>(std::move(self));
}

Status SoftNetwork::prepare() {
  if (routes_.failure().has_value()) return Error(*routes_.failure());
  ORIEL_CHECK(ports_.make(routes_));
  ORIEL_CHECK(rings_.make_doorbell());
  hello_.fabrics = ports_.fabric_addresses();
  hello_.first_queue = parts_.first_queue = choose_first_queue(options_, peers_of_rank_);
  WindowNics nics;
  for (std::size_t at = 0; at < ports_.size(); ++at) {
    nics.ports.push_back(&ports_.at(at).windows());
  }
  std::vector<RankRings::Peer> by_rings;
  for (const int rank : peers_of_rank_) {
    ORIEL_TRY(PeerQueue queue, PeerQueue::create(parts_, rank));
    queue.add_aliases(nics);
    if (!queue.by_fabric()) by_rings.push_back({rank, queue.number()});
    queues_.push_back(std::move(queue));
  }
  ORIEL_TRY(hello_.windows, options_.windows->attach(std::move(nics), options_.communicator,
                                                     ports_.process_view()));
  ORIEL_TRY(hello_.socket, rings_.listen(std::move(by_rings)));
  return {};
}

/// Takes each rank's queue for this rank and the keys of its windows. `names`: the sockets of all
/// ranks; empty if a rank has failed, which the following agreement reports.
Status SoftNetwork::take_hellos(const std::vector<Bytes>& messages,
                                std::vector<window::FdSocketName>& names) {
  std::vector<KeysMessage> windows;
  std::vector<NetworkHello> hellos;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    auto decoded = decode_hello(messages[rank]);
    if (!decoded.ok()) return std::move(decoded).error().with_origin(static_cast<int>(rank));
    windows.push_back(decoded->windows);
    hellos.push_back(std::move(decoded).value());
  }
  if (std::any_of(windows.begin(), windows.end(), [](const auto& keys) { return keys.failed; })) {
    return {};
  }
  for (PeerQueue& queue : queues_) {
    ORIEL_CHECK(queue.take_ends(hellos[static_cast<std::size_t>(queue.rank())]));
  }
  for (const NetworkHello& hello : hellos) names.push_back(hello.socket);
  return options_.windows->learn(windows);
}

Status SoftNetwork::connect() {
  for (PeerQueue& queue : queues_) ORIEL_CHECK(queue.connect(rings_.wire()));
  return {};
}

Status SoftNetwork::start() {
  std::vector<device::queue::QueueView> queues(static_cast<std::size_t>(options_.size()));
  for (const PeerQueue& queue : queues_) {
    queues[static_cast<std::size_t>(queue.rank())] = queue.view();
  }
  fill_view(std::move(queues));
  view_.nic = this;
  view_.drive = [](void* nic) {
    auto* const self = static_cast<SoftNetwork*>(nic);
    self->turns_of_waiters_.fetch_add(1, std::memory_order_relaxed);
    static_cast<void>(self->attempt([self] { return self->work(); }));
  };
  view_.doorbell = &rings_.doorbell();
  ORIEL_CHECK(ports_.make_sleepers());
  net::NicThread::Options options;
  options.progress = [this] { return attempt([this] { return work(); }); };
  options.begin = [this] { topo::run_this_thread_on(options_.cpus); };
  if (ports_.on_gpu()) {
    ORIEL_CHECK(show_to_kernels());
  } else {
    options.doorbell = view_.doorbell;
  }
  ORIEL_TRY(thread_, net::NicThread::start(std::move(options)));
  for (std::size_t at = 0; at < ports_.size(); ++at) {
    SoftPort& port = ports_.at(at);
    if (port.fabric() == nullptr) continue;
    const auto is_driven = [this, at, seen = std::uint64_t{0}]() mutable {
      const std::uint64_t turns = turns_of_waiters_.load(std::memory_order_relaxed);
      return std::exchange(seen, turns) != turns && failover_.is_in_use(at);
    };
    ORIEL_CHECK(port.start_thread(
        [this, &port] { return attempt([&port] { return port.nic().progress(); }); }, is_driven,
        options_.cpus));
  }
  if (ports_.has_backups()) {
    ORIEL_CHECK(failover_.start([this] { return attempt([this] { return failover_.poll(); }); }));
  }
  if (DirectCopies::in_force().wanted) {
    options_.windows->use_direct(rings_.direct_path());
  } else {
    rings_.end_exchange();
  }
  return {};
}

std::optional<Error> SoftNetwork::failure(TimePoint now, const std::uint32_t* abort) {
  if (is_out_of_memory_ || ports_.has_failed()) {
    return Error(ErrorCode::system, "memory has run out in the software NIC of this rank")
        .with_origin(options_.rank());
  }
  if (auto failed = rings_.failure()) return failed;
  return detector_.failure(now, *view_.doorbell, abort);
}

void SoftNetwork::abort() {
  // Stops failover and the NICs first, so that no queue moves to another path meanwhile.
  aborted_ = true;
  failover_.end();
  ports_.end_sending();
  // Leaves a GPU's queues to the NIC's thread: the driver may block its caller.
  if (ports_.on_gpu()) {
    refusal_is_due_ = true;
  } else {
    refuse_posts();
  }
  doorbells_.ring_all();
}

void SoftNetwork::leave() {
  ports_.end_receiving();
  // Ends queues without backups to peers that have left, and all such queues after an abort. Those
  // peers will not confirm a rendezvous read, for which windows would wait.
  for (const PeerQueue& queue : queues_) {
    if ((!queue.has_left() && !aborted_) || queue.failover() != nullptr) continue;
    static_cast<void>(queue.nic().to_error(queue.number()));  // cannot fail: the queue exists
  }
}

void SoftNetwork::refuse_posts() {
  for (PeerQueue& queue : queues_) queue.refuse_posts();
}

bool SoftNetwork::is_idle() const {
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const PeerQueue& queue) { return queue.is_idle(); });
}

bool SoftNetwork::work() {
  if (refusal_is_due_.load(std::memory_order_relaxed) && refusal_is_due_.exchange(false)) {
    refuse_posts();
  }
  detector_.send_due_probes();
  const bool any = ports_.at(0).nic().progress();
  return ports_.has_backups() ? failover_.progress() || any : any;
}

/// Ends the network if memory runs out, since half-done work cannot continue. failure() reports it
/// to the monitor.
template <typename Work>
bool SoftNetwork::attempt(Work work) noexcept {
  try {
    if (!work()) return false;
    doorbells_.ring_all();
    return true;
  } catch (const std::exception&) {
    is_out_of_memory_ = true;
    failover_.end();
    ports_.end_sending();
    return false;
  }
}

}  // namespace oriel::comm
