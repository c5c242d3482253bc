// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "boot/cut_off.hpp"
#include "comm/network_soft.hpp"
#include "comm/queue_failure.hpp"
#include "net/syndrome.hpp"

/// What has gone wrong in the queues of a rank, who is asked whether it is there, and who is named.
namespace oriel::comm {
namespace {

constexpr Duration kProbeInterval = std::chrono::seconds(1);
// While it is to be told who is cut off: who has yet to answer something else is asked once that is
// answered.
constexpr Duration kDoubtInterval = std::chrono::milliseconds(20);

}  // namespace

bool SoftNetwork::is_of_probe(const Peer& peer, const device::queue::QueueError& error) const {
  if (static_cast<net::Syndrome>(error.syndrome) != net::Syndrome::transport_retry) return false;
  if (peer.failover == nullptr) return error.opcode == net::kProbeOpcode;
  const std::lock_guard lock(probe_mutex_);
  return peer.probe == error.index;
}

std::string SoftNetwork::wires_say(const Peer& peer) const {
  std::string said;
  for (std::size_t path = 0; peer.by_fabric && path < peer.paths.size(); ++path) {
    const net::WireFabric& fabric = *nics_[peer.paths[path].own]->fabric;
    Status wire = fabric.peer_status(peer.far[path].address);
    if (wire.ok()) wire = fabric.status();
    if (!wire.ok()) said += "; its wire says: " + wire.error().to_string();
  }
  return said;
}

std::optional<device::queue::QueueError> SoftNetwork::first_error(const Peer& peer) const {
  const net::QueueMemory& memory =
      peer.failover != nullptr ? peer.failover->queue().memory() : peer.single->memory();
  const std::uint64_t word =
      std::atomic_ref<std::uint64_t>(*memory.first_error).load(std::memory_order_acquire);
  if (word == 0) return std::nullopt;
  const auto error = device::queue::decode_error(word);
  // A peer that has left answers no more; what matters is whether it was asked for something.
  if (is_of_probe(peer, error) && has_left(peer)) return std::nullopt;
  return error;
}

Error SoftNetwork::queue_failure(const Peer& peer, const device::queue::QueueError& error,
                                 boot::CutOff who) const {
  const auto syndrome = static_cast<net::Syndrome>(error.syndrome);
  const bool is_alone = who == boot::CutOff::self;
  int origin = is_of_peer(error.syndrome) && !is_alone ? peer.rank : options_.rank;
  const std::string what = is_of_probe(peer, error) ? "asked whether it is there"
                                                    : fmt::format("operation {:#04x}, entry {}",
                                                                  error.opcode, error.index);
  std::string why;
  if (is_alone) why += "; most other hosts do not answer either, so it is this one that is cut off";
  if (peer.failover != nullptr) {
    // It is flushed for what the peer's own entries have met.
    if (syndrome == net::Syndrome::flushed) origin = peer.rank;
    const auto failure = peer.failover->failure();
    if (failure.has_value()) why += "; " + failure->message();
  }
  if (origin == peer.rank || is_alone) why += wires_say(peer);
  return Error(ErrorCode::remote,
               fmt::format("the queue from rank {} to rank {} has failed: {} (syndrome {:#04x}, "
                           "{}){}",
                           options_.rank, peer.rank, describe_syndrome(error.syndrome),
                           error.syndrome, what, why))
      .with_origin(origin);
}

std::optional<Error> SoftNetwork::failure(TimePoint now, const std::uint32_t* abort) {
  if (rings_ != nullptr) {
    if (auto failed = rings_->failure()) return failed;
  }
  Peer* silent = nullptr;
  for (Peer& peer : peers_) {
    const auto error = first_error(peer);
    if (!error.has_value()) continue;
    if (!is_silence(*error)) return queue_failure(peer, *error, boot::CutOff::peer);
    if (silent == nullptr) silent = &peer;
  }
  if (silent == nullptr) {
    if (is_in_doubt_) end_doubt();  // who was silent has left
    return std::nullopt;
  }
  const boot::CutOff who = judge(*silent, now, abort);
  if (who == boot::CutOff::undecided) return std::nullopt;
  return queue_failure(*silent, *first_error(*silent), who);
}

/// Nobody waits for a verdict that does not come any more.
void SoftNetwork::end_doubt() {
  const std::lock_guard lock(doubt_mutex_);
  doubted_since_.reset();
  is_in_doubt_ = false;
}

bool SoftNetwork::is_silence(const device::queue::QueueError& error) {
  return static_cast<net::Syndrome>(error.syndrome) == net::Syndrome::transport_retry;
}

/// Whether it is the peer or this rank's own host that is cut off. Only answers to what is asked
/// from now on tell: an earlier one may have come before whatever has broken.
boot::CutOff SoftNetwork::judge(const Peer& silent, TimePoint now, const std::uint32_t* abort) {
  const std::size_t of_peer = host_of_[static_cast<std::size_t>(silent.rank)];
  if (of_peer == own_host() || has_left(silent)) return boot::CutOff::peer;
  const std::lock_guard lock(doubt_mutex_);
  if (!doubted_since_.has_value()) doubted_since_ = now;
  if (who_ != boot::CutOff::undecided) return who_;
  const auto sights = look_at_hosts(*doubted_since_);
  std::vector<boot::HostSight> others;
  std::size_t at = 0;
  for (std::size_t host = 0; host < sights.size(); ++host) {
    if (!sights[host].has_value()) continue;
    if (host == of_peer) at = others.size();
    others.push_back(*sights[host]);
  }
  const bool is_late = now - *doubted_since_ >= silence(*options_.settings) / 4;
  who_ = boot::judge_silence(others, at, is_late);
  is_in_doubt_ = who_ == boot::CutOff::undecided;
  if (who_ == boot::CutOff::undecided) ask_all(now, kDoubtInterval, abort);
  return who_;
}

/// By number of the host; nothing of this rank's own and of those where all have left.
std::vector<std::optional<boot::HostSight>> SoftNetwork::look_at_hosts(TimePoint since) const {
  std::vector<std::optional<boot::HostSight>> sights(hosts_);
  for (const Peer& peer : peers_) {
    const std::size_t host = host_of_[static_cast<std::size_t>(peer.rank)];
    if (host == own_host() || has_left(peer)) continue;
    const auto error = first_error(peer);
    const boot::HostSight sight = peer.answered() >= since ? boot::HostSight::answers
                                  : error.has_value() && is_silence(*error)
                                      ? boot::HostSight::silent
                                      : boot::HostSight::unknown;
    // One rank that answers says more of its host than one that has not yet, and that one more than
    // one that does not.
    const auto weight = [](boot::HostSight of) {
      return of == boot::HostSight::answers ? 2 : of == boot::HostSight::unknown ? 1 : 0;
    };
    std::optional<boot::HostSight>& known = sights[host];
    if (!known.has_value() || weight(sight) > weight(*known)) known = sight;
  }
  return sights;
}

void SoftNetwork::probe(TimePoint now, const std::uint32_t* abort) {
  ask_all(now, kProbeInterval, abort);
}

void SoftNetwork::ask_all(TimePoint now, Duration interval, const std::uint32_t* abort) {
  const std::lock_guard lock(probe_mutex_);
  if (now - probed_ < interval) return;
  probed_ = now;
  // By whoever drives the NIC: its lock may be held for as long as a GPU copies.
  probes_are_due_ = true;
  for (Peer& peer : peers_) {
    if (peer.failover != nullptr && !has_left(peer)) probe_by_entry(peer, abort);
  }
  device::ring(*view_.bell);
}

void SoftNetwork::send_probes() {
  for (const Peer& peer : peers_) {
    if (peer.failover != nullptr || has_left(peer)) continue;
    Nic& nic = *nics_[peer.paths.front().own];
    static_cast<void>(nic.nic.probe(peer.number()));  // the queue is there
  }
}

/// A queue with backup paths: the entry goes on by another one when its path fails.
void SoftNetwork::probe_by_entry(Peer& peer, const std::uint32_t* abort) {
  const auto at = post_probe(peer.view(), abort);
  if (at.has_value()) peer.probe = at;
}

}  // namespace oriel::comm
