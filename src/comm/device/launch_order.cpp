// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/launch_order.hpp"

#include <algorithm>
#include <utility>

#include "base/try.hpp"

namespace oriel::comm {
namespace {

/// Counts a graph while the graph or a copy of it lives.
class CountedGraph {
 public:
  explicit CountedGraph(std::shared_ptr<std::atomic<int>> count) : count_(std::move(count)) {
    count_->fetch_add(1, std::memory_order_relaxed);
  }
  CountedGraph(const CountedGraph&) = delete;
  CountedGraph& operator=(const CountedGraph&) = delete;
  ~CountedGraph() { count_->fetch_sub(1, std::memory_order_release); }

 private:
  std::shared_ptr<std::atomic<int>> count_;
};

Status create_event(CUevent& event) {
  return cuda_status("creating an event", cuda().event_create(&event, CU_EVENT_DISABLE_TIMING));
}

/// Result of querying a stream's capture. If the stream is captured, its next node would depend on
/// `nodes`. The driver owns `nodes`; they are valid until its next call.
struct CaptureInfo {
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;  // the driver rejects a call that omits them
  std::size_t count = 0;
};

CUresult ask(CUstream stream, CaptureInfo& info) {
  return cuda().stream_get_capture_info(stream, &info.status, &info.id, &info.graph, &info.nodes,
                                        &info.edges, &info.count);
}

/// Capture of a stream; `id` is empty outside captures.
struct StreamCapture {
  std::optional<unsigned long long> id;
  CUgraph graph = nullptr;
  std::vector<CUgraphNode> nodes;
};

Result<StreamCapture> capture_of(CUresult asked, const CaptureInfo& info) {
  ORIEL_CHECK(cuda_status("asking whether the stream is captured", asked));
  if (info.status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
    return Error(ErrorCode::invalid_usage, "the stream's capture has been invalidated")
        .with_hint("end the capture; an earlier call of it has failed or was not permitted");
  }
  if (info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return StreamCapture{};
  return StreamCapture{info.id, info.graph, {info.nodes, info.nodes + info.count}};
}

Result<StreamCapture> capture_of(CUstream stream) {
  CaptureInfo info;
  const CUresult asked = ask(stream, info);
  return capture_of(asked, info);
}

Result<StreamCapture> capture_of(StreamScope& on) {
  CaptureInfo info;
  const CUresult asked = on.call([&] { return ask(on.stream(), info); });
  return capture_of(asked, info);
}

Status update_dependencies(CUstream stream, std::vector<CUgraphNode> nodes, unsigned flags) {
  if (nodes.empty()) return {};
  return cuda_status("ordering calls inside a capture",
                     cuda().stream_update_capture_dependencies(stream, nodes.data(), nullptr,
                                                               nodes.size(), flags));
}

Status follow_nodes(CUstream stream, std::vector<CUgraphNode> nodes) {
  return update_dependencies(stream, std::move(nodes), CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
}

/// Returns the nodes of `all` that are not in `others`.
std::vector<CUgraphNode> without(std::vector<CUgraphNode> all,
                                 const std::vector<CUgraphNode>& others) {
  std::erase_if(all, [&](CUgraphNode node) {
    return std::find(others.begin(), others.end(), node) != others.end();
  });
  return all;
}

/// Makes the graph own a CountedGraph. CUDA may destroy it on any thread, also after the
/// LaunchOrder.
Result<std::weak_ptr<void>> count_graph(CUgraph graph,
                                        const std::shared_ptr<std::atomic<int>>& count) {
  using Owner = std::shared_ptr<CountedGraph>;
  auto owner = std::make_unique<Owner>(std::make_shared<CountedGraph>(count));
  std::weak_ptr<void> counted = *owner;
  CUuserObject object = nullptr;
  ORIEL_CHECK(
      cuda_status("counting a graph",
                  cuda().user_object_create(
                      &object, owner.get(), [](void* owned) { delete static_cast<Owner*>(owned); },
                      1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)));
  static_cast<void>(owner.release());
  Status held =
      cuda_status("having a graph hold a communicator",
                  cuda().graph_retain_user_object(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  if (held.ok()) return counted;
  static_cast<void>(cuda().user_object_release(object, 1));
  return std::move(held).error();
}

}  // namespace

struct LaunchOrder::Capture {
  unsigned long long id = 0;
  CUgraph graph = nullptr;      // valid during the capture
  std::weak_ptr<void> counted;  // expires with the graph and its executable copies
  // Stream of the last call, and the nodes that the next call depends on.
  CUstream stream = nullptr;
  std::vector<CUgraphNode> last{};
  CUgraphNode record = nullptr;
};

Result<std::shared_ptr<const LaunchEvent>> LaunchEvent::make(
    std::shared_ptr<std::atomic<int>> graphs) {
  CUevent event = nullptr;
  ORIEL_CHECK(create_event(event));
  return std::shared_ptr<const LaunchEvent>(new LaunchEvent(event, std::move(graphs)));
}

LaunchEvent::~LaunchEvent() {
  if (graphs_->load(std::memory_order_acquire) > 0) return;
  static_cast<void>(cuda().event_destroy(event_));
}

LaunchOrder::LaunchOrder(GraphOrder order) : order_(order) {}

Result<std::unique_ptr<LaunchOrder>> LaunchOrder::make(GraphOrder order) {
  std::unique_ptr<LaunchOrder> made(new LaunchOrder(order));
  ORIEL_TRY(made->last_launch_, LaunchEvent::make(made->graphs_));
  ORIEL_CHECK(create_event(made->meeting_));
  return made;
}

LaunchOrder::~LaunchOrder() {
  if (meeting_ != nullptr) static_cast<void>(cuda().event_destroy(meeting_));
}

Status LaunchOrder::check_joined(const std::vector<void*>& streams) {
  if (streams.size() < 2) return {};
  ORIEL_TRY(const auto first, capture_of(static_cast<CUstream>(streams.front())));
  for (void* const stream : streams) {
    ORIEL_TRY(const auto capture, capture_of(static_cast<CUstream>(stream)));
    if (capture.id == first.id) continue;
    const bool is_mixed = capture.id.has_value() != first.id.has_value();
    return Error(ErrorCode::invalid_usage,
                 is_mixed
                     ? "of the streams that a group names for a communicator some are captured "
                       "and some are not"
                     : "the streams that a group names for a communicator are in different "
                       "captures")
        .with_hint("use one stream, or have all of them take part in one capture");
  }
  return {};
}

Status LaunchOrder::follow_stream(CUstream stream, CUstream other) {
  ORIEL_TRY(auto capture, capture_of(other));
  if (capture.id) return follow_nodes(stream, std::move(capture.nodes));
  ORIEL_CHECK(cuda_status("recording what a stream holds", cuda().event_record(meeting_, other)));
  return cuda_status("waiting for another stream",
                     cuda().stream_wait_event(stream, meeting_, CU_EVENT_WAIT_DEFAULT));
}

Status LaunchOrder::join(CUstream first, const std::vector<void*>& streams) {
  for (void* const stream : streams) {
    if (stream == first) continue;
    ORIEL_CHECK(follow_stream(first, static_cast<CUstream>(stream)));
  }
  return {};
}

Status LaunchOrder::release(CUstream last, const std::vector<void*>& streams) {
  ORIEL_TRY(const auto capture, capture_of(last));
  for (void* const each : streams) {
    auto* const stream = static_cast<CUstream>(each);
    if (each == last) continue;
    ORIEL_CHECK(capture.id ? follow_nodes(stream, capture.nodes) : follow_last_launch(stream));
  }
  return {};
}

Status LaunchOrder::follow_last_launch(CUstream stream) {
  return cuda_status("waiting for the last launch of the communicator",
                     cuda().stream_wait_event(stream, last_launch_->get(), CU_EVENT_WAIT_DEFAULT));
}

Status LaunchOrder::follow_last_launch(StreamScope& on) {
  const CUevent event = last_launch_->get();
  return cuda_status("waiting for the last launch of the communicator", on.call([&] {
    return cuda().stream_wait_event(on.stream(), event, CU_EVENT_WAIT_DEFAULT);
  }));
}

Result<LaunchOrder::Capture*> LaunchOrder::add_capture(const StreamScope& on, unsigned long long id,
                                                       CUgraph graph,
                                                       const std::vector<CUgraphNode>& nodes) {
  ORIEL_TRY(const auto scope, CudaScope::enter(on.context()));
  std::erase_if(captures_, [](const Capture& capture) { return capture.counted.expired(); });
  ORIEL_TRY(auto counted, count_graph(graph, graphs_));
  if (order_ == GraphOrder::all) {
    // Does not use cuStreamWaitEvent: it may omit the node if nothing has recorded the event yet.
    CUgraphNode wait = nullptr;
    Status added = cuda_status("having a graph wait for the last launch of the communicator",
                               cuda().graph_add_event_wait_node(&wait, graph, nodes.data(),
                                                                nodes.size(), last_launch_->get()));
    if (!added.ok()) {
      return std::move(added).error().with_hint(
          "NCCL_GRAPH_MIXING_SUPPORT=0 adds no such nodes; launches of graphs are then yours to "
          "order");
    }
    ORIEL_CHECK(update_dependencies(on.stream(), {wait}, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  }
  captures_.push_back({id, graph, std::move(counted), on.stream()});
  return &captures_.back();
}

Result<LaunchOrder::Place> LaunchOrder::begin_plain(StreamScope& on) {
  Place place;
  ORIEL_CHECK(cuda_status("asking for the stream's number", on.call([&] {
    return cuda().stream_get_id(on.stream(), &place.number);
  })));
  const bool is_elsewhere = last_stream_ && *last_stream_ != place.number;
  const bool may_follow_graph = order_ == GraphOrder::all && has_graphs();
  if (is_elsewhere || may_follow_graph) ORIEL_CHECK(follow_last_launch(on));
  return place;
}

Result<LaunchOrder::Place> LaunchOrder::begin(StreamScope& on) {
  ORIEL_TRY(const auto capture, capture_of(on));
  if (!capture.id) return begin_plain(on);
  ORIEL_CHECK(on.make_current());
  const auto known = std::find_if(captures_.begin(), captures_.end(),
                                  [&](const Capture& each) { return each.id == *capture.id; });
  Place place;
  if (known == captures_.end()) {
    ORIEL_TRY(place.capture, add_capture(on, *capture.id, capture.graph, capture.nodes));
    return place;
  }
  place.capture = &*known;
  if (order_ != GraphOrder::none && known->stream != on.stream()) {
    ORIEL_CHECK(follow_nodes(on.stream(), known->last));
  }
  return place;
}

Status LaunchOrder::end(StreamScope& on, const Place& place) {
  if (place.capture == nullptr) {
    last_stream_ = place.number;
    return cuda_status("recording the end of the call", on.call([&] {
      return cuda().event_record(last_launch_->get(), on.stream());
    }));
  }
  Capture& capture = *place.capture;
  ORIEL_TRY(auto now, capture_of(on));
  if (order_ == GraphOrder::all) ORIEL_CHECK(move_record(on, capture, now.nodes));
  capture.stream = on.stream();
  capture.last = std::move(now.nodes);
  return {};
}

Status LaunchOrder::move_record(const StreamScope& on, Capture& capture,
                                const std::vector<CUgraphNode>& nodes) {
  const char* const what = "having a graph record its last call";
  if (capture.record == nullptr) {
    ORIEL_TRY(const auto scope, CudaScope::enter(on.context()));
    return cuda_status(
        what, cuda().graph_add_event_record_node(&capture.record, capture.graph, nodes.data(),
                                                 nodes.size(), last_launch_->get()));
  }
  const auto fresh = without(nodes, capture.last);
  const auto stale = without(capture.last, nodes);
  const std::vector<CUgraphNode> record(std::max(fresh.size(), stale.size()), capture.record);
  ORIEL_CHECK(
      cuda_status(what, cuda().graph_add_dependencies(capture.graph, fresh.data(), record.data(),
                                                      nullptr, fresh.size())));
  // CUDA refuses the removal in a graph that allocates memory. The node then also depends on
  // earlier calls, which have completed by then.
  static_cast<void>(cuda().graph_remove_dependencies(capture.graph, stale.data(), record.data(),
                                                     nullptr, stale.size()));
  return {};
}

}  // namespace oriel::comm
