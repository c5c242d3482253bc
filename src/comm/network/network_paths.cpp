// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <map>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "boot/auth/socket_address.hpp"
#include "comm/network/network_places.hpp"
#include "comm/network/network_soft.hpp"
#include "comm/network/queue_failure.hpp"
#include "comm/paths/path_interfaces.hpp"
#include "comm/paths/path_networks.hpp"
#include "topo/choice/placement.hpp"
#include "topo/machine/process_machine.hpp"

/// By how many paths ranks reach each other, and who looks at those that have a backup.
namespace oriel::comm {
namespace {

// Of queues with backup paths: between two looks, and while their ends are about to agree.
constexpr Duration kLookEvery = std::chrono::milliseconds(5);
constexpr Duration kLookOften = std::chrono::microseconds(500);
// The same for the thread that does it while nobody else is awake.
constexpr Duration kNap = std::chrono::milliseconds(10);
constexpr Duration kShortNap = std::chrono::milliseconds(1);
// Some ticks of the peer's monitor, which names who is at fault, once it does not wait any more for
// a note that somebody has left.
constexpr Duration kHearsayPause = LeavingDoubt::kMost + std::chrono::milliseconds(500);

}  // namespace

NetworkPlace SoftNetwork::own_place() {
  auto chosen = choose_paths(
      *options_.settings,
      topo::interface_user(options_.topology->infos, static_cast<std::size_t>(options_.rank)));
  if (chosen.ok()) {
    interfaces_ = std::move(chosen).value();
  } else {
    no_interfaces_ = std::move(chosen).error().with_context("choosing network interfaces");
  }
  NetworkPlace place = place_of_this_process();
  place.interfaces.resize(std::min<std::size_t>(interfaces_.size(), net::kPathsMost));
  // Where no rank has several there is nothing to choose.
  const bool may_choose = paths_asked(options_.settings->paths) > 1;
  for (std::size_t i = 0; i < place.interfaces.size() && may_choose; ++i) {
    auto described = look_at(interfaces_[i]);
    if (described.ok()) {
      place.interfaces[i] = std::move(described).value();
    } else if (!no_interfaces_.has_value()) {
      no_interfaces_ = std::move(described).error().with_context("describing network interfaces");
    }
  }
  return place;
}

/// One without an address is found out as its wire is made.
Result<PathInterface> SoftNetwork::look_at(const std::string& interface) const {
  boot::SocketOptions options{.ifname = options_.settings->socket_ifname};
  std::string name = interface;
  if (name.empty()) {
    ORIEL_TRY(const auto usable, boot::usable_interfaces(options));
    name = usable.front();
  }
  options.ifname = "=" + name;
  auto address = boot::choose_interface(options);
  if (!address.ok() && address.error().code() != ErrorCode::invalid_usage) {
    return std::move(address).error();
  }
  return describe_interface(topo::process_machine().sources().files, name,
                            address.ok() ? address.value() : boot::SocketAddress());
}

/// Numbers the hosts: machines, as far as they share a network. Where all ranks go by libfabric
/// also what the user calls nodes.
void SoftNetwork::number_hosts(const std::vector<NetworkPlace>& places) {
  const auto& infos = options_.topology->infos;
  std::map<std::array<std::uint64_t, 3>, std::size_t> numbers;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const topo::NodeIdentity& node = infos[rank].node;
    const bool by_node = options_.settings->wire == WireChoice::fabric;
    const std::array<std::uint64_t, 3> name{places[rank].machine, node.network_namespace,
                                            by_node ? node.host : 0};
    host_of_.push_back(numbers.try_emplace(name, numbers.size()).first->second);
  }
}

void SoftNetwork::join_places(const std::vector<NetworkPlace>& places) {
  number_hosts(places);
  const auto& infos = options_.topology->infos;
  const auto self = static_cast<std::size_t>(options_.rank);
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto space = infos[rank].node.network_namespace;
    const bool shares_memory = places[rank].machine == places[self].machine && space != 0 &&
                               space == infos[self].node.network_namespace &&
                               infos[rank].uid == infos[self].uid;
    by_fabric_.push_back(!shares_memory || options_.settings->wire == WireChoice::fabric);
    const bool is_peer =
        std::binary_search(peers_of_rank_.begin(), peers_of_rank_.end(), static_cast<int>(rank));
    const bool may_choose = is_peer && by_fabric_.back();
    paths_to_.push_back(
        may_choose ? pair_paths(places[self].interfaces, places[rank].interfaces, self < rank)
                   : std::vector<PathPair>(1));
  }
}

/// How long a path may be silent, and how long both ends may take to agree: so long that whoever
/// answers by no path at all is given up as soon as he would be without backups.
Status SoftNetwork::make_failover_queue(Peer& peer, const net::SendQueue::Options& queue) {
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
  options.first_has_aliases = has_aliases(peer.paths.front());
  for (std::size_t path = 0; path < peer.paths.size(); ++path) {
    const std::size_t own = peer.paths[path].own;
    Nic& nic = *nics_[own];
    const std::uint32_t number = path == 0 ? 0 : queue.number;
    options.paths.push_back({&nic.nic, nic.domain, nic.fabric_wire, interfaces_[own], number,
                             queue_number(hello_.first_queue, probe_of(peer.rank))});
  }
  ORIEL_TRY(peer.failover, net::FailoverQueue::create(std::move(options)));
  return {};
}

