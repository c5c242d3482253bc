// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "boot/socket_address.hpp"
#include "comm/network.hpp"
#include "comm/path_interfaces.hpp"
#include "topo/node_identity.hpp"
#include "topo/placement.hpp"
#include "topo/process_machine.hpp"

/// By how many paths ranks reach each other, and who looks at those that have a backup.
namespace oriel::comm {
namespace {

// Of queues with backup paths: between two looks, and while their ends are about to agree.
constexpr Duration kLookEvery = std::chrono::milliseconds(5);
constexpr Duration kLookOften = std::chrono::microseconds(500);
// The same for the thread that does it while nobody else is awake.
constexpr Duration kNap = std::chrono::milliseconds(10);
constexpr Duration kShortNap = std::chrono::milliseconds(1);
// Some ticks of the peer's monitor, which names who is at fault.
constexpr Duration kHearsayPause = std::chrono::milliseconds(500);

std::uint64_t machine_of_this_process() {
  return topo::host_hash(topo::read_host_facts(topo::process_machine().sources().files), "");
}

const char* name_of(WireChoice wire) {
  return wire == WireChoice::fabric ? "fabric" : "auto";
}

Error unlike(const std::string& what, std::size_t rank) {
  return Error(ErrorCode::invalid_usage, what)
      .with_origin(static_cast<int>(rank))
      .with_hint("set it alike on all ranks");
}

/// The same outcome on all ranks: a function of what they have told each other.
Status check_places(const std::vector<NetworkPlace>& places, bool on_gpus) {
  const NetworkPlace& first = places[0];
  for (std::size_t rank = 1; rank < places.size(); ++rank) {
    if (places[rank].wire != first.wire) {
      return unlike(fmt::format("ORIEL_WIRE is {} on rank 0 and {} on rank {}", name_of(first.wire),
                                name_of(places[rank].wire), rank),
                    rank);
    }
    if (places[rank].paths_asked != first.paths_asked) {
      return unlike(fmt::format("ORIEL_PATHS {} on rank 0 and {} on rank {}",
                                describe_paths(first.paths_asked),
                                describe_paths(places[rank].paths_asked), rank),
                    rank);
    }
  }
  if (first.paths_asked != kPathsAutomatic && first.paths_asked > net::kPathsMost) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("ORIEL_PATHS {}: at most {} are possible",
                             describe_paths(first.paths_asked), net::kPathsMost));
  }
  if (on_gpus && first.paths_asked > 1) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("ORIEL_PATHS {}, and ranks on GPUs have no backup paths yet",
                             describe_paths(first.paths_asked)))
        .with_hint("unset it, or name one interface");
  }
  return {};
}

}  // namespace

NetworkPlace Network::own_place() {
  auto chosen = choose_paths(
      *options_.settings,
      topo::interface_user(options_.topology->infos, static_cast<std::size_t>(options_.rank)));
  if (chosen.ok()) {
    interfaces_ = std::move(chosen).value();
  } else {
    no_interfaces_ = std::move(chosen).error().with_context("choosing network interfaces");
  }
  NetworkPlace place;
  place.machine = machine_of_this_process();
  place.wire = options_.settings->wire;
  place.paths_asked = paths_asked(options_.settings->paths);
  place.paths =
      static_cast<std::uint8_t>(std::min<std::size_t>(interfaces_.size(), net::kPathsMost));
  return place;
}

Status Network::take_places(const std::vector<Bytes>& messages) {
  std::vector<NetworkPlace> places;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    auto place = decode_place(messages[rank]);
    if (!place.ok()) return std::move(place).error().with_origin(static_cast<int>(rank));
    places.push_back(place.value());
  }
  const bool on_gpus = options_.topology->infos[0].kind != topo::DeviceKind::host;
  ORIEL_CHECK(check_places(places, on_gpus));
  join_places(places);
  return {};
}

/// Numbers the hosts: machines, as far as they share a network. Where all ranks go by libfabric
/// also what the user calls nodes.
void Network::number_hosts(const std::vector<NetworkPlace>& places) {
  const auto& infos = options_.topology->infos;
  std::map<std::array<std::uint64_t, 3>, std::size_t> numbers;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const topo::NodeIdentity& node = infos[rank].node;
    const bool by_node = places[rank].wire == WireChoice::fabric;
    const std::array<std::uint64_t, 3> name{places[rank].machine, node.network_namespace,
                                            by_node ? node.host : 0};
    host_of_.push_back(numbers.try_emplace(name, numbers.size()).first->second);
  }
}

void Network::join_places(const std::vector<NetworkPlace>& places) {
  number_hosts(places);
  const auto& infos = options_.topology->infos;
  const auto self = static_cast<std::size_t>(options_.rank);
  ranks_on_machine_ = ranks_beside(places, self);
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto space = infos[rank].node.network_namespace;
    const bool shares_memory = places[rank].machine == places[self].machine && space != 0 &&
                               space == infos[self].node.network_namespace &&
                               infos[rank].uid == infos[self].uid;
    by_fabric_.push_back(!shares_memory || places[self].wire == WireChoice::fabric);
    const bool is_peer =
        std::binary_search(peers_of_rank_.begin(), peers_of_rank_.end(), static_cast<int>(rank));
    const bool by_several = is_peer && by_fabric_.back();
    paths_to_.push_back(by_several ? std::min(places[rank].paths, places[self].paths)
                                   : std::size_t{1});
  }
}

