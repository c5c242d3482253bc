// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/requester.hpp"

#include <algorithm>
#include <chrono>

#include "net/queue/queue_records.hpp"

namespace oriel::net {
namespace {

constexpr std::uint32_t kFlushMost = 256;  // completions per call

// Returns the time above which a response is slow: a quarter of the retransmission timeout, but at
// least 50 ms. A live peer then responds before its queue or path is abandoned.
Duration slow_answer(const QueueSetup& setup) {
  return std::max<Duration>(setup.answer_timeout / 4, std::chrono::milliseconds(50));
}

}  // namespace

Requester::Requester(const QueueSetup& setup, std::uint32_t number, NicContext& nic)
    : end_{{setup, number, nic}},
      posted_(end_.setup, end_.name()),
      sent_(slow_answer(setup)),
      retransmission_(end_.setup),
      zero_copy_(end_),
      sender_(end_, posted_, sent_, zero_copy_),
      landings_(end_, posted_),
      completions_(end_.setup, end_.name()) {}

void Requester::connect(const QueuePeer& peer) {
  end_.peer = peer;
  if (end_.setup.records == nullptr) return;
  posted_.begin_at(end_.setup.records->completed);
  sent_.begin_at(end_.setup.records->number);
}

bool Requester::progress(TimePoint now) {
  if (end_.nic.sends_nothing) {
    sender_.forget_unsent();
    return false;
  }
  bool any = posted_.read();
  check_timer(now);
  any = landings_.progress() || any;
  const bool may_send = !retransmission_.is_paused(now) && sender_.send_again(now);
  if (may_send) any = begin_wqes(now) || any;
  return retire() || any;
}

void Requester::probe() {
  if (failed_ || end_.nic.sends_nothing || !posted_.empty() || posted_.has_unread()) return;
  posted_.add_probe();
}

bool Requester::begin_wqes(TimePoint now) {
  bool any = false;
  while (PostedWqe* const wqe = posted_.sending()) {
    if (!wqe->started) {
      if (!may_begin(*wqe)) break;
      begin(*wqe);
      any = true;
      if (!wqe->started) break;
    }
    const std::uint32_t before = wqe->sent;
    const bool sent = sender_.send_pieces(*wqe, now);
    any = any || wqe->sent != before;
    if (!sent) break;
    posted_.end_sending();
  }
  return any;
}

bool Requester::may_begin(const PostedWqe& wqe) const {
  const FenceMode fence = wqe.work.fence;
  if (fence == FenceMode::reads_and_atomics && posted_.reads_in_flight() != 0) return false;
  if (fence == FenceMode::everything && (!sent_.empty() || !landings_.empty())) return false;
  return !wqe.waits_for_data() || reads_in_window_ < kReadsInFlightMost;
}

void Requester::begin(PostedWqe& wqe) {
  const WorkRequest& work = wqe.work;
  if (!work.is_inline && work.kind != WorkKind::nop) {
    const auto found = end_.find_local(work, wqe.waits_for_data());
    const bool is_found = found.syndrome == Syndrome::none;
    // An earlier NIC may have sent this write: the peer is asked whether it was executed.
    const bool is_retransmitted =
        work.kind == WorkKind::write && zero_copy_.may_be_done(sent_.next_number(), false);
    if (!is_found && !is_retransmitted) return posted_.stop_at(wqe, found.syndrome);
    if (is_found) zero_copy_.choose(wqe, found.place);
  }
  posted_.begin(wqe);
  // A dump only waits for earlier data. Completion in order ensures that this data has arrived.
  if (work.kind == WorkKind::nop || work.kind == WorkKind::dump) {
    wqe.done = true;
    return;
  }
  wqe.cut(zero_copy_.piece_bytes(wqe));
  if (wqe.waits_for_data()) ++reads_in_window_;
}

void Requester::check_timer(TimePoint now) {
  using Step = Retransmission::Step;
  if (!sent_.empty() && retransmission_.is_due(sent_.oldest(), now)) {
    SentRequest& oldest = sent_.oldest();
    const WireSign sign = end_.wire().sign_of(end_.peer.address);
    const Step step = retransmission_.poll(oldest, sign, sent_.under_way(), now);
    if (step == Step::give_up) {
      posted_.stop_at(posted_.of(oldest.serial), Syndrome::transport_retry);
    } else if (step == Step::retransmit_all) {
      sent_.retransmit_from(0);
    } else {
      oldest.on_wire = false;
    }
  }
  if (retransmission_.is_left_unanswered(now)) sent_.retransmit_from(0);
}

void Requester::receive(WireResponse& response, TimePoint now) {
  if (failed_ || response.epoch != end_.peer.epoch) return;
  const auto position = sent_.find(response.number);
  if (!position.has_value()) return;
  retransmission_.note_answer(sent_[*position], now);
  if (response.not_ready) {
    retransmission_.pause(now);
    return sent_.retransmit_from(*position);
  }
  if (response.not_mapped) return sender_.go_by_wire(*position);
  // A response also acknowledges all earlier writes: their own responses may have been lost.
  for (std::size_t i = 0; i < *position; ++i) {
    if (sent_[i].answered || posted_.of(sent_[i].serial).work.kind != WorkKind::write) continue;
    take_answer(sent_[i], nullptr, now);
  }
  take_answer(sent_[*position], &response, now);
  while (!sent_.empty() && sent_.oldest().answered) {
    const SentRequest& oldest = sent_.oldest();
    if (oldest.last && posted_.of(oldest.serial).waits_for_data()) --reads_in_window_;
    sent_.drop_oldest();
  }
}

void Requester::take_answer(SentRequest& request, WireResponse* response, TimePoint now) {
  sent_.note_answer(request, now);
  PostedWqe& wqe = posted_.of(request.serial);
  zero_copy_.revoke(wqe, request);
  if (response != nullptr && response->syndrome != Syndrome::none) {
    return posted_.stop_at(wqe, response->syndrome);
  }
  // A read or an atomic is answered when its data has landed.
  if (wqe.waits_for_data()) return landings_.land(wqe, request, *response);
  posted_.end_piece(wqe);
}

bool Requester::retire() {
  bool any = false;
  for (; !posted_.empty() && posted_.oldest().done && !failed_; any = true) {
    const PostedWqe& oldest = posted_.oldest();
    if (oldest.syndrome != Syndrome::none) {
      posted_.fail_oldest();
      end_with(oldest.work, oldest.syndrome, oldest.complaint);
      return true;
    }
    const PostedWqe wqe = posted_.complete_oldest();
    if (end_.setup.records != nullptr) {
      end_.setup.records->completed = posted_.completed();
      end_.setup.records->number += wqe.pieces;
    }
    if (wqe.work.signalled) completions_.write(wqe.work, end_.nic.clock->now());
  }
  return any;
}

void Requester::end_with(const WorkRequest& work, Syndrome syndrome, Complaint complaint) {
  completions_.write_error(work, syndrome, complaint);
  give_up();
}

void Requester::fail(Syndrome syndrome, Complaint complaint) {
  if (failed_) return;
  if (syndrome == Syndrome::flushed) return give_up();  // each WQE is flushed on its own
  WorkRequest work;
  work.index = posted_.completed();
  if (work.index < posted_.end()) work = posted_.skip();
  end_with(work, syndrome, complaint);
}

bool Requester::flush() {
  if (end_.setup.records != nullptr) return false;  // left for the next NIC
  const bool any = posted_.completed() < posted_.end();
  for (std::uint32_t i = 0; i < kFlushMost && posted_.completed() < posted_.end(); ++i) {
    completions_.write_error(posted_.skip(), Syndrome::flushed, Complaint::none);
  }
  return any;
}

void Requester::give_up() {
  failed_ = true;
  sender_.forget_sent();
  posted_.forget();
  landings_.forget();
}

}  // namespace oriel::net
