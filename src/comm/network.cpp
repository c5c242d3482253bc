// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "base/system_table.hpp"
#include "base/try.hpp"
#include "net/syndrome.hpp"
#include "topo/node_identity.hpp"
#include "topo/placement.hpp"
#include "topo/process_machine.hpp"

namespace oriel::comm {
namespace {

constexpr std::size_t kRingBytes = std::size_t{256} << 10;
constexpr std::uint32_t kPieceBytes = 64 << 10;  // so that some fit into a ring
constexpr std::uint32_t kQueueDepth = 512;
constexpr std::uint32_t kFetchSlots = 16;
constexpr std::uint32_t kEpoch = 1;  // queues live as long as their network
/// Windows have exchanges of their own, which are told apart by a rank.
constexpr std::uint64_t kExchangeTag = std::uint64_t{1} << 32;
constexpr int kLastTurns = 64;

net::WireAddress address_of(int rank) {
  return {static_cast<std::uint64_t>(rank) + 1};
}

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

Error no_path(int a, int b, const std::string& why) {
  return Error(ErrorCode::invalid_usage,
               fmt::format("ranks {} and {} have no network path: {}", a, b, why))
      .with_origin(b)
      .with_hint(
          "so far ranks of different nodes (ORIEL_HOSTID) reach each other only from CPU to CPU as "
          "processes of one user on one machine; a wire between machines is not there yet");
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
  thread_.reset();
  // What peers have asked for and wait for the answer to.
  for (int turn = 0; turn < kLastTurns && nic_.progress(); ++turn) continue;
  if (options_.windows != nullptr) options_.windows->detach();
}

Task<Result<std::unique_ptr<Network>>> Network::make(EventLoop& loop, NetworkOptions options,
                                                     Deadline deadline) {
  std::unique_ptr<Network> self(new Network(std::move(options)));
  ORIEL_CO_CHECK(self->check_paths());
  boot::Group& world = *self->options_.world;
  std::vector<boot::AgreedField> none, none_again;
  Status local = self->prepare();
  self->hello_.windows.failed = !local.ok();
  if (!local.ok()) self->hello_.windows.keys.clear();
  Bytes message = encode(self->hello_);
  auto gathered = co_await world.all_gather(boot::Operation::network, std::move(message));
  if (!gathered.ok()) co_return std::move(gathered).error();
  if (local.ok()) local = self->take_hellos(gathered.value());
  if (local.ok() && !self->others_failed_) {
    std::vector<window::FdSocketName> names;
    for (const Bytes& one : gathered.value()) {
      names.push_back(decode_hello(one, world.size()).value().socket);
    }
    local = co_await self->exchange_->dial(loop, std::move(names), descriptors_due(loop, deadline));
  }
  ORIEL_CO_CHECK(co_await world.agree(boot::Operation::network, std::move(local), std::move(none)));
  local = co_await self->join_rings(loop, descriptors_due(loop, deadline));
  if (local.ok()) local = self->start();
  ORIEL_CO_CHECK(
      co_await world.agree(boot::Operation::network, std::move(local), std::move(none_again)));
  co_return std::move(self);
}

/// The same on all ranks: a function of what they have told each other.
Status Network::check_paths() const {
  const auto& infos = options_.topology->infos;
  for (std::size_t rank = 0; rank < infos.size(); ++rank) {
    if (infos[rank].kind == topo::DeviceKind::host) continue;
    return Error(ErrorCode::invalid_usage,
                 fmt::format("rank {} lives on a GPU, and the ranks are on several nodes: queues "
                             "for windows on GPUs are not there yet",
                             rank))
        .with_origin(static_cast<int>(rank))
        .with_hint("use ranks on the CPU (ORIEL_BACKEND=host), or one node");
  }
  for (std::size_t rank = 1; rank < infos.size(); ++rank) {
    const bool same_namespace =
        infos[rank].node.network_namespace == infos[0].node.network_namespace;
    if (same_namespace && infos[rank].uid == infos[0].uid) continue;
    return no_path(0, static_cast<int>(rank),
                   same_namespace ? "their processes belong to different users"
                                  : "they are in different network namespaces");
  }
  return {};
}

Status Network::prepare() {
  const auto size = static_cast<std::size_t>(options_.world->size());
  hello_.machine = machine_of_this_process();
  hello_.queues.assign(size, 0);
  domain_ = nic_.create_domain();
  ORIEL_TRY(bell_fd_, make_sealed_memfd(net::RingBell::kMemoryBytes));
  ORIEL_TRY(SharedMapping bell, SharedMapping::map(bell_fd_, net::RingBell::kMemoryBytes));
  bell_.emplace(std::move(bell));
  std::vector<int> ranks(size);
  for (std::size_t rank = 0; rank < size; ++rank) ranks[rank] = static_cast<int>(rank);
  std::vector<bool> linked(size, false);
  for (const int rank : peers_of_rank_) {
    net::SendQueue::Options queue;
    queue.domain = domain_;
    queue.depth = kQueueDepth;
    queue.fetch_slots = kFetchSlots;
    queue.peer = rank;
    queue.piece_bytes = kPieceBytes;
    ORIEL_TRY(net::SendQueue made, net::SendQueue::create(nic_, queue));
    hello_.queues[static_cast<std::size_t>(rank)] = made.number();
    linked[static_cast<std::size_t>(rank)] = true;
    peers_.push_back({rank, std::move(made), 0});
  }
  ORIEL_TRY(hello_.windows.keys,
            options_.windows->attach(nic_, domain_, options_.communicator | 1));
  exchange_ =
      std::make_unique<window::FdExchange>(options_.key, options_.communicator, kExchangeTag,
                                           std::move(ranks), options_.rank, std::move(linked));
  ORIEL_TRY(hello_.socket, exchange_->listen());
  return {};
}

/// Each rank's queue for this one, and the keys of its windows.
Status Network::take_hellos(const std::vector<Bytes>& messages) {
  std::vector<KeysMessage> windows;
  std::vector<NetworkHello> hellos;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    auto decoded = decode_hello(messages[rank], options_.world->size());
    if (!decoded.ok()) return std::move(decoded).error().with_origin(static_cast<int>(rank));
    others_failed_ = others_failed_ || decoded->windows.failed;
    windows.push_back(decoded->windows);
    hellos.push_back(std::move(decoded).value());
  }
  if (others_failed_) return {};  // the agreement tells why
  for (std::size_t rank = 1; rank < hellos.size(); ++rank) {
    if (hellos[rank].machine == hellos[0].machine) continue;
    return no_path(0, static_cast<int>(rank), "they are on different machines");
  }
  for (Peer& peer : peers_) {
    peer.far_queue =
        hellos[static_cast<std::size_t>(peer.rank)].queues[static_cast<std::size_t>(options_.rank)];
    if (peer.far_queue != 0) continue;
    return Error(ErrorCode::remote,
                 fmt::format("rank {} has no queue for rank {}", peer.rank, options_.rank))
        .with_origin(peer.rank);
  }
  return options_.windows->learn(windows);
}

/// Each receiver makes the ring in which it is written to.
Status Network::make_rings(std::vector<std::vector<OwnedFd>>& outgoing,
                           std::vector<net::RingReader>& readers) {
  const std::size_t bytes = net::ring_memory_bytes(kRingBytes);
  for (const Peer& peer : peers_) {
    auto& fds = outgoing[static_cast<std::size_t>(peer.rank)];
    ORIEL_TRY(OwnedFd ring, make_sealed_memfd(bytes));
    ORIEL_TRY(SharedMapping mapping, SharedMapping::map(ring, bytes));
    readers.emplace_back(std::move(mapping), kRingBytes);
    OwnedFd bell(sys().fcntl_int(bell_fd_.get(), F_DUPFD_CLOEXEC, 0));
    if (!bell) return system_error("duplicating a memfd");
    fds.push_back(std::move(ring));
    fds.push_back(std::move(bell));
  }
  return {};
}

Status Network::take_rings(std::vector<std::vector<OwnedFd>> arrived,
                           std::vector<net::RingReader> readers) {
  const std::size_t bytes = net::ring_memory_bytes(kRingBytes);
  auto wire = std::make_unique<net::RingWire>(address_of(options_.rank));
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const int rank = peers_[i].rank;
    const auto& fds = arrived[static_cast<std::size_t>(rank)];
    for (const auto& [fd, wanted] :
         {std::pair(&fds[0], bytes), std::pair(&fds[1], net::RingBell::kMemoryBytes)}) {
      Status sealed = check_sealed_memfd(*fd, wanted);
      if (sealed.ok()) continue;
      Error error = std::move(sealed).error();
      if (error.code() != ErrorCode::remote) return error;
      return std::move(error).with_origin(rank);
    }
    ORIEL_TRY(SharedMapping ring, SharedMapping::map(fds[0], bytes));
    ORIEL_TRY(SharedMapping bell, SharedMapping::map(fds[1], net::RingBell::kMemoryBytes));
    wire->add_peer(address_of(rank), rank, peers_[i].queue.number(),
                   net::RingWriter(std::move(ring), kRingBytes), std::move(readers[i]),
                   net::RingBell(std::move(bell)));
  }
  wire_ = wire.get();
  const std::uint32_t number = nic_.add_wire(std::move(wire));
  for (Peer& peer : peers_) {
    ORIEL_CHECK(peer.queue.connect({number, address_of(peer.rank), peer.far_queue, kEpoch}));
  }
  return {};
}

