// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "net/copy/data_mover.hpp"
#include "net/fabric/byte_window.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {

/// One piece of an entry, from when it is due until the peer has answered it and all before it.
struct SentRequest {
  std::uint64_t number = 0;
  std::uint64_t serial = 0;  // of the entry
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  bool last = false;  // of the entry's requests
  bool direct = false;
  std::optional<WireSource> source;  // lent to the peer
  bool on_wire = false;
  bool was_sent = false;  // once at least
  bool answered = false;
  std::uint32_t wire_bytes = 0;  // of the window
  std::uint64_t missed = 0;      // timeouts, as Retransmission counts them
  std::uint64_t place = 0;       // as of WireMessage
  TimePoint at{};
  std::optional<Loading> load;  // of its payload, until that is on the wire
  bool loaded = false;

  bool is_bare() const { return direct || source.has_value(); }
};

/// Requests by their numbers, and how many bytes of them may be under way.
class SentRequests {
 public:
  /// Transfers that take longer than `slow` narrow the window.
  explicit SentRequests(Duration slow) : window_(slow) {}

  void begin_at(std::uint64_t number) { next_number_ = number; }
  std::uint64_t next_number() const { return next_number_; }
  /// Bytes without an answer, on a wire in either direction.
  std::uint64_t under_way() const { return under_way_; }

  bool empty() const { return requests_.empty(); }
  bool is_full() const { return requests_.size() >= kMost; }
  std::size_t size() const { return requests_.size(); }
  SentRequest& operator[](std::size_t position) { return requests_[position]; }
  SentRequest& oldest() { return requests_.front(); }
  SentRequest& newest() { return requests_.back(); }
  /// Returns the position of the request with this number, if it has not been answered.
  std::optional<std::size_t> find(std::uint64_t number) const;

  /// Gives the request its number; null, and nothing is changed, while the window has no room.
  SentRequest* add(SentRequest&& request);
  void note_answer(SentRequest& request, TimePoint now);
  void drop_oldest() { requests_.pop_front(); }
  /// The peer does not know the newest: the next one gets its number.
  void drop_newest();
  void forget();
  /// Has the requests from this position on be sent again.
  void repeat_from(std::size_t position);

 private:
  static constexpr std::size_t kMost = 64;
  std::deque<SentRequest> requests_;
  ByteWindow window_;
  std::uint64_t under_way_ = 0;
  std::uint64_t next_number_ = 0;
};

/// Decides when requests are sent again.
class Retransmission {
 public:
  explicit Retransmission(const QueueSetup& setup) : setup_(setup) {}

  enum class Step : std::uint8_t { wait, repeat_oldest, repeat_all, give_up };
  bool is_due(const SentRequest& oldest, TimePoint now) const {
    return oldest.at != TimePoint{} && now - std::max(oldest.at, heard_) >= setup_.answer_timeout;
  }
  /// Notes a timeout of the oldest request, while `under_way` bytes of all have no answer.
  Step look(SentRequest& oldest, const WireSign& sign, std::uint64_t under_way, TimePoint now);
  /// Returns whether all that is left is to be sent again, after the oldest alone was.
  bool is_left_unanswered(TimePoint now);
  void note_answer(const SentRequest& request, TimePoint now);
  /// The peer was not ready.
  void pause(TimePoint now) { not_before_ = now + setup_.not_ready_pause; }
  bool is_paused(TimePoint now) const { return now < not_before_; }
  /// When the peer last answered.
  TimePoint heard() const { return heard_; }

 private:
  const QueueSetup& setup_;
  TimePoint heard_{};
  TimePoint not_before_{};
  std::optional<std::uint64_t> question_;  // the number of a request that alone was repeated
  std::optional<TimePoint> told_;          // when that was answered, and nothing else since
};

}  // namespace oriel::net
