// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/failure_detector.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "net/queue/syndrome.hpp"

namespace oriel::comm {
namespace {

constexpr Duration kProbeInterval = std::chrono::seconds(1);
// Probe interval until it is decided which side is cut off. A peer with an outstanding answer is
// asked again once it has answered.
constexpr Duration kDoubtInterval = std::chrono::milliseconds(20);

bool is_of_deregistered(const device::queue::QueueError& error) {
  return error.vendor_syndrome == static_cast<std::uint8_t>(net::Complaint::deregistered);
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

/// Returns whether the error is that of a probe after which nothing was posted.
bool FailureDetector::is_of_probe(const PeerQueue& queue,
                                  const device::queue::QueueError& error) const {
  if (!is_timeout(error)) return false;
  // A NIC reports the first WQE after its own probe, if there is one.
  if (queue.failover() == nullptr) return error.opcode == net::kProbeOpcode;
  if (parts_.ports.on_gpu()) return !queue.failover()->pace().has_work;
  return probes_.is_of_probe(queue.view(), error);
}

PeerState FailureDetector::state_of(const PeerQueue& queue) const {
  PeerState state;
  state.host = parts_.routes.host_of(queue.rank());
  state.has_left = queue.has_left();
  state.answered = queue.answered();
  state.error = queue.first_error();
  // Ignores the timeout of a peer that has left, unless it was asked for something else.
  if (state.has_left && state.error.has_value() && is_of_probe(queue, *state.error)) {
    state.error.reset();
  }
  return state;
}

Error FailureDetector::queue_failure(const PeerQueue& queue, const device::queue::QueueError& error,
                                     boot::CutOff who) const {
  const bool is_flushed = static_cast<net::Syndrome>(error.syndrome) == net::Syndrome::flushed;
  const bool is_alone = who == boot::CutOff::self;
  // True if the peer was asked for something after it had left.
  const bool is_late = may_be_of_leaving(error.syndrome) && queue.has_left();
  const bool is_peers = is_of_peer(error.syndrome) || is_of_deregistered(error);
  const net::FailoverQueue* const failover = queue.failover();
  // Checks whether this rank caused an error of the peer's WQEs, which may have flushed the queue.
  const bool is_at_fault = is_flushed && failover != nullptr && failover->is_at_fault();
  FailedQueue failed;
  failed.rank = parts_.options.rank();
  failed.peer = queue.rank();
  failed.origin = (is_peers && !is_alone) || is_late ? failed.peer : failed.rank;
  failed.is_probe = is_of_probe(queue, error);
  failed.error = error;
  failed.cause = describe(error, is_at_fault);
  if (error.vendor_syndrome != 0) {
    failed.where = fmt::format("; the NIC's check {}: {}", error.vendor_syndrome,
                               describe_complaint(error.vendor_syndrome));
  }
  if (is_alone) {
    failed.more = "; most other hosts do not answer either, so it is this one that is cut off";
  }
  if (failover != nullptr) {
    if (is_flushed && !is_at_fault) failed.origin = failed.peer;
    if (const auto failure = failover->failure()) failed.more += "; " + failure->message();
  }
  if (failed.origin == failed.peer || is_alone) failed.more += queue.wire_errors();
  failed.peer_has_left = failed.origin == failed.peer && queue.has_left();
  return to_error(failed);
}

std::optional<Error> FailureDetector::failure(TimePoint now, device::Doorbell& doorbell,
                                              const std::uint32_t* abort) {
  const auto has_failed = [](const PeerQueue& queue) { return queue.first_error().has_value(); };
  if (std::none_of(queues_.begin(), queues_.end(), has_failed)) {
    detector_.end_doubt();
    return std::nullopt;
  }
  std::vector<PeerState> states;
  for (const PeerQueue& queue : queues_) states.push_back(state_of(queue));
  const std::size_t own_host = parts_.routes.host_of(parts_.options.rank());
  const Duration peer_timeout = Network::peer_timeout(*parts_.options.settings);
  const auto finding = detector_.detect(states, own_host, now, peer_timeout);
  if (finding.has_value()) {
    return queue_failure(queues_[finding->peer], *states[finding->peer].error, finding->who);
  }
  if (detector_.is_in_doubt()) ask_all(now, kDoubtInterval, doorbell, abort);
  return std::nullopt;
}

void FailureDetector::probe(TimePoint now, device::Doorbell& doorbell, const std::uint32_t* abort) {
  ask_all(now, kProbeInterval, doorbell, abort);
}

/// Probes all peers. On a queue with backup paths the probe moves to another path when its path
/// fails. No host thread may access the indexes of a GPU's queue, so there the paths are probed one
/// after the other.
void FailureDetector::ask_all(TimePoint now, Duration interval, device::Doorbell& doorbell,
                              const std::uint32_t* abort) {
  if (!probes_.are_due(now, interval)) return;
  are_due_ = true;
  for (PeerQueue& queue : queues_) {
    if (queue.failover() == nullptr || queue.has_left()) continue;
    if (parts_.ports.on_gpu()) {
      queue.failover()->ask();
    } else {
      probes_.post(queue.view(), abort);
    }
  }
  device::ring(doorbell);
}

void FailureDetector::send_due_probes() {
  if (!are_due_.load(std::memory_order_relaxed) || !are_due_.exchange(false)) return;
  for (const PeerQueue& queue : queues_) {
    if (queue.failover() != nullptr || queue.has_left()) continue;
    static_cast<void>(queue.nic().probe(queue.number()));  // cannot fail: the queue exists
  }
}

}  // namespace oriel::comm