WindowNics SoftNetwork::window_nics() const {
  WindowNics nics;
  for (const auto& nic : nics_) {
    nic->windows.emplace(nic->nic, nic->domain);
    nics.ports.push_back(&*nic->windows);
  }
  for (const Peer& peer : peers_) {
    for (std::size_t path = 0; path < peer.paths.size(); ++path) {
      const PathPair& pair = peer.paths[path];
      if (!has_aliases(pair)) continue;
      net::KeyAliases* const aliases =
          peer.failover != nullptr ? &peer.failover->aliases(path) : peer.aliases.get();
      nics.paths.resize(static_cast<std::size_t>(options_.world->size()));
      nics.paths[static_cast<std::size_t>(peer.rank)].push_back({aliases, pair.own, pair.far});
    }
  }
  return nics;
}

const net::FailoverQueue* SoftNetwork::failover(int rank) const {
  const auto of_rank = [rank](const Peer& peer) { return peer.rank == rank; };
  const auto found = std::find_if(peers_.begin(), peers_.end(), of_rank);
  return found == peers_.end() ? nullptr : found->failover.get();
}

std::vector<std::string> SoftNetwork::interfaces_to(int rank) const {
  std::vector<std::string> names;
  for (const PathPair& path : paths_to_[static_cast<std::size_t>(rank)]) {
    names.push_back(interfaces_[path.own]);
  }
  return names;
}

bool SoftNetwork::progress_nic(Nic& nic) {
  if (!nic.nic.progress()) return false;
  wake_waiters();
  return true;
}

// Beside the thread that sleeps on the bell: nothing that lies in memory wakes who waits for a
// descriptor, nor the other way round.
Status SoftNetwork::start_fabric_thread(std::size_t at) {
  Nic& nic = *nics_[at];
  net::NicThread::Options options;
  options.progress = [this, &nic] { return progress_nic(nic); };
  options.begin = [this] { topo::run_this_thread_on(options_.cpus); };
  options.sleep = [this, &nic, at] {
    const std::uint64_t turns = turns_of_waiters_.load(std::memory_order_relaxed);
    const bool others_drive = std::exchange(nic.turns_seen, turns) != turns;
    nic.sleeper->sleep(others_drive && is_in_use(at));
  };
  options.wake = [&nic] { nic.sleeper->wake(); };
  ORIEL_TRY(nic.thread, net::NicThread::start(std::move(options)));
  return {};
}

/// For the log.
void SoftNetwork::tell_paths() const {
  const Log log(options_.rank);
  log.info("interfaces of paths to ranks of other hosts, best first: {}",
           fmt::join(interfaces_, ", "));
  const auto usable = boot::usable_interfaces({.ifname = options_.settings->socket_ifname});
  if (!usable.ok() || usable->front() != interfaces_.front()) return;
  log.warn("set-up uses {} as well: where it is down, no other path can be agreed upon",
           interfaces_.front());
}

Status SoftNetwork::start_keeper() {
  net::NicThread::Options options;
  options.progress = [this] { return keep(); };
  options.begin = [this] { topo::run_this_thread_on(options_.cpus); };
  options.sleep = [this] { std::this_thread::sleep_for(is_settled_ ? kNap : kShortNap); };
  ORIEL_TRY(keeper_, net::NicThread::start(std::move(options)));
  tell_paths();
  return {};
}

/// By the thread that looks when nobody else does; throws nothing.
bool SoftNetwork::keep() {
  try {
    if (!progress_failover()) return false;
    wake_waiters();
    return true;
  } catch (const std::exception&) {
    run_out_of_memory();
    return false;
  }
}

bool SoftNetwork::progress_backups() {
  bool any = false;
  for (std::size_t at = 1; at < nics_.size(); ++at) {
    if (is_in_use(at)) any = nics_[at]->nic.progress() || any;
  }
  if (SteadyClock::instance().now() < next_look_.load(std::memory_order_relaxed)) return any;
  return progress_failover() || any;
}

/// A peer that has left has closed its paths, which is no failure of theirs as long as it is asked
/// for nothing.
bool SoftNetwork::is_done_with(const Peer& peer, const net::FailoverQueue::Pace& pace) const {
  return !pace.has_work && has_left(peer);
}

bool SoftNetwork::progress_failover() {
  const std::unique_lock lock(failover_mutex_, std::try_to_lock);
  // Their probes are not sent any more, so paths would seem to have failed.
  if (!lock.owns_lock() || aborted_ || has_no_memory_) return false;
  bool any = false, is_settled = true;
  unsigned in_use = 1;
  for (const Peer& peer : peers_) {
    if (peer.failover == nullptr) {
      in_use |= 1u << peer.paths.front().own;
      continue;
    }
    if (is_done_with(peer, peer.failover->pace())) continue;
    any = peer.failover->progress() || any;
    const auto pace = peer.failover->pace();
    is_settled = is_settled && pace.is_settled;
    if (pace.path >= 0) in_use |= 1u << peer.paths[static_cast<std::size_t>(pace.path)].own;
  }
  is_settled_ = is_settled;
  nics_in_use_ = static_cast<net::PathMask>(in_use);
  next_look_ = SteadyClock::instance().now() + (is_settled ? kLookEvery : kLookOften);
  // A probe, or work that has found another path.
  for (const auto& nic : nics_) {
    if (any && nic->sleeper.has_value()) nic->sleeper->wake();
  }
  return any;
}

}  // namespace oriel::comm
