// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oriel/error.hpp"
#include "oriel/types.hpp"

#include "base/event_loop.hpp"
#include "base/settings.hpp"
#include "base/spare_descriptor.hpp"
#include "base/task.hpp"
#include "boot/session/session.hpp"
#include "comm/communicator/call_request.hpp"
#include "comm/communicator/device_comm_memory.hpp"
#include "comm/communicator/exchange_planner.hpp"
#include "comm/communicator/flight_recorder.hpp"
#include "comm/device/device.hpp"
#include "comm/device/topology.hpp"
#include "comm/device/window_sink.hpp"
#include "comm/keys/network_windows.hpp"
#include "comm/monitor/monitor.hpp"
#include "comm/monitor/stall_watch.hpp"
#include "comm/network/rank_network.hpp"
#include "kernels/plan/call_record.hpp"
#include "kernels/plan/choice.hpp"
#include "kernels/plan/hierarchy_plan.hpp"
#include "window/registration/window_manager.hpp"

namespace oriel::test {
class NetworkInside;
}

namespace oriel::comm {

class StepTimes;

/// What a user chose for one communicator (ncclConfig_t).
struct CommunicatorOptions {
  bool blocking = true;
  int min_ctas = 0;                   ///< 0: no limit
  int max_ctas = 0;                   ///< 0: no limit
  bool graph_mixing = true;           ///< launches of graphs are ordered
  bool graph_stream_ordering = true;  ///< captured calls of different streams are ordered
  std::string name;                   ///< for errors and the log; may be empty
};

/// Returns which launches are ordered. ORIEL_GRAPH_MIXING_SUPPORT overrides options.graph_mixing.
GraphOrder graph_order(const Settings& settings, const CommunicatorOptions& options);

struct JoinRequest {
  boot::UniqueId id;
  int rank = 0;
  int size = 1;
  Device* device = nullptr;
  CommunicatorOptions options;
  /// Why this rank cannot join: there is no device then, and the other ranks are told.
  std::optional<Error> refused;
};

/// How a collective is carried out: by an algorithm of all-reduces inside a single LSA team, as an
/// exchange, or among teams.
struct CallPlan {
  kernels::Plan team;
  std::optional<kernels::HierarchyPlan> among_teams{};
  bool by_exchange = false;
  /// A call of no elements on a GPU, of which ranks only tell each other: `team` has no CTAs.
  bool only_tells = false;
};

/// `error` as `rank` sees it: what another rank's user has ended is remote, not aborted.
Error as_seen_by(int rank, Error error);

/// One rank of a communicator.
///
/// Set-up calls (join, register_windows) are tasks, collective over the ranks, so that several of
/// one thread can run in one loop. All other calls are local. One thread at a time, but for abort()
/// and async_error(), which any thread may call at any time.
///
/// Once a peer has died, a wait was given up or abort() was called, the communicator is poisoned:
/// async_error() says why, and collectives and registrations are refused with that error.
///
/// Members are destroyed from the last to the first: the monitor lets go, windows go before the
/// network that has their keys and the notices that their users wait with, and the links to the
/// other ranks go last.
class Communicator final : public Watched, public std::enable_shared_from_this<Communicator> {
 public:
  static Task<Result<std::shared_ptr<Communicator>>> join(EventLoop& loop, JoinRequest request);
  ~Communicator() override;

  int rank() const { return session_->rank(); }
  int size() const { return session_->size(); }
  Device& device() const { return *device_; }
  const std::vector<int>& team() const { return team_facts_.members; }
  /// Teams, and the path between each two ranks: the same on all ranks.
  const Topology& topology() const { return topology_; }

  /// Registers a batch of windows; one handle for each.
  Task<Result<std::vector<void*>>> register_windows(EventLoop& loop,
                                                    std::vector<window::WindowRequest> requests);
  Status deregister_window(const void* handle);
  /// A registered window as kernels see it; empty for any other handle.
  device::WindowView window_view(const void* handle) const { return sink_->view(handle); }

  /// Control memory for kernels of the user's. Ranks that ask for different things get an error.
  Task<Result<DeviceCommMemory>> make_device_comm(EventLoop& loop, DeviceCommRequest request);

