// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/sent_requests.hpp"

#include <algorithm>
#include <utility>

namespace oriel::net {
namespace {

// Weight of a timeout without any sign from the peer's NIC, or once the NIC is known to have the
// request. A timeout weighs 1 if the request may still be in flight on a slow link.
constexpr std::uint64_t kSilent = 8;

}  // namespace

std::optional<std::size_t> SentRequests::find(std::uint64_t number) const {
  if (requests_.empty() || number < requests_.front().number) return std::nullopt;
  const std::uint64_t position = number - requests_.front().number;
  if (position >= requests_.size() || requests_[position].answered) return std::nullopt;
  return position;
}

SentRequest* SentRequests::add(SentRequest&& request) {
  if (!window_.allows(under_way_, request.wire_bytes)) return nullptr;
  request.number = next_number_;
  requests_.push_back(std::move(request));
  ++next_number_;
  under_way_ += requests_.back().wire_bytes;
  return &requests_.back();
}

void SentRequests::note_answer(SentRequest& request, TimePoint now) {
  request.answered = true;
  window_.ended(under_way_, request.wire_bytes, request.at, now);
  under_way_ -= request.wire_bytes;
}

void SentRequests::drop_newest() {
  next_number_ = requests_.back().number;
  under_way_ -= requests_.back().wire_bytes;
  requests_.pop_back();
}

void SentRequests::forget() {
  requests_.clear();
  under_way_ = 0;
}

void SentRequests::retransmit_from(std::size_t position) {
  for (; position < requests_.size(); ++position) requests_[position].on_wire = false;
}

Retransmission::Step Retransmission::poll(SentRequest& oldest, const WireSign& sign,
                                          std::uint64_t under_way, TimePoint now) {
  const bool is_there = sign.last_received > std::max(oldest.at, last_received_);
  // If the request has arrived, the queue does not answer, whatever else its NIC sends.
  const bool has_arrived = oldest.place != 0 && sign.arrived >= oldest.place;
  oldest.missed += is_there && !has_arrived ? 1 : kSilent;
  oldest.at = now;
  if (oldest.missed > kSilent * setup_.retransmissions_most) return Step::give_up;
  const std::uint64_t little =
      std::max<std::uint64_t>(setup_.piece_bytes, CongestionWindow::kLeast);
  if (under_way <= little) return Step::retransmit_all;
  // The other requests may still be leaving. A retransmission would only queue behind them.
  question_ = oldest.number;
  answered_.reset();
  return Step::retransmit_oldest;
}

/// If the other requests had arrived, their responses would come before the oldest one's or soon
/// after it.
bool Retransmission::is_left_unanswered(TimePoint now) {
  if (!answered_.has_value() || now - *answered_ < setup_.answer_timeout / 8) return false;
  question_.reset();
  answered_.reset();
  return true;
}

void Retransmission::note_answer(const SentRequest& request, TimePoint now) {
  last_received_ = now;
  if (setup_.answered != nullptr && request.at > setup_.answered->load(std::memory_order_relaxed)) {
    setup_.answered->store(request.at, std::memory_order_relaxed);
  }
  if (!question_.has_value()) return;
  if (request.number == *question_ && !answered_.has_value()) {
    answered_ = now;
  } else if (request.number > *question_) {
    question_.reset();
    answered_.reset();
  }
}

}  // namespace oriel::net
