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
  /// Why this rank cannot join: there is no device then, and the other ranks are told.
  std::optional<Error> refused;
};

/// One rank of a communicator.
///
/// Set-up calls (join, register_windows) are tasks, collective over the ranks, so that several of
/// one thread can run in one loop. All other calls are local. One thread at a time, but for abort()
/// and async_error(), which any thread may call at any time.
///
/// Once a peer has died, a wait was given up or abort() was called, the communicator has failed
/// (FailureWatch): async_error() says why, and collectives and registrations are refused with that
/// error.
class Communicator final : public std::enable_shared_from_this<Communicator> {
 public:
  static Task<Result<std::shared_ptr<Communicator>>> join(EventLoop& loop, JoinRequest request);
  ~Communicator();

  int rank() const { return parts_.session->rank(); }
  int size() const { return parts_.session->size(); }
  /// Returns a number that all its ranks have, and no other communicator.
  std::uint64_t number() const { return parts_.session->number(); }
  Device& device() const { return *parts_.device; }
  const std::vector<int>& team() const { return parts_.team_facts.members; }

  /// Registers a batch of windows; one handle for each.
  Task<Result<std::vector<void*>>> register_windows(EventLoop& loop,
                                                    std::vector<window::WindowRequest> requests);
  Status deregister_window(const void* handle);
  /// Returns a registered window as kernels see it; empty for any other handle.
  device::WindowView window_view(const void* handle) const { return parts_.sink->view(handle); }

  /// Makes control memory for kernels of the user's. Ranks that ask for different things get an
  /// error.
  Task<Result<DeviceCommMemory>> make_device_comm(EventLoop& loop, DeviceCommRequest request);

  /// Refuses once the communicator has failed or has been finalized.
  Status check_usable() const { return failure_.check_usable(); }
  /// The collectives, sends and receives.
  CallRunner& calls() { return calls_; }

  /// Waits for what was enqueued, then ends this rank's use of the communicator for calls. Local:
  /// waits for no call of another rank, so ranks may end several communicators in any order.
  Status finalize();
  /// Ends every wait on every rank with `reason`. Does not wait. Idempotent.
  void abort(const Error& reason) { failure_.abort(reason); }
  /// Tells the other ranks that this one makes no more calls. Idempotent.
  void leave() { parts_.session->leave(); }
  /// Waits for enqueued work, before the object is destroyed. Once the communicator has failed its
  /// kernels end by themselves; what the user has put before them may not, so then for at most
  /// kDrainGrace: a timeout means that the object must be kept, for kernels may still use its
  /// memory.
  Status drain();
  Executor& executor() { return *parts_.executor; }

  std::optional<Error> async_error() const { return failure_.error(); }
  /// Sees to what has failed without waiting for the monitor's next tick.
  void look_for_failure() { failure_.look_for_failure(); }

 private:
  friend class oriel::test::NetworkInside;
  friend class Splitting;
  friend class DeviceCommMemory;
  Communicator(Device& device, const Settings& settings, CommunicatorOptions options);

  // What the collective calls of these names do, after which concluded() sees to their failure: if
  // it was the session's, the communicator is unusable by the time that the call returns.
  template <typename T>
  Task<T> concluded(Task<T> call);
  Task<Result<std::vector<void*>>> register_batch(EventLoop& loop,
                                                  std::vector<window::WindowRequest> requests);
  Task<Result<DeviceCommMemory>> build_device_comm(EventLoop& loop, DeviceCommRequest request);

  CommunicatorParts parts_;
  FailureWatch failure_{parts_};
  CallRunner calls_{parts_, failure_};
};

/// Returns a loop for a collective call of this communicator alone. If there can be none the other
/// ranks, on their way to the same call, are told: the communicator is of no more use.
Result<EventLoop> make_loop(Communicator& communicator);

/// Aborts for a call that the others wait in and that this rank cannot take part in any more;
/// returns the error that it ends with here.
Error run_out_of_memory(Communicator& communicator);

}  // namespace oriel::comm