  /// Refuses once the communicator is poisoned or has been finalized.
  Status check_usable() const;
  Status collective(const CollectiveRequest& request);
  /// Its two steps: the first checks the call and chooses how to carry it out, and has no effect.
  /// It sets `plan`, a new one: a Result of one is copied, which a small call notices.
  Status plan_for(const CollectiveRequest& request, CallPlan& plan) const;
  Status run(const CollectiveRequest& request, const CallPlan& plan);
  /// Makes ready what the second step would first have to wait for (Executor::prepare). Local.
  Status prepare(const CollectiveRequest& request, const CallPlan& plan);

  /// Checks one send or receive, as far as it can be told without the others of its group. Local.
  Status check(const PointToPointRequest& request) const;
  /// The three steps of a group's sends and receives, which run as one exchange. The plan refers to
  /// `requests`, and holds until the next one.
  Result<const PointToPointPlan*> plan_for(std::span<const PointToPointRequest> requests);
  Status prepare(const PointToPointPlan& plan);
  Status run(const PointToPointPlan& plan);

  /// Waits for what was enqueued, then ends this rank's use of the communicator for calls. Local:
  /// waits for no call of another rank, so ranks may end several communicators in any order.
  Status finalize();
  /// Ends every wait on every rank with `reason`. Does not wait. Idempotent.
  void abort(const Error& reason);
  /// Tells the other ranks that this one makes no more calls. Idempotent.
  void leave() { session_->leave(); }
  /// Waits for enqueued work, before the object is destroyed. Once poisoned its kernels end by
  /// themselves; what the user has put before them may not, so then for at most kDrainGrace: a
  /// timeout means that the object must be kept, for kernels may still use its memory.
  Status drain();
  static constexpr Duration kDrainGrace = std::chrono::seconds(5);
  Executor& executor() { return *executor_; }

  /// The scratch memory as the algorithms among teams see it.
  device::CommView scratch_view() const;

  std::optional<Error> async_error() const;
  /// Sees to a wait that a kernel has given up, and to what has ended the session, without waiting
  /// for the monitor's next tick.
  void look_for_failure();

  // From the monitor's thread.
  void peer_lost(Error error) override;
  void peer_left(int rank) override;
  void tick(TimePoint now) override;

 private:
  friend class oriel::test::NetworkInside;
  friend class Splitting;
  Communicator(Device& device, const Settings& settings, CommunicatorOptions options);

  // The steps of join(), in order; each is collective.
  Task<Status> agree_on_topology();
  /// One exchange for it: the first, or what the first has left open.
  Task<Status> exchange_places(topo::Wanted wanted, bool first);
  /// Whether there are several LSA teams, which a network can join. The same on all ranks.
  bool needs_network() const;
  Task<Status> agree_on_choices();
  Status lay_out_scratch(int max_ctas);
  Result<std::unique_ptr<NetworkWindows>> make_network_windows();
  Task<Status> make_scratch(EventLoop& loop, Deadline deadline);
  Task<Status> make_control_window(EventLoop& loop, Deadline deadline);
  /// The network, where CPU ranks are of several LSA teams. Here and not in the first collective,
  /// which may wait for other ranks as long as they like. Where there can be no network, this
  /// remembers why.
  Task<Status> connect_teams(EventLoop& loop, Deadline deadline);
  /// Carries out the steps on a session that has linked up.
  Task<Status> set_up(EventLoop& loop, std::unique_ptr<boot::Session> session, StepTimes& times,
                      Deadline deadline);
  Status watch_ranks();
  void tell_of_start() const;

  friend class DeviceCommMemory;

  // What the collective calls of these names do, after which concluded() sees to their failure: if
  // it was the session's, the communicator is unusable by the time that the call returns.
  template <typename T>
  Task<T> concluded(Task<T> call);
  Task<Result<std::vector<void*>>> register_batch(EventLoop& loop,
                                                  std::vector<window::WindowRequest> requests);
  /// What reaches the ranks of other LSA teams, if there are any. Collective over the world.
  Task<Status> make_network(EventLoop& loop, Deadline deadline);
  Task<Result<DeviceCommMemory>> build_device_comm(EventLoop& loop, DeviceCommRequest request);