Task<Status> Network::join_rings(EventLoop& loop, Deadline deadline) {
  ORIEL_CO_CHECK(co_await exchange_->prove(loop, deadline));
  const auto size = static_cast<std::size_t>(options_.world->size());
  std::vector<std::vector<OwnedFd>> outgoing(size);
  std::vector<net::RingReader> readers;
  Status made = make_rings(outgoing, readers);
  if (!made.ok()) {
    exchange_->disconnect();  // which ends the peers' waits
    co_return made;
  }
  std::vector<std::size_t> counts(size, 0);
  for (const Peer& peer : peers_) counts[static_cast<std::size_t>(peer.rank)] = 2;
  ORIEL_CO_TRY(auto arrived, co_await exchange_->exchange_each(loop, std::move(outgoing),
                                                               std::move(counts), deadline));
  exchange_.reset();
  bell_fd_.reset();
  co_return take_rings(std::move(arrived), std::move(readers));
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
  view_.drive = [](void* self) { static_cast<void>(static_cast<Network*>(self)->progress()); };
  view_.bell = &bell_->doorbell();
  net::NicThread::Options options;
  options.progress = [this] { return progress(); };
  options.begin = [this] { topo::run_this_thread_on(options_.cpus); };
  options.bell = view_.bell;
  ORIEL_TRY(thread_, net::NicThread::start(std::move(options)));
  return {};
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

std::optional<Error> Network::queue_failure(const Peer& peer) const {
  const std::uint64_t word = std::atomic_ref<std::uint64_t>(*peer.queue.memory().first_error)
                                 .load(std::memory_order_acquire);
  if (word == 0) return std::nullopt;
  const auto error = device::queue::decode_error(word);
  const int origin = is_of_peer(error.syndrome) ? peer.rank : options_.rank;
  return Error(ErrorCode::remote,
               fmt::format("the queue from rank {} to rank {} has failed: {} (syndrome {:#04x}, "
                           "operation {:#04x}, entry {})",
                           options_.rank, peer.rank, describe(error.syndrome), error.syndrome,
                           error.opcode, error.index))
      .with_origin(origin);
}

std::optional<Error> Network::failure() const {
  if (auto failed = wire_->failure()) return failed;
  for (const Peer& peer : peers_) {
    if (auto failed = queue_failure(peer)) return failed;
  }
  return std::nullopt;
}

}  // namespace oriel::comm
