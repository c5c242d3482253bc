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

/// An entry that has been read from the ring and is not complete.
struct PostedEntry {
  std::uint64_t serial = 0;
  WorkRequest work;
  Syndrome syndrome = Syndrome::none;
  Complaint complaint = Complaint::none;
  bool begun = false;
  bool done = false;     // answered, or failed
  bool direct = false;   // its bytes do not go by the wire
  bool fetched = false;  // the peer's wire fetches them
  std::uint32_t piece_bytes = 0;
  std::uint32_t pieces = 0;
  std::uint32_t sent = 0;  // pieces
  std::uint32_t answered = 0;
  std::uint64_t sent_bytes = 0;

  bool waits_for_data() const {
    return work.kind == WorkKind::read || work.kind == WorkKind::atomic;
  }
  bool is_bare() const { return direct || fetched; }
  /// Cuts what has not been sent into pieces of this size.
  void cut(std::uint32_t bytes);
};

/// Reads what producers have posted in the ring, and completes it in order. Blocks are overwritten
/// with 0xdd before their entry is complete: whoever writes them too late, or reads them again, is
/// found out.
class PostedEntries {
 public:
  /// `name`: of the queue, in entries.
  PostedEntries(const QueueSetup& setup, std::uint32_t name);

  /// Entries begin at this block, none of which has been read.
  void begin_at(std::uint64_t index) { end_ = read_ = completed_ = index; }
  /// The doorbell has told of everything before `end`.
  void ring(std::uint64_t end) { end_ = end; }
  std::uint64_t end() const { return end_; }
  /// Everything before this block is complete.
  std::uint64_t completed() const { return completed_; }

  /// Reads entries that were rung, up to a limit. Returns whether there were any.
  bool read();
  bool has_unread() const { return read_ < end_; }
  /// Adds a write of no bytes that stands in no ring.
  void add_probe();

  bool empty() const { return entries_.empty(); }
  PostedEntry& of(std::uint64_t serial) { return entries_[serial - first_serial_]; }
  PostedEntry& oldest() { return entries_.front(); }
  /// Returns the first entry that has something to send; null if there is none, or if an earlier
  /// one has failed.
  PostedEntry* sending();
  void end_sending() { ++next_; }
  /// Entries from this one on have something to send again.
  void send_again_from(std::uint64_t serial) { next_ = serial - first_serial_; }
  /// Calls `change` with each entry from the first that has something to send on.
  template <class Change>
  void for_each_sending(const Change& change) {
    for (std::size_t i = next_; i < entries_.size() && entries_[i].begun; ++i) change(entries_[i]);
  }

  void begin(PostedEntry& entry);
  /// One piece of the entry has been answered.
  void end_piece(PostedEntry& entry);
  /// Reads and atomics that have begun and are not done.
  std::size_t reads_in_flight() const { return reads_in_flight_; }
  /// The entry fails, unless it is done: none behind it begins.
  void stop_at(PostedEntry& entry, Syndrome syndrome, Complaint complaint = Complaint::none);
  /// The oldest entry is complete; it is forgotten here.
  PostedEntry complete_oldest();
  /// The oldest entry has failed: flushing goes on behind it.
  void fail_oldest();
  /// Takes the next entry that is not complete from the ring; there is one.
  WorkRequest skip();
  void forget() { entries_.clear(); }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  void poison(const WorkRequest& work);

  const QueueSetup& setup_;
  WorkReader reader_;
  std::uint64_t end_;        // rung
  std::uint64_t read_;       // from the ring
  std::uint64_t completed_;  // also where flushing goes on
  std::deque<PostedEntry> entries_;
  std::uint64_t first_serial_ = 0;
  std::size_t next_ = 0;  // in entries_: the first that has something to send
  std::size_t reads_in_flight_ = 0;
  std::uint64_t halted_at_ = kNone;  // serial of an entry that fails: none after it begins
};

}  // namespace oriel::net
