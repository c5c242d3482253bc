// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "nccl.h"
#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "comm/communicator.hpp"
#include "comm/handle_table.hpp"
#include "comm/red_op_table.hpp"

namespace oriel::comm {

/// What an ncclComm_t stands for, from the call that starts a communicator to the one that destroys
/// it: the communicator once it has started, the error if it could not. Thread-safe.
class CommEntry {
 public:
  enum class State : std::uint8_t { starting, ready, failed };

  CommEntry(int rank, int size, int device, bool blocking)
      : rank_(rank), size_(size), device_(device), blocking_(blocking) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }  ///< the CUDA ordinal; -1 for the host
  bool blocking() const { return blocking_; }
  RedOpTable& reductions() { return reductions_; }

  State state() const;
  /// The communicator, or why there is none (yet).
  Result<std::shared_ptr<Communicator>> communicator() const;
  /// The communicator once it has started, else null; lives as long as the entry. For calls that
  /// take well below a microsecond, of which each lock is a part that shows.
  Communicator* started() const { return started_.load(std::memory_order_acquire); }
  /// Why the communicator cannot be used, if so.
  std::optional<Error> async_error() const;

  /// Set-up runs in `loop` until finished() is called, so that abort() can end it.
  void starting_in(EventLoop& loop);
  void finished(Result<std::shared_ptr<Communicator>> outcome);
  /// Ends set-up, or the communicator's waits.
  void abort(const Error& reason);

 private:
  const int rank_;
  const int size_;
  const int device_;
  const bool blocking_;
  RedOpTable reductions_{ncclNumOps};

  mutable std::mutex mutex_;
  EventLoop* loop_ = nullptr;
  std::optional<Error> abort_;  // before set-up began
  std::shared_ptr<Communicator> communicator_;
  std::optional<Error> error_;
  std::atomic<Communicator*> started_{nullptr};  // what communicator_ holds from then on
};

/// The table behind all ncclComm_t of this process.
HandleTable<CommEntry, ncclComm_t>& comm_table();

/// Leaks the communicator of `entry`, whose enqueued work has not ended: kernels may still start
/// that use its memory.
void keep_for_ever(std::shared_ptr<CommEntry> entry);

/// The entry of a handle; invalid_argument for null, for one that was destroyed, and for one that
/// was never made.
Result<std::shared_ptr<CommEntry>> find_entry(ncclComm_t handle);
/// The same, and its communicator.
Result<std::shared_ptr<Communicator>> find_communicator(ncclComm_t handle);

}  // namespace oriel::comm
