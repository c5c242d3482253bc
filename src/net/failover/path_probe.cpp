// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/failover/path_probe.hpp"

#include <algorithm>
#include <limits>

#include "base/try.hpp"

namespace oriel::net {

namespace dq = device::queue;

Status PathProbe::create(const Options& options) {
  options_ = options;
  SendQueue::Options made;
  made.number = options.number;
  made.depth = dq::kDepthLeast;
  made.fetch_slots = 1;
  made.peer = options.peer;
  made.answer_timeout = options.every * 4;
  made.retransmissions_most = std::numeric_limits<std::uint32_t>::max();
  made.records = &records_;
  ORIEL_TRY(queue_, SendQueue::create(*options.nic, made));
  return {};
}

Status PathProbe::connect(std::uint32_t wire, WireAddress address, std::uint32_t queue) {
  peer_ = {wire, address, queue, epoch_};
  return queue_->connect(peer_);
}

std::uint32_t PathProbe::wanted_epoch(std::uint32_t peers, TimePoint now) {
  const std::uint32_t latest = std::max(epoch_, peers);
  if (now - polled_ < options_.every * 4) return latest;
  polled_ = now;
  const auto state = options_.nic->state(number());
  const bool failed = state.ok() && *state == QueueState::error;
  return failed ? std::max(latest, epoch_ + 1) : latest;
}

Status PathProbe::restart(std::uint32_t epoch) {
  epoch_ = peer_.epoch = epoch;
  ORIEL_CHECK(options_.nic->to_error(number()));
  ORIEL_CHECK(options_.nic->to_reset(number()));
  records_.error.reset();
  records_.refused = Syndrome::none;
  ORIEL_CHECK(queue_->connect(peer_));
  return options_.nic->ring_again(number());
}

void PathProbe::send() {
  const dq::QueueView& view = queue_->view();
  // Neither call waits: nobody else posts here, and all earlier WQEs are complete.
  dq::Reservation place;
  if (dq::reserve(device::Thread(), view, 1, place, {}) != dq::QueueOutcome::done) return;
  // Needs no key, since the write has 0 bytes.
  const dq::Wqe<2> wqe{
      {dq::control_part(dq::Opcode::write, 0, {view.number, place.base}, 2, dq::kSignalled),
       dq::remote_part({})}};
  dq::write_wqe(view, place, 0, wqe);
  if (dq::publish(device::Thread(), view, place) != dq::QueueOutcome::done) return;
  ++sent_;
  is_open_ = true;
}

bool PathProbe::take_answer() {
  if (!is_open_) return false;
  const dq::QueueView& view = queue_->view();
  static_cast<void>(dq::detail::poll_completion<device::Memory>(view));
  is_open_ = view.indexes->completed < sent_;
  return !is_open_;
}

}  // namespace oriel::net
