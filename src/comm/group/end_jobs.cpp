// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/end_jobs.hpp"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "base/log.hpp"
#include "base/owned_thread.hpp"
#include "base/try.hpp"

namespace oriel::comm {
namespace {

/// Holds an ended communicator on a thread of the library until no enqueued work uses its memory.
/// The thread also frees the memory, which may take as long as the device is busy.
class Keeper {
 public:
  Keeper(std::shared_ptr<CommEntry> entry, std::shared_ptr<Communicator> communicator)
      : entry_(std::move(entry)), communicator_(std::move(communicator)) {}

  static Status start(const std::shared_ptr<Keeper>& keeper) {
    auto thread = OwnedThread::start({.name = "oriel-keeper",
                                      .body = [keeper] { keeper->run(); },
                                      .stop = [keeper] { keeper->stop(); }});
    if (!thread.ok()) return std::move(thread).error();
    thread->leave_to_library();
    return {};
  }
  void await_release(Deadline deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline.when(), [this] { return is_released_; });
  }

 private:
  void run() {
    constexpr Duration kLongestPause = std::chrono::milliseconds(100);
    Duration pause = std::chrono::milliseconds(1);
    while (communicator_ != nullptr && communicator_->executor().is_in_use()) {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, pause, [this] { return must_end_; })) return leak();
      pause = std::min(2 * pause, kLongestPause);
    }
    communicator_.reset();
    entry_.reset();
    const std::lock_guard lock(mutex_);
    is_released_ = true;
    changed_.notify_all();
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    must_end_ = true;
    changed_.notify_all();
  }
  /// Leaks the memory: the process ends while kernels may still use it.
  void leak() { keep_for_ever(std::move(entry_)); }

  std::shared_ptr<CommEntry> entry_;
  std::shared_ptr<Communicator> communicator_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool must_end_ = false;
  bool is_released_ = false;
};

/// Frees `entry` and `communicator` once they are not in use, and waits for this until the
/// deadline. If no thread can be started, memory in use is leaked.
void release(std::shared_ptr<CommEntry> entry, std::shared_ptr<Communicator> communicator,
             Deadline deadline) {
  const auto keeper = std::make_shared<Keeper>(entry, communicator);
  const bool in_use = communicator != nullptr && communicator->executor().is_in_use();
  if (Keeper::start(keeper).ok()) {
    if (in_use) {
      Log(entry->rank()).info("the communicator's memory is freed when its work has ended");
    }
    communicator.reset();
    entry.reset();
    return keeper->await_release(deadline);
  }
  if (!in_use) return;
  Log(entry->rank())
      .warn(
          "no thread could be started to wait for the communicator's work, so its memory is not "
          "freed; hint: raise the limit of threads (ulimit -u)");
  keep_for_ever(std::move(entry));
}

Error abort_reason() {
  // The reason has no origin: a split that the abort ends has its own rank numbers, and adds its
  // origin.
  return Error(ErrorCode::aborted, "ncclCommAbort was called");
}

Status end_aborted(ncclComm_t handle, Deadline deadline) {
  ORIEL_TRY(auto entry, find_entry(handle));
  entry->abort(abort_reason());
  auto communicator = entry->close();
  comm_table().remove(handle);
  release(std::move(entry), std::move(communicator), deadline);
  return {};
}

}  // namespace

Status destroy_communicator(ncclComm_t handle) {
  if (const auto parents = comm_table().get(handle); parents && parents->inherited()) {
    keep_for_ever(parents);
    comm_table().remove(handle);
    return {};
  }
  ORIEL_TRY(auto entry, find_entry(handle));
  auto communicator = entry->close();
  Status drained;
  if (communicator != nullptr) drained = communicator->drain();
  comm_table().remove(handle);
  if (communicator == nullptr || !communicator->executor().is_in_use()) return drained;
  communicator->leave();
  release(std::move(entry), std::move(communicator), Deadline::after(Duration(0)));
  return drained;
}

Status abort_communicator(ncclComm_t handle) {
  return end_aborted(handle, Deadline::after(kAbortTime));
}

void run_ends(GroupJobs& jobs) {
  for (AbortJob* const job : jobs_of_kind<AbortJob>(jobs)) job->entry->abort(abort_reason());
  const Deadline deadline = Deadline::after(kAbortTime);
  for_each_job(jobs, [deadline](auto& job) {
    using Kind = std::decay_t<decltype(job)>;
    if constexpr (is_end<Kind>) {
      job.entry.reset();  // the end frees memory that nobody else holds
      if constexpr (std::is_same_v<Kind, AbortJob>) {
        job.state.outcome = end_aborted(job.handle, deadline);
      } else {
        job.state.outcome = destroy_communicator(job.handle);
      }
    }
  });
}

}  // namespace oriel::comm
