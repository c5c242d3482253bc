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

/// An entry that was read from the ring and is not complete.
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
  bool is_bare() const { return direct || rendezvous; }
  /// Splits what has not been sent into pieces of this size.
  void cut(std::uint32_t bytes);
};

/// Reads the entries that producers post in the ring, and completes them in order. WQEBBs are
/// overwritten with 0xdd before their entry is complete. This exposes late writes and second reads.
class PostedWqes {
 public:
  /// `name` is the queue's number in entries.
  PostedWqes(const QueueSetup& setup, std::uint32_t name);

  /// Starts reading at this WQEBB. No entry may have been read before.
  void begin_at(std::uint64_t index) { end_ = read_ = completed_ = index; }
  /// Notes that the doorbell has announced everything before `end`.
  void ring(std::uint64_t end) { end_ = end; }
  std::uint64_t end() const { return end_; }
  /// Everything before this WQEBB is complete.
  std::uint64_t completed() const { return completed_; }

  /// Reads entries that were rung, up to a limit. Returns whether there were any.
  bool read();
  bool has_unread() const { return read_ < end_; }
  /// Adds a write of zero bytes that has no WQE in the ring.
  void add_probe();

  bool empty() const { return entries_.empty(); }
  PostedWqe& of(std::uint64_t serial) { return entries_[serial - first_serial_]; }
  PostedWqe& oldest() { return entries_.front(); }
  /// Returns the first entry that has something to send; null if there is none. Also returns null
  /// if that entry has not started, and it or an earlier one has failed.
  PostedWqe* sending();
  void end_sending() { ++next_; }
  /// Moves the send position back to this entry.
  void send_again_from(std::uint64_t serial) { next_ = serial - first_serial_; }
  /// Calls `change` with each started entry from the send position on.
  template <class Change>
  void for_each_sending(const Change& change) {
    for (std::size_t i = next_; i < entries_.size() && entries_[i].started; ++i)
      change(entries_[i]);
  }

  void begin(PostedWqe& entry);
  /// Notes that one piece of the entry has been answered.
  void end_piece(PostedWqe& entry);
  /// Returns the number of reads and atomics that have started and are not done.
  std::size_t reads_in_flight() const { return reads_in_flight_; }
  /// Fails the entry, unless it is done. No entry behind it will start.
  void stop_at(PostedWqe& entry, Syndrome syndrome, Complaint complaint = Complaint::none);
  /// Removes the oldest entry as complete and returns it.
  PostedWqe complete_oldest();
  /// Marks the oldest entry as failed: flushing continues behind it.
  void fail_oldest();
  /// Reads the next incomplete entry from the ring and skips it; the caller knows that there is
  /// one.
  WorkRequest skip();
  void forget() { entries_.clear(); }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  void poison(const WorkRequest& work);

  const QueueSetup& setup_;
  WorkReader reader_;
  std::uint64_t end_;        // end of what was rung
  std::uint64_t read_;       // end of what was read from the ring
  std::uint64_t completed_;  // also the position of flushing
  std::deque<PostedWqe> entries_;
  std::uint64_t first_serial_ = 0;
  std::size_t next_ = 0;  // in entries_: the first that has something to send
  std::size_t reads_in_flight_ = 0;
  std::uint64_t halted_at_ = kNone;  // serial of the first failed entry: no entry after it starts
};

}  // namespace oriel::net
