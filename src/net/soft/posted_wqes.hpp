// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "net/queue/syndrome.hpp"
#include "net/queue/work_reader.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {

/// A WQE that was read from the ring and is not complete.
struct PostedWqe {
  std::uint64_t serial = 0;
  WorkRequest work;
  Syndrome syndrome = Syndrome::none;
  Complaint complaint = Complaint::none;
  bool started = false;
  bool done = false;        // answered, or failed
  bool direct = false;      // bytes do not cross the wire
  bool rendezvous = false;  // the peer's wire reads the bytes (rendezvous)
  std::uint32_t piece_bytes = 0;
  std::uint32_t pieces = 0;
  std::uint32_t sent = 0;  // pieces sent
  std::uint32_t answered = 0;
  std::uint64_t sent_bytes = 0;

  bool waits_for_data() const {
    return work.kind == WorkKind::read || work.kind == WorkKind::atomic;
  }
  bool is_zero_copy() const { return direct || rendezvous; }
  /// Splits what has not been sent into pieces of this size.
  void cut(std::uint32_t bytes);
};

/// Reads the WQEs that producers post in the ring, and completes them in order. WQEBBs are
/// overwritten with 0xdd before their WQE is complete. This exposes late writes and second reads.
class PostedWqes {
 public:
  /// `name` is the queue's number in WQEs.
  PostedWqes(const QueueSetup& setup, std::uint32_t name);

  /// Starts reading at this WQEBB. No WQE may have been read before.
  void begin_at(std::uint64_t index) { end_ = read_ = completed_ = index; }
  /// Notes that the doorbell has announced everything before `end`.
  void ring(std::uint64_t end) { end_ = end; }
  std::uint64_t end() const { return end_; }
  /// Everything before this WQEBB is complete.
  std::uint64_t completed() const { return completed_; }

  /// Reads WQEs that were rung, up to a limit. Returns whether there were any.
  bool read();
  bool has_unread() const { return read_ < end_; }
  /// Adds a write of zero bytes that has no WQE in the ring.
  void add_probe();

  bool empty() const { return wqes_.empty(); }
  PostedWqe& of(std::uint64_t serial) { return wqes_[serial - first_serial_]; }
  PostedWqe& oldest() { return wqes_.front(); }
  /// Returns the first WQE that has something to send; null if there is none. Also returns null
  /// if that WQE has not started, and it or an earlier one has failed.
  PostedWqe* sending();
  void end_sending() { ++next_; }
  /// Moves the send position back to this WQE.
  void send_again_from(std::uint64_t serial) { next_ = serial - first_serial_; }
  /// Calls `change` with each started WQE from the send position on.
  template <class Change>
  void for_each_sending(const Change& change) {
    for (std::size_t i = next_; i < wqes_.size() && wqes_[i].started; ++i) change(wqes_[i]);
  }

  void begin(PostedWqe& wqe);
  /// Notes that one piece of the WQE has been answered.
  void end_piece(PostedWqe& wqe);
  /// Returns the number of reads and atomics that have started and are not done.
  std::size_t reads_in_flight() const { return reads_in_flight_; }
  /// Fails the WQE, unless it is done. No WQE behind it will start.
  void stop_at(PostedWqe& wqe, Syndrome syndrome, Complaint complaint = Complaint::none);
  /// Removes the oldest WQE as complete and returns it.
  PostedWqe complete_oldest();
  /// Marks the oldest WQE as failed: flushing continues behind it.
  void fail_oldest();
  /// Reads the next incomplete WQE from the ring and skips it; the caller knows that there is
  /// one.
  WorkRequest skip();
  void forget() { wqes_.clear(); }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  void poison(const WorkRequest& work);

  const QueueSetup& setup_;
  WorkReader reader_;
  std::uint64_t end_;        // end of what was rung
  std::uint64_t read_;       // end of what was read from the ring
  std::uint64_t completed_;  // also the position of flushing
  std::deque<PostedWqe> wqes_;
  std::uint64_t first_serial_ = 0;
  std::size_t next_ = 0;  // in wqes_: the first that has something to send
  std::size_t reads_in_flight_ = 0;
  std::uint64_t halted_at_ = kNone;  // serial of the first failed WQE: no WQE after it starts
};

}  // namespace oriel::net
