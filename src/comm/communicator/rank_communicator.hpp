// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "comm/communicator/call_runner.hpp"
#include "comm/communicator/communicator_parts.hpp"
#include "comm/communicator/device_comm_memory.hpp"
#include "comm/communicator/failure_watch.hpp"
#include "kernels/plan/duration.hpp"

namespace oriel::test {
class NetworkInside;
}

namespace oriel::comm {

struct JoinRequest {
  boot::UniqueId id;
  int rank = 0;
  int size = 1;
  Device* device = nullptr;
  CommunicatorOptions options;
  /// Reason why this rank cannot join; the other ranks receive it. `device` may be null then.
  std::optional<Error> refused;
};

/// One rank of a communicator.
///
/// Set-up calls (join, register_windows, make_device_comm) are tasks and collective over the ranks.
/// So one thread can run the tasks of several ranks in one loop. All other calls are local. One
/// thread at a time, except abort(), async_error() and detect_failure(): any thread may call
/// these at any time.
///
/// Once a peer has died, a wait was given up or abort() was called, the communicator has failed
/// (FailureWatch). Then async_error() returns the reason, and collectives and registrations return
/// this error.
class Communicator final : public std::enable_shared_from_this<Communicator> {
 public:
  static Task<Result<std::shared_ptr<Communicator>>> join(EventLoop& loop, JoinRequest request);
  ~Communicator();

  int rank() const { return parts_.session->rank(); }
  int size() const { return parts_.session->size(); }
  /// Returns the communicator's number: random, the same on all its ranks.
  std::uint64_t number() const { return parts_.session->number(); }
  Device& device() const { return *parts_.device; }
  const std::vector<int>& team() const { return parts_.team_facts.members; }

  /// Registers a batch of windows. Returns one handle per window.
  Task<Result<std::vector<void*>>> register_windows(EventLoop& loop,
                                                    std::vector<window::WindowRequest> requests);
  Status deregister_window(const void* handle);
  /// Returns a registered window as kernels see it; empty for any other handle.
  device::WindowView window_view(const void* handle) const { return parts_.sink->view(handle); }

  /// Makes control memory for a user's kernels. If the ranks' requests differ, the call returns an
  /// error.
  Task<Result<DeviceCommMemory>> make_device_comm(EventLoop& loop, DeviceCommRequest request);

  /// Returns an error once the communicator has failed or has been finalized.
  Status check_usable() const { return failure_.check_usable(); }
  /// Returns the object that runs collectives, sends and receives.
  CallRunner& calls() { return calls_; }

  /// Waits for enqueued work; afterwards this rank can make no more calls. Local: waits for no call
  /// of another rank, so ranks may finalize several communicators in any order.
  Status finalize();
  /// Ends every wait on every rank with `reason`. Does not wait. Idempotent.
  void abort(const Error& reason) { failure_.abort(reason); }
  /// Informs the other ranks that this rank makes no more calls. Idempotent.
  void leave() { parts_.session->leave(); }
  /// Waits for enqueued work. Call it before the object is destroyed. If the communicator has
  /// failed, waits kDrainGrace at most: its own kernels end, but work that the user enqueued before
  /// them may not. After a timeout keep the object, because kernels may still use its memory.
  Status drain();
  Executor& executor() { return *parts_.executor; }

  /// Returns what the duration of calls depends on.
  kernels::DurationFacts duration_facts() const;

  std::optional<Error> async_error() const { return failure_.error(); }
  /// Checks for a failure without waiting for the monitor's next tick.
  void detect_failure() { failure_.detect_failure(); }

 private:
  friend class oriel::test::NetworkInside;
  friend class Splitting;
  friend class DeviceCommMemory;
  Communicator(Device& device, const Settings& settings, CommunicatorOptions options);

  // Concludes register_batch() or build_device_comm(). If the call failed, checks the session: if
  // the session has failed, the communicator is unusable by the time that the call returns.
  template <typename T>
  Task<T> concluded(Task<T> call);
  Task<Result<std::vector<void*>>> register_batch(EventLoop& loop,
                                                  std::vector<window::WindowRequest> requests);
  Task<Result<DeviceCommMemory>> build_device_comm(EventLoop& loop, DeviceCommRequest request);

  CommunicatorParts parts_;
  FailureWatch failure_{parts_};
  CallRunner calls_{parts_, failure_};
};

/// Returns a loop for a collective call of this communicator alone. If no loop can be made, aborts
/// the communicator, because its peers have entered the same call.
Result<EventLoop> make_loop(Communicator& communicator);

/// Aborts because this rank ran out of memory in a collective that its peers have entered; returns
/// the local error.
Error run_out_of_memory(Communicator& communicator);

}  // namespace oriel::comm