  Result<kernels::HierarchyPlan> plan_among_teams(const CollectiveRequest& request) const;
  Result<kernels::Plan> plan_in_team(const CollectiveRequest& request) const;
  bool on_host() const { return device_->backend() == kernels::Backend::host; }
  /// The tables of both groupings where kernels read them.
  Result<shadow::OwnedShadow> copy_groupings();
  /// Where the NIC reads a buffer; nowhere if no window holds all of it.
  kernels::NicSource nic_source(const void* pointer, std::size_t bytes) const;
  kernels::HierarchyArguments make_hierarchy_arguments(const CollectiveRequest& request,
                                                       const kernels::HierarchyPlan& plan) const;
  /// Waits until other ranks have all that this one has sent them, unless that takes too long.
  void flush_network();
  /// On the host: what wakes this rank's thread. Lives in the control window.
  device::Doorbell* own_doorbell() const;
  /// How this rank's waits end. `doorbell` is this rank's own; GPUs need none.
  device::WaitControl wait_control(void* doorbell) const;
  void begin_exchanges();
  kernels::AllReduceArguments make_arguments(const CollectiveRequest& request,
                                             const kernels::Plan& plan) const;
  /// After a call on the host, or at a tick: what the notices say of a wait that was given up.
  std::optional<Error> given_up() const;
  /// CPU ranks: which two of this team are in different calls, by what they have noted of them.
  /// The record of the last call of the LSA team's rank of this index; null on a GPU and where a
  /// rank is alone.
  kernels::CallRecord* call_record(int index) const;
  std::optional<kernels::NumberedCall> last_call(int index) const;
  std::optional<Error> different_calls() const;
  /// Where the rank that this one has long waited for is in a later call already.
  std::optional<Error> left_behind_by(int rank) const;
  void watch_stall(TimePoint now);
  void tell_of_stall(std::chrono::seconds lasted, int culprit) const;
  std::string stalled_call() const;
  /// The ranks that have not come to this rank's call, as far as it sees, and `culprit`.
  std::vector<int> awaited_ranks(int culprit) const;
  /// Returns the outcome of a call that has run, on the host once its failure is known.
  Status end_call(Status run);
  /// As look_for_failure(), after a wait that was given up: until it is known who is to be named.
  void await_failure();
  /// Tells all ranks that the communicator is of no more use.
  void give_up(const Error& error);
  void poison(Error error);

  std::shared_ptr<SpareDescriptor> spare_descriptor_ = SpareDescriptor::hold();
  Device* device_;
  const Settings* settings_;
  CommunicatorOptions options_;

  std::unique_ptr<boot::Session> session_;
  Topology topology_;
  TeamFacts team_facts_;
  int largest_team_ = 1;  // of all LSA teams
  std::optional<boot::Group> team_;

  std::unique_ptr<NoticeBoard> notices_;
  /// Where CPU ranks are of several LSA teams; the sink's objects point to its tables.
  std::unique_ptr<NetworkWindows> network_windows_;
  std::unique_ptr<PooledWindowSink> sink_;
  std::unique_ptr<window::WindowManager> windows_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Network> network_;
  std::atomic<Network*> live_network_{nullptr};  // the same, for the monitor's thread
  std::optional<Error> no_network_;              // why other teams cannot be reached

  std::optional<kernels::ChoiceTable> own_table_;  // read from ORIEL_TABLE
  kernels::Overrides overrides_;
  kernels::ScratchLayout layout_;
  kernels::HierarchyLayout hierarchy_;        // behind the other
  std::optional<ExchangePlanner> exchanges_;  // has the last part
  kernels::GroupingTables teams_;             // the two ways to group the ranks
  kernels::GroupingTables singles_;
  shadow::OwnedShadow groupings_;  // the tables of both, for kernels of a GPU
  void* scratch_ = nullptr;        // of Memory::allocate
  window::RegisteredWindow control_;
  std::size_t slot_bytes_ = 0;

  mutable std::mutex failure_mutex_;
  std::optional<Error> failure_;
  std::atomic<bool> poisoned_{false};
  std::atomic<bool> finalized_{false};
  bool watched_ = false;
  std::unique_ptr<FlightRecorder> flight_;
  /// A wait that has lasted for a second, as the ticks see it.
  struct Stall {
    StallWatch watch;
    int ticks_since_left = 0;  // ticks at which the one it waits for was gone
    int ticks_behind = 0;      // ... was in a later call
    bool elsewhere = false;    // another rank has told of a wait of its own
  };
  Stall stall_;
};

/// Returns a loop for a collective call of this communicator alone. If there can be none the other
/// ranks, on their way to the same call, are told: the communicator is of no more use.
Result<EventLoop> make_loop(Communicator& communicator);

/// Aborts for a call that the others wait in and that this rank cannot take part in any more;
/// returns the error that it ends with here.
Error run_out_of_memory(Communicator& communicator);

}  // namespace oriel::comm
