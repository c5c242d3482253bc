// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/cuda_scope.hpp"
#include "comm/device/device.hpp"

namespace oriel::comm {

/// The event behind the last launch of a communicator. Shared with whoever waits for it.
class LaunchEvent {
 public:
  /// `graphs` counts the graphs that hold a call.
  static Result<std::shared_ptr<const LaunchEvent>> make(std::shared_ptr<std::atomic<int>> graphs);
  LaunchEvent(const LaunchEvent&) = delete;
  LaunchEvent& operator=(const LaunchEvent&) = delete;
  /// Leaves the event to the driver while a graph lives, for nodes of the graph name the event.
  ~LaunchEvent();
  CUevent get() const { return event_; }

 private:
  LaunchEvent(CUevent event, std::shared_ptr<std::atomic<int>> graphs)
      : event_(event), graphs_(std::move(graphs)) {}
  CUevent event_;
  std::shared_ptr<std::atomic<int>> graphs_;
};

/// Orders the launches of one communicator on this rank: plain calls, calls of one capture, and
/// launches of graphs that hold calls.
///
/// One event stands behind the last launch. A plain call records the event. It waits for the event
/// first where another launch may have come since the last call on its stream: a plain call on
/// another stream, or a graph. A stream is never touched after its call: the user may have
/// destroyed it or begun to capture it.
///
/// Calls of one capture are ordered by dependencies. GraphOrder::all gives each capture two nodes
/// more: the first call follows a node that waits for the event, and a node that records the event
/// follows the last call. When CUDA launches a graph, the wait node means the last record enqueued
/// before, and later waits mean the record of this launch. So one event is enough for any number of
/// graphs and replays: launches run in the order in which the host enqueues them.
///
/// The record node is a leaf: no kernel follows it, so that a programmatic edge between two kernels
/// stays. A later call of the capture moves the edge into the node, since CUDA forbids the removal
/// of nodes during a capture.
///
/// begin() and end() need no CudaScope, all other calls do. Not thread-safe, except for
/// has_graphs().
class LaunchOrder {
 public:
  static Result<std::unique_ptr<LaunchOrder>> make(GraphOrder order);
  LaunchOrder(const LaunchOrder&) = delete;
  LaunchOrder& operator=(const LaunchOrder&) = delete;
  ~LaunchOrder();

  /// See Executor.
  static Status check_joined(const std::vector<void*>& streams);
  Status join(CUstream first, const std::vector<void*>& streams);
  Status release(CUstream last, const std::vector<void*>& streams);

  struct Capture;
  /// Where a launch goes. `capture` is null outside captures.
  struct Place {
    unsigned long long number = 0;
    Capture* capture = nullptr;
  };
  /// Has the stream of `on` wait for the launch before this one. The place is valid until the next
  /// begin().
  Result<Place> begin(StreamScope& on);
  /// Notes that a launch has been enqueued, also after a failure: a part of the call may run.
  Status end(StreamScope& on, const Place& place);

  /// Returns whether a plain call has been enqueued.
  bool has_launched() const { return last_stream_.has_value(); }
  /// Returns whether there is a graph that holds a call, or an executable copy. Any thread.
  bool has_graphs() const { return graphs_->load(std::memory_order_acquire) > 0; }
  /// Returns CUDA_ERROR_NOT_READY while the last launch runs.
  CUresult query() const { return cuda().event_query(last_launch_->get()); }
  const std::shared_ptr<const LaunchEvent>& last_launch() const { return last_launch_; }

 private:
  explicit LaunchOrder(GraphOrder order);
  Status follow_last_launch(CUstream stream);
  Status follow_last_launch(StreamScope& on);
  Result<Place> begin_plain(StreamScope& on);
  /// Has `stream` wait for what `other` holds. Both are captured alike (check_joined).
  Status follow_stream(CUstream stream, CUstream other);
  Result<Capture*> add_capture(const StreamScope& on, unsigned long long id, CUgraph graph,
                               const std::vector<CUgraphNode>& nodes);
  /// Has the capture's record node follow `nodes`, and the nodes of the last call no more.
  Status move_record(const StreamScope& on, Capture& capture,
                     const std::vector<CUgraphNode>& nodes);

  GraphOrder order_;
  std::shared_ptr<const LaunchEvent> last_launch_;
  CUevent meeting_ = nullptr;  // for streams that meet
  std::shared_ptr<std::atomic<int>> graphs_ = std::make_shared<std::atomic<int>>(0);
  // The number, which CUDA never gives twice, of the stream of the last plain call.
  std::optional<unsigned long long> last_stream_;
  std::vector<Capture> captures_;  // whose graphs live
};

}  // namespace oriel::comm