/// How long a path may be silent, and how long both ends may take to agree: so long that whoever
/// answers by no path at all is given up as soon as he would be without backups.
Status Network::make_failover_queue(Peer& peer, const net::SendQueue::Options& queue) {
  peer.channel = options_.make_channel(peer.rank);
  Bytes stale;
  while (peer.channel->receive(stale)) {  // of a network that did not come to be
  }
  const Duration most = silence(*options_.settings);
  net::FailoverQueue::Options options;
  options.queue = queue;
  net::PathPolicy& health = options.health;
  health.fail_after = std::min(health.fail_after, most * 2 / 5);
  health.suspect_after = std::min(health.suspect_after, health.fail_after / 4);
  health.probe_every = std::min(health.probe_every, health.fail_after / 8);
  options.agreement.give_up_after = most - health.fail_after;
  options.hearsay_pause = kHearsayPause;
  options.channel = peer.channel.get();
  for (std::size_t path = 0; path < peer.paths; ++path) {
    Nic& nic = *nics_[path];
    const std::uint32_t number = path == 0 ? 0 : queue.number;
    options.paths.push_back({&nic.nic, nic.domain, nic.fabric_wire, interfaces_[path], number,
                             queue_number(hello_.first_queue, probe_of(peer.rank))});
  }
  ORIEL_TRY(peer.failover, net::FailoverQueue::create(std::move(options)));
  return {};
}

WindowNics Network::window_nics() const {
  WindowNics nics;
  for (const auto& nic : nics_) nics.ports.push_back({&nic->nic, nic->domain});
  if (!has_backups()) return nics;
  nics.aliases.resize(static_cast<std::size_t>(options_.world->size()));
  for (const Peer& peer : peers_) {
    for (std::size_t path = 1; path < peer.paths; ++path) {
      auto& aliases = nics.aliases[static_cast<std::size_t>(peer.rank)];
      aliases.push_back(&peer.failover->aliases(path));
    }
  }
  return nics;
}

const net::FailoverQueue* Network::failover(int rank) const {
  const auto of_rank = [rank](const Peer& peer) { return peer.rank == rank; };
  const auto found = std::find_if(peers_.begin(), peers_.end(), of_rank);
  return found == peers_.end() ? nullptr : found->failover.get();
}

bool Network::progress_nic(Nic& nic) {
  if (!nic.nic.progress()) return false;
  wake_waiters();
  return true;
}

// Beside the thread that sleeps on the bell: nothing that lies in memory wakes who waits for a
// descriptor, nor the other way round.
Status Network::start_fabric_thread(std::size_t path) {
  Nic& nic = *nics_[path];
  net::NicThread::Options options;
  options.progress = [this, &nic] { return progress_nic(nic); };
  options.begin = [this] { topo::run_this_thread_on(options_.cpus); };
  options.sleep = [this, &nic, path] {
    const std::uint64_t turns = turns_of_waiters_.load(std::memory_order_relaxed);
    const bool others_drive = std::exchange(nic.turns_seen, turns) != turns;
    nic.sleeper->sleep(others_drive && is_in_use(path));
  };
  options.wake = [&nic] { nic.sleeper->wake(); };
  ORIEL_TRY(nic.thread, net::NicThread::start(std::move(options)));
  return {};
}

/// For the log.
void Network::tell_paths() const {
  const Log log(options_.rank);
  log.info("paths to ranks of other hosts, best first: {}", fmt::join(interfaces_, ", "));
  const auto usable = boot::usable_interfaces({.ifname = options_.settings->socket_ifname});
  if (!usable.ok() || usable->front() != interfaces_.front()) return;
  log.warn("set-up uses {} as well: where it is down, no other path can be agreed upon",
           interfaces_.front());
}

Status Network::start_keeper() {
  net::NicThread::Options options;
  options.progress = [this] {
    if (!progress_failover()) return false;
    wake_waiters();
    return true;
  };
  options.begin = [this] { topo::run_this_thread_on(options_.cpus); };
  options.sleep = [this] { std::this_thread::sleep_for(is_settled_ ? kNap : kShortNap); };
  ORIEL_TRY(keeper_, net::NicThread::start(std::move(options)));
  tell_paths();
  return {};
}

bool Network::progress_backups() {
  bool any = false;
  for (std::size_t path = 1; path < nics_.size(); ++path) {
    if (is_in_use(path)) any = nics_[path]->nic.progress() || any;
  }
  if (SteadyClock::instance().now() < next_look_.load(std::memory_order_relaxed)) return any;
  return progress_failover() || any;
}

/// A peer that has left has closed its paths, which is no failure of theirs as long as it is asked
/// for nothing.
bool Network::is_done_with(const Peer& peer, const net::FailoverQueue::Pace& pace) const {
  return !pace.has_work && has_left(peer);
}

bool Network::progress_failover() {
  const std::unique_lock lock(failover_mutex_, std::try_to_lock);
  // Their probes are not sent any more, so paths would seem to have failed.
  if (!lock.owns_lock() || aborted_) return false;
  bool any = false, is_settled = true;
  unsigned in_use = 1;
  for (const Peer& peer : peers_) {
    if (peer.failover == nullptr || is_done_with(peer, peer.failover->pace())) continue;
    any = peer.failover->progress() || any;
    const auto pace = peer.failover->pace();
    is_settled = is_settled && pace.is_settled;
    if (pace.path >= 0) in_use |= 1u << pace.path;
  }
  is_settled_ = is_settled;
  paths_in_use_ = static_cast<net::PathMask>(in_use);
  next_look_ = SteadyClock::instance().now() + (is_settled ? kLookEvery : kLookOften);
  // A probe, or work that has found another path.
  for (const auto& nic : nics_) {
    if (any && nic->sleeper.has_value()) nic->sleeper->wake();
  }
  return any;
}

}  // namespace oriel::comm
