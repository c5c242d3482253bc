// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/comm_entry.hpp"

#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::comm {

bool CommEntry::in_progress() const {
  const std::lock_guard lock(mutex_);
  return working_ || (communicator_ == nullptr && !error_);
}

Result<std::shared_ptr<Communicator>> CommEntry::communicator() const {
  if (started() != nullptr) return communicator_;  // set once, before started_
  const std::lock_guard lock(mutex_);
  if (error_) return *error_;
  if (communicator_ != nullptr && !working_) return communicator_;
  return Error(ErrorCode::invalid_usage,
               working_ ? "an earlier call on the communicator is still in progress"
                        : "the communicator has not started yet")
      .with_scope(Scope::communicator)
      .with_hint("end the group, or poll ncclCommGetAsyncError until it is not ncclInProgress");
}

Result<Communicator*> CommEntry::usable() const {
  if (Communicator* const usable = started()) return usable;
  ORIEL_TRY(const auto shared, communicator());
  return shared.get();
}

std::optional<Error> CommEntry::async_error() const {
  std::shared_ptr<Communicator> started;
  std::optional<Error> of_work;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return error_;
    started = communicator_;
    of_work = work_error_;
  }
  if (started == nullptr) return std::nullopt;
  started->detect_failure();
  auto error = started->async_error();
  return error ? error : of_work;
}

void CommEntry::works_in(EventLoop* loop) {
  const std::lock_guard lock(mutex_);
  loop_ = loop;
  if (loop != nullptr && abort_) loop->stop(*abort_);
}

Status CommEntry::has_place() const {
  if (place_.size > 0) return {};
  const auto none = communicator();
  return none.ok() ? Status() : none.error();
}

void CommEntry::starts_on(boot::Session* session) {
  const std::lock_guard lock(mutex_);
  session_ = session;
  if (session == nullptr) return;
  place_.rank = session->rank();
  place_.size = session->size();  // set last: has_place() tests it
  if (abort_) session->abort(*abort_);
}

Status CommEntry::begin_work() {
  const std::lock_guard lock(mutex_);
  if (working_) {
    return Error(ErrorCode::invalid_usage,
                 "an earlier call on the communicator is still in progress")
        .with_scope(Scope::communicator)
        .with_hint("poll ncclCommGetAsyncError until it is not ncclInProgress");
  }
  working_ = true;
  work_error_.reset();
  started_.store(nullptr, std::memory_order_release);
  return {};
}

std::shared_ptr<Communicator> CommEntry::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  // A thread that has the entry already must enqueue nothing behind the drain that follows. The
  // communicator's memory goes with the last reference, while a launch may still run.
  if (communicator_ != nullptr) communicator_->executor().close();
  objects_.buffers.clear();
  return communicator_;
}

Status CommEntry::finished(Result<std::shared_ptr<Communicator>> outcome) {
  std::optional<Error> late;
  {
    const std::lock_guard lock(mutex_);
    if (!outcome.ok()) {
      error_ = std::move(outcome).error();
      return *error_;
    }
    if (!abort_) {
      communicator_ = std::move(outcome).value();
      if (closed_ && communicator_ != nullptr)
        communicator_->executor().close();  // no end has drained it
      started_.store(communicator_.get(), std::memory_order_release);
      return {};
    }
    late = error_ = *abort_;
  }
  outcome.value()->abort(*late);
  return *std::move(late);
}

void CommEntry::abort(const Error& reason) {
  std::shared_ptr<Communicator> started;
  {
    const std::lock_guard lock(mutex_);
    if (loop_ != nullptr) loop_->stop(reason);
    if (session_ != nullptr) session_->abort(reason);
    abort_ = reason;
    started = communicator_;
  }
  if (started != nullptr) started->abort(reason);
}

Result<std::shared_ptr<Communicator>> CommEntry::revoke(const Error& reason) {
  std::shared_ptr<Communicator> started;
  {
    const std::lock_guard lock(mutex_);
    started = communicator_;
    if (abort_ && abort_->code() == ErrorCode::aborted) {
      return Error(ErrorCode::invalid_usage, "the communicator was revoked or aborted before")
          .with_scope(Scope::communicator)
          .with_hint("revoke it once; ncclCommDestroy and ncclCommAbort may follow");
    }
    Status usable = started != nullptr ? started->check_usable() : Status();
    // A communicator that has failed may be revoked; a communicator that has been finalized may
    // not.
    if (!usable.ok() && !started->async_error()) return std::move(usable).error();
    if (loop_ != nullptr) loop_->stop(reason);
    if (session_ != nullptr) session_->abort(reason);
    abort_ = reason;
  }
  if (started != nullptr) started->abort(reason);
  return started;
}

bool CommEntry::revoked() const {
  const std::lock_guard lock(mutex_);
  return communicator_ != nullptr && abort_ && abort_->code() == ErrorCode::aborted;
}

CommTable& comm_table() {
  // Never destroyed: threads of the application may still call while the process exits.
  static auto* const table = new CommTable;
  return *table;
}

void keep_for_ever(std::shared_ptr<CommEntry> entry) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<CommEntry>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(entry));
}

Error inherited_error(int rank) {
  return Error(ErrorCode::invalid_usage,
               fmt::format("the communicator is that of the process which this one was forked from,"
                           " as its rank {}",
                           rank))
      .with_hint("start one with ncclCommInitRank after the fork; this handle may be destroyed");
}

namespace {

/// Returns the error of a call on `handle`. `entry` is its entry, which is inherited; null if it
/// has none.
Error entry_error(ncclComm_t handle, const CommEntry* entry) {
  if (handle == nullptr) {
    return Error(ErrorCode::invalid_argument, "the communicator is null")
        .with_hint("pass the handle of a start that has succeeded");
  }
  if (entry == nullptr) {
    return Error(ErrorCode::invalid_argument, "this is no communicator")
        .with_hint(
            "pass the handle of a live communicator; this one was destroyed, aborted or "
            "overwritten");
  }
  return inherited_error(entry->rank());
}

}  // namespace

Result<std::shared_ptr<CommEntry>> find_entry(ncclComm_t handle) {
  auto entry = comm_table().get(handle);
  if (entry == nullptr || entry->inherited()) return entry_error(handle, entry.get());
  return entry;
}

Result<CommTable::Pin> pin_entry(ncclComm_t handle) {
  auto entry = comm_table().pin(handle);
  if (entry.get() == nullptr || entry->inherited()) return entry_error(handle, entry.get());
  return entry;
}

Result<std::shared_ptr<Communicator>> find_communicator(ncclComm_t handle) {
  ORIEL_TRY(const auto entry, find_entry(handle));
  return entry->communicator();
}

}  // namespace oriel::comm
