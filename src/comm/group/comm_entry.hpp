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

/// What an ncclComm_t stands for, from the call that starts a communicator to the one that destroys
/// it: the communicator once it has started, the error if it could not. Thread-safe.
class CommEntry {
 public:
  CommEntry(int rank, int size, int device, bool blocking)
      : place_{rank, size}, device_(device), blocking_(blocking) {}
  /// For what a split makes: rank and size are known once its session is.
  CommEntry(int device, bool blocking) : CommEntry(-1, 0, device, blocking) {}

  /// Success once rank and size are known; else why they are not.
  Status has_place() const;
  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  int device() const { return device_; }  ///< the CUDA ordinal; -1 for the host
  bool blocking() const { return blocking_; }
  /// It is that of the process which this one was forked from.
  bool inherited() const { return forks_ != fork_count(); }
  RedOpTable& reductions() { return objects_.reductions; }
  BufferTable& buffers() { return objects_.buffers; }

  /// It has not started yet, or work goes on in the background (non-blocking communicators only).
  bool in_progress() const;
  /// The communicator, or why there is none (yet); refused while work is in progress.
  Result<std::shared_ptr<Communicator>> communicator() const;
  /// The same, null where that is an error; lives as long as the entry. For calls that
  /// take well below a microsecond, of which each lock is a part that shows.
  Communicator* started() const { return started_.load(std::memory_order_acquire); }
  /// Why the communicator cannot be used, if so; else why the last work in the background failed.
  std::optional<Error> async_error() const;

  /// Set-up, or work in the background, waits in `loop` until this is called with null: abort()
  /// ends the waits.
  void works_in(EventLoop* loop);
  /// A split has made `session` and starts a communicator on it, until this is called with null:
  /// abort() ends the session. Also sets rank and size.
  void starts_on(boot::Session* session);
  /// Set-up has ended. If the user has aborted it too late for its loop to see, the communicator
  /// ends here and the outcome is that error.
  Status finished(Result<std::shared_ptr<Communicator>> outcome);
  /// Work begins that goes on in the background; refused if there is some already.
  Status begin_work();
  /// It has ended. `publish` stores results where the user wants them; it is called before the
  /// state changes, and not after close().
  template <typename Publish>
  void end_work(Status outcome, const Publish& publish) {
    const std::lock_guard lock(mutex_);
    if (!closed_) publish();
    if (!outcome.ok()) work_error_ = std::move(outcome).error();
    working_ = false;
    started_.store(communicator_.get(), std::memory_order_release);
  }
  /// Ends set-up, or the communicator's waits.
  void abort(const Error& reason);
  /// Aborts, and returns the communicator if there is one, perhaps still in progress. Refused if
  /// the user has aborted before, or has finalized.
  Result<std::shared_ptr<Communicator>> revoke(const Error& reason);
  /// The user has revoked it, after it had started.
  bool revoked() const;
  /// The user is done with the handle, and with where results were to be stored. The communicator,
  /// also while it is in progress; null if it has not started.
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
  /// What the user has made for use with this communicator.
  struct UserObjects {
    RedOpTable reductions{ncclNumOps};
    BufferTable buffers;
  };
  UserObjects objects_;

  mutable std::mutex mutex_;
  EventLoop* loop_ = nullptr;
  boot::Session* session_ = nullptr;  // of a split
  std::optional<Error> abort_;        // also from before there was a loop
  bool working_ = false;
  bool closed_ = false;
  std::optional<Error> work_error_;
  std::shared_ptr<Communicator> communicator_;
  std::optional<Error> error_;                   // why there will be none
  std::atomic<Communicator*> started_{nullptr};  // what communicator_ holds, null while in progress
};

/// The table behind all ncclComm_t of this process.
HandleTable<CommEntry, ncclComm_t>& comm_table();

/// Leaks the communicator of `entry`: where nothing is left that could free it once its enqueued
/// work has ended, and in a forked child, which has no threads to end.
void keep_for_ever(std::shared_ptr<CommEntry> entry);

/// The error for a call on a communicator that is inherited(): of this rank.
Error inherited_error(int rank);

/// The entry of a handle; invalid_argument for null, for one that was destroyed, and for one that
/// was never made, invalid_usage for one that was inherited: a forked child is no rank, and what it
/// did would be done to the memory and the peers of its parent.
Result<std::shared_ptr<CommEntry>> find_entry(ncclComm_t handle);
/// The same, and its communicator.
Result<std::shared_ptr<Communicator>> find_communicator(ncclComm_t handle);

}  // namespace oriel::comm
