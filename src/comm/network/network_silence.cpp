// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "boot/auth/cut_off.hpp"
#include "comm/network/network_soft.hpp"
#include "comm/network/queue_failure.hpp"
#include "net/queue/syndrome.hpp"

/// What has gone wrong in the queues of a rank, who is asked whether it is there, and who is named.
namespace oriel::comm {
namespace {

constexpr Duration kProbeInterval = std::chrono::seconds(1);
// While it is to be told who is cut off: who has yet to answer something else is asked once that is
// answered.
constexpr Duration kDoubtInterval = std::chrono::milliseconds(20);

bool is_of_deregistered(const device::queue::QueueError& error) {
  return error.vendor_syndrome == static_cast<std::uint8_t>(net::Complaint::given_back);
}

const char* describe(const device::queue::QueueError& error, bool is_at_fault) {
  if (error.vendor_syndrome == static_cast<std::uint8_t>(net::Complaint::no_copies)) {
    return "this rank's GPU copies nothing for it any more";
  }
  if (is_of_deregistered(error)) return "the peer has deregistered the memory, or left";
  if (is_at_fault) {
    return "this rank has failed to do what its peer asked for, or has deregistered the memory";
  }
  return describe_syndrome(error.syndrome);
}

}  // namespace

/// Whether it is of a question behind which nothing was asked for.
bool SoftNetwork::is_of_probe(const Peer& peer, const device::queue::QueueError& error) const {
  if (!is_silence(error)) return false;
  // A NIC tells of the first entry behind its own probe, if there is one.
  if (peer.failover == nullptr) return error.opcode == net::kProbeOpcode;
  if (on_gpu()) return !peer.failover->pace().has_work;
  const std::lock_guard lock(probe_mutex_);
  return peer.probe.has_value() && is_of_lone_probe(peer.view(), *peer.probe, error);
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

std::optional<device::queue::QueueError> SoftNetwork::first_error(const Peer& peer) {
  const net::QueueMemory& memory =
      peer.failover != nullptr ? peer.failover->queue().memory() : peer.single->memory();
  const std::uint64_t word =
      std::atomic_ref<std::uint64_t>(*memory.first_error).load(std::memory_order_acquire);
  if (word == 0) return std::nullopt;
  return device::queue::decode_error(word);
}

PeerSight SoftNetwork::sight_of(const Peer& peer) const {
  PeerSight sight;
  sight.host = host_of_[static_cast<std::size_t>(peer.rank)];
  sight.has_left = has_left(peer);
  sight.answered = peer.answered();
  sight.error = first_error(peer);
  // A peer that has left answers no more; what matters is whether it was asked for something.
  if (sight.has_left && sight.error.has_value() && is_of_probe(peer, *sight.error)) {
    sight.error.reset();
  }
  return sight;
}

Error SoftNetwork::queue_failure(const Peer& peer, const device::queue::QueueError& error,
                                 boot::CutOff who) const {
  const auto syndrome = static_cast<net::Syndrome>(error.syndrome);
  const bool is_alone = who == boot::CutOff::self;
  // What it was asked for after it had left.
  const bool is_late = may_be_of_leaving(error.syndrome) && has_left(peer);
  const bool is_peers = is_of_peer(error.syndrome) || is_of_deregistered(error);
  int origin = (is_peers && !is_alone) || is_late ? peer.rank : options_.rank;
  const std::string what = is_of_probe(peer, error) ? "asked whether it is there"
                                                    : fmt::format("operation {:#04x}, entry {}",
                                                                  error.opcode, error.index);
  std::string why;
  // It is flushed for what the peer's own entries have met, which may have been this rank.
  const bool is_at_fault = syndrome == net::Syndrome::flushed && peer.failover != nullptr &&
                           peer.failover->is_at_fault();
  if (is_alone) why += "; most other hosts do not answer either, so it is this one that is cut off";
  if (peer.failover != nullptr) {
    if (syndrome == net::Syndrome::flushed && !is_at_fault) origin = peer.rank;
    const auto failure = peer.failover->failure();
    if (failure.has_value()) why += "; " + failure->message();
  }
  if (origin == peer.rank || is_alone) why += wires_say(peer);
  const std::string how = fmt::format("{} (syndrome {:#04x}, {}){}", describe(error, is_at_fault),
                                      error.syndrome, what, why);
  const bool peer_has_left = origin == peer.rank && has_left(peer);
  return Error(ErrorCode::remote, describe_failure(options_.rank, peer.rank, peer_has_left, how))
      .with_origin(origin);
}

std::optional<Error> SoftNetwork::failure(TimePoint now, const std::uint32_t* abort) {
  if (has_run_out_of_memory()) return no_memory_;
  if (rings_ != nullptr) {
    if (auto failed = rings_->failure()) return failed;
  }
  const auto has_failed = [](const Peer& peer) { return first_error(peer).has_value(); };
  if (std::none_of(peers_.begin(), peers_.end(), has_failed)) {
    judge_.end_doubt();
    return std::nullopt;
  }
  std::vector<PeerSight> sights;
  for (const Peer& peer : peers_) sights.push_back(sight_of(peer));
  const auto verdict = judge_.judge(sights, own_host(), now, silence(*options_.settings));
  if (verdict.has_value()) {
    return queue_failure(peers_[verdict->peer], *sights[verdict->peer].error, verdict->who);
  }
  if (judge_.is_in_doubt()) ask_all(now, kDoubtInterval, abort);
  return std::nullopt;
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
    if (peer.failover != nullptr && !has_left(peer)) probe_backed(peer, abort);
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

/// A queue with backup paths: the entry goes on by another one when its path fails. A GPU's has its
/// indexes where no thread of the host may touch them, so there a path is asked, and then the next.
void SoftNetwork::probe_backed(Peer& peer, const std::uint32_t* abort) const {
  if (on_gpu()) return peer.failover->ask();
  const auto at = post_probe(peer.view(), abort);
  if (at.has_value()) peer.probe = at;
}

}  // namespace oriel::comm
