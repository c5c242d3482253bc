// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "net/copy/copy_engine.hpp"
#include "net/fabric/congestion_window.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {

/// One piece of a WQE, from when it is due until the peer has answered it and all requests
/// before it.
struct SentRequest {
  std::uint64_t number = 0;
  std::uint64_t serial = 0;  // serial of the WQE
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  bool last = false;  // last request of the WQE
  bool direct = false;
  std::optional<WireSource> source;  // source of a rendezvous read that the peer may make
  bool on_wire = false;
  bool was_sent = false;  // at least once
  bool answered = false;
  std::uint32_t wire_bytes = 0;  // bytes that count for the window
  std::uint64_t missed = 0;      // timeouts, as Retransmission counts them
  std::uint64_t place = 0;       // see WireMessage::place
  TimePoint at{};
  std::optional<Loading> load;  // load of its payload, until the request is on the wire
  bool loaded = false;

  bool is_zero_copy() const { return direct || source.has_value(); }
};

/// Requests by number, and the limit of their bytes in flight.
class SentRequests {
 public:
  /// A transfer that takes longer than `slow` narrows the window.
  explicit SentRequests(Duration slow) : window_(slow) {}

  void begin_at(std::uint64_t number) { next_number_ = number; }
  std::uint64_t next_number() const { return next_number_; }
  /// Returns the bytes without a response, in either direction.
  std::uint64_t under_way() const { return under_way_; }

  bool empty() const { return requests_.empty(); }
  bool is_full() const { return requests_.size() >= kMost; }
  std::size_t size() const { return requests_.size(); }
  SentRequest& operator[](std::size_t position) { return requests_[position]; }
  SentRequest& oldest() { return requests_.front(); }
  SentRequest& newest() { return requests_.back(); }
  /// Returns the position of the request with this number, if it has not been answered.
  std::optional<std::size_t> find(std::uint64_t number) const;

  /// Assigns a number to the request and keeps it. Returns null, and changes nothing, while the
  /// window has no room.
  SentRequest* add(SentRequest&& request);
  void note_answer(SentRequest& request, TimePoint now);
  void drop_oldest() { requests_.pop_front(); }
  /// Drops the newest request, which the peer does not know. The next request gets its number.
  void drop_newest();
  void forget();
  /// Marks the requests from this position on for retransmission.
  void retransmit_from(std::size_t position);

 private:
  static constexpr std::size_t kMost = 64;
  std::deque<SentRequest> requests_;
  CongestionWindow window_;
  std::uint64_t under_way_ = 0;
  std::uint64_t next_number_ = 0;
};

/// Decides when requests are retransmitted.
class Retransmission {
 public:
  explicit Retransmission(const QueueSetup& setup) : setup_(setup) {}

  enum class Step : std::uint8_t { wait, retransmit_oldest, retransmit_all, give_up };
  bool is_due(const SentRequest& oldest, TimePoint now) const {
    return oldest.at != TimePoint{} &&
           now - std::max(oldest.at, last_received_) >= setup_.answer_timeout;
  }
  /// Handles a timeout of the oldest request, while `under_way` bytes of all requests have no
  /// response.
  Step poll(SentRequest& oldest, const WireSign& sign, std::uint64_t under_way, TimePoint now);
  /// Returns whether to retransmit all requests that are left, after the oldest one was
  /// retransmitted alone.
  bool is_left_unanswered(TimePoint now);
  void note_answer(const SentRequest& request, TimePoint now);
  /// Starts a pause, because the peer was not ready.
  void pause(TimePoint now) { not_before_ = now + setup_.not_ready_pause; }
  bool is_paused(TimePoint now) const { return now < not_before_; }
  /// Returns when the peer last answered.
  TimePoint last_received() const { return last_received_; }

 private:
  const QueueSetup& setup_;
  TimePoint last_received_{};
  TimePoint not_before_{};
  std::optional<std::uint64_t> question_;  // number of the request that was retransmitted alone
  std::optional<TimePoint>
      answered_;  // when question_ was answered, until a later request is answered
};

}  // namespace oriel::net
