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

/// Event after the last launch of a communicator. Shared with its waiters.
class LaunchEvent {
 public:
  /// Creates an event. Its destructor reads `graphs`, the number of graphs that hold a call.
  static Result<std::shared_ptr<const LaunchEvent>> make(std::shared_ptr<std::atomic<int>> graphs);
  LaunchEvent(const LaunchEvent&) = delete;
  LaunchEvent& operator=(const LaunchEvent&) = delete;
  /// Does not destroy the event while a graph lives, since nodes of the graph refer to it.
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
/// One event follows the last launch. Each plain call records it. A plain call first waits for the
/// event if another launch may have come since the last call on its stream. Such a launch is a
/// plain call on another stream, or a graph. No stream is accessed after its call: the user may
/// have destroyed it or begun to capture it.
///
/// Calls of one capture are ordered by dependencies. GraphOrder::all adds two nodes to each
/// capture. The first call follows a node that waits for the event. A node that records the event
/// follows the last call. When CUDA launches a graph, the wait node refers to the last record
/// enqueued before the launch. Later waits refer to the record of this launch. So one event
/// suffices for any number of graphs and replays: launches run in the order in which the host
/// enqueues them.
///
/// The record node is a leaf: no kernel follows it, so a programmatic edge between two kernels is
/// kept. A later call of the capture redirects the edge into the node, since CUDA forbids removing
/// nodes during a capture.
///
/// begin() and end() need no CudaScope; all other calls do. Not thread-safe, except for
/// has_graphs().
class LaunchOrder {
 public:
  static Result<std::unique_ptr<LaunchOrder>> make(GraphOrder order);
  LaunchOrder(const LaunchOrder&) = delete;
  LaunchOrder& operator=(const LaunchOrder&) = delete;
  ~LaunchOrder();

  /// Implement the functions of the same purpose in Executor.
  static Status check_joined(const std::vector<void*>& streams);
  Status join(CUstream first, const std::vector<void*>& streams);
  Status release(CUstream last, const std::vector<void*>& streams);

  struct Capture;
  /// Target of a launch. `number` is the stream's ID; `capture` is null outside captures.
  struct Place {
    unsigned long long number = 0;
    Capture* capture = nullptr;
  };
  /// Makes the stream of `on` wait for the previous launch. The place is valid until the next
  /// begin().
  Result<Place> begin(StreamScope& on);
  /// Records that a launch was enqueued. Called also after a failure, since a part of the call may
  /// run.
  Status end(StreamScope& on, const Place& place);

  /// Returns whether a plain call has been enqueued.
  bool has_launched() const { return last_stream_.has_value(); }
  /// Returns whether a graph that holds a call, or an executable copy, exists. Any thread.
  bool has_graphs() const { return graphs_->load(std::memory_order_acquire) > 0; }
  /// Returns CUDA_ERROR_NOT_READY while the last launch runs.
  CUresult query() const { return cuda().event_query(last_launch_->get()); }
  const std::shared_ptr<const LaunchEvent>& last_launch() const { return last_launch_; }

 private:
  explicit LaunchOrder(GraphOrder order);
  Status follow_last_launch(CUstream stream);
  Status follow_last_launch(StreamScope& on);
  Result<Place> begin_plain(StreamScope& on);
  /// Makes `stream` wait for the work in `other`. Both are in one capture or in none
  /// (check_joined).
  Status follow_stream(CUstream stream, CUstream other);
  Result<Capture*> add_capture(const StreamScope& on, unsigned long long id, CUgraph graph,
                               const std::vector<CUgraphNode>& nodes);
  /// Makes the capture's record node depend on `nodes` instead of the nodes of the last call.
  Status move_record(const StreamScope& on, Capture& capture,
                     const std::vector<CUgraphNode>& nodes);

  GraphOrder order_;
  std::shared_ptr<const LaunchEvent> last_launch_;
  CUevent meeting_ = nullptr;  // orders the streams of a group
  std::shared_ptr<std::atomic<int>> graphs_ = std::make_shared<std::atomic<int>>(0);
  // ID of the stream of the last plain call. CUDA never reuses an ID.
  std::optional<unsigned long long> last_stream_;
  std::vector<Capture> captures_;  // captures whose graphs live
};

}  // namespace oriel::comm
