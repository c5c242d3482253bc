// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "nccl.h"
#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "base/fork.hpp"
#include "comm/communicator/rank_communicator.hpp"
#include "comm/group/buffer_table.hpp"
#include "comm/group/handle_table.hpp"
#include "comm/group/red_op_table.hpp"

namespace oriel::comm {

/// State behind an ncclComm_t, from the call that starts a communicator to the call that destroys
/// it. Holds the communicator once it has started, or the error of its start. Thread-safe.
class CommEntry {
 public:
  CommEntry(int rank, int size, int device, bool blocking)
      : place_{rank, size}, device_(device), blocking_(blocking) {}
  /// Makes the entry for the child of a split: rank and size are known once its session exists.
  CommEntry(int device, bool blocking) : CommEntry(-1, 0, device, blocking) {}

  /// Returns success once rank and size are known, else the reason why they are not.
  Status has_place() const;
  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  int device() const { return device_; }  ///< CUDA ordinal; -1 for the host
  bool blocking() const { return blocking_; }
  /// Returns whether the entry belongs to the process from which this process was forked.
  bool inherited() const { return forks_ != fork_count(); }
  RedOpTable& reductions() { return objects_.reductions; }
  BufferTable& buffers() { return objects_.buffers; }

  /// Returns whether the start has not ended, or work runs in the background (non-blocking
  /// communicators only).
  bool in_progress() const;
  /// Returns the communicator, or the reason why there is none (yet). Returns invalid_usage while
  /// work is in progress.
  Result<std::shared_ptr<Communicator>> communicator() const;
  /// Returns communicator() as a pointer, mostly without a lock. Valid as long as the entry.
  Result<Communicator*> usable() const;
  /// Returns the communicator, or null where communicator() returns an error. The pointer is valid
  /// as long as the entry. Takes no lock, because a lock is a noticeable part of a short call.
  Communicator* started() const { return started_.load(std::memory_order_acquire); }
  /// Returns the reason why the communicator cannot be used, if any; else the error of the last
  /// background work.
  std::optional<Error> async_error() const;

  /// Sets the loop in which set-up or background work waits, so that abort() ends the waits. Call
  /// it with null before the loop is destroyed.
  void works_in(EventLoop* loop);
  /// Sets the session on which a split starts a communicator, so that abort() aborts the session.
  /// Also sets rank and size. Call it with null before the session is destroyed.
  void starts_on(boot::Session* session);
  /// Sets the outcome of set-up. If the user aborted too late for the loop to notice, aborts the
  /// communicator and returns the abort error.
  Status finished(Result<std::shared_ptr<Communicator>> outcome);
  /// Starts background work. Returns invalid_usage if there is background work already.
  Status begin_work();
  /// Ends background work. `publish` stores the results for the user: it is called before the state
  /// changes, and not after close().
  template <typename Publish>
  void end_work(Status outcome, const Publish& publish) {
    const std::lock_guard lock(mutex_);
    if (!closed_) publish();
    if (!outcome.ok()) work_error_ = std::move(outcome).error();
    working_ = false;
    started_.store(communicator_.get(), std::memory_order_release);
  }
  /// Ends the waits of set-up and of the communicator.
  void abort(const Error& reason);
  /// Aborts, and returns the communicator, or null if it has not started. Returns invalid_usage if
  /// the user has aborted or finalized before.
  Result<std::shared_ptr<Communicator>> revoke(const Error& reason);
  /// Returns whether the user has revoked or aborted the communicator and it had started.
  bool revoked() const;
  /// Ends the user's use of the handle and of the places for results, and the buffer registrations.
  /// Refuses later launches, also those of calls that have the entry already. Returns the
  /// communicator, even while it is in progress; null if it has not started.
  std::shared_ptr<Communicator> close();

 private:
  struct Place {
    std::atomic<int> rank;
    std::atomic<int> size;  // 0: not known yet
  };
  Place place_;
  const int device_;
  const bool blocking_;
  const std::uint32_t forks_ = fork_count();
  /// Objects that the user has made for this communicator.
  struct UserObjects {
    RedOpTable reductions{ncclNumOps};
    BufferTable buffers;
  };
  UserObjects objects_;

  mutable std::mutex mutex_;
  EventLoop* loop_ = nullptr;
  boot::Session* session_ = nullptr;  // session of a split that starts
  std::optional<Error> abort_;        // set even if there was no loop yet
  bool working_ = false;
  bool closed_ = false;
  std::optional<Error> work_error_;
  std::shared_ptr<Communicator> communicator_;
  std::optional<Error> error_;                   // reason why the start failed
  std::atomic<Communicator*> started_{nullptr};  // communicator_; null while in progress
};

using CommTable = HandleTable<CommEntry, ncclComm_t>;
/// Returns the table behind all ncclComm_t of this process.
CommTable& comm_table();

/// Leaks `entry` and its communicator. For a communicator whose enqueued work nothing is left to
/// await, and for a forked child, where its threads do not exist.
void keep_for_ever(std::shared_ptr<CommEntry> entry);

/// Returns the error for a call on a communicator that is inherited(). `rank` is this rank.
Error inherited_error(int rank);

/// Returns the entry of a handle. Returns invalid_argument if the handle is null, was destroyed or
/// was never made. Returns invalid_usage if it was inherited: a forked child is no rank, and its
/// calls would affect its parent's memory and peers.
Result<std::shared_ptr<CommEntry>> find_entry(ncclComm_t handle);
/// Pins the entry for one call; errors are those of find_entry(). Takes less time.
Result<CommTable::Pin> pin_entry(ncclComm_t handle);
/// Returns the communicator of a handle; errors are those of find_entry() and
/// CommEntry::communicator().
Result<std::shared_ptr<Communicator>> find_communicator(ncclComm_t handle);

}  // namespace oriel::comm
