// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/executor_cuda.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "kernels/cuda/launch_cuda.hpp"
#include "support/words.hpp"

/// The order of a communicator's launches: streams of a group, captures, and graphs beside plain
/// calls. Also what still uses its memory. On a driver that notes what it is asked to do.
namespace oriel::test {
namespace {

/// What the driver was asked for, in order, and the captures that streams are in.
struct DriverLog {
  std::vector<std::string> calls;
  std::map<CUstream, cuuint64_t> captures;
  std::map<CUstream, std::vector<CUgraphNode>> nodes;
  std::uintptr_t events = 0;
  std::string destroyed;           ///< events
  std::uintptr_t event_nodes = 0;  ///< P, Q, R and so on
  bool refuses_event_nodes = false;
  bool refuses_removal = false;  ///< of edges, as CUDA does in graphs that allocate memory
  std::uintptr_t launched = 0;
  std::uintptr_t launches_left = 100;  ///< until one fails
  std::uintptr_t queries = 0;
  bool is_busy = false;                       ///< what was launched has not ended
  std::vector<std::function<void()>> graphs;  ///< each ends what a graph retains
};
DriverLog driver;

std::string name_of(const void* object) {
  return std::string(1, static_cast<char>(reinterpret_cast<std::uintptr_t>(object)));
}
CUstream stream(char name) {
  return reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(name));
}
CUgraphNode node(char name) {
  return reinterpret_cast<CUgraphNode>(static_cast<std::uintptr_t>(name));
}

CUresult create_event(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>('E' + driver.events++);  // E is behind the last call, F joins
  return CUDA_SUCCESS;
}
CUresult destroy_event(CUevent event) {
  driver.destroyed += name_of(event);
  return CUDA_SUCCESS;
}
CUresult record(CUevent event, CUstream where) {
  driver.calls.push_back(fmt::format("{} records {}", name_of(where), name_of(event)));
  return CUDA_SUCCESS;
}
CUresult wait(CUstream where, CUevent event, unsigned) {
  driver.calls.push_back(fmt::format("{} waits {}", name_of(where), name_of(event)));
  return CUDA_SUCCESS;
}
CUresult stream_id(CUstream where, unsigned long long* id) {
  *id = reinterpret_cast<std::uintptr_t>(where);
  return CUDA_SUCCESS;
}
CUresult query_event(CUevent) {
  ++driver.queries;
  return driver.is_busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
CUresult create_user_object(CUuserObject* object, void* held, CUhostFn drop, unsigned, unsigned) {
  driver.graphs.emplace_back([held, drop] { drop(held); });
  *object = reinterpret_cast<CUuserObject>(driver.graphs.size());
  return CUDA_SUCCESS;
}
CUresult retain_user_object(CUgraph graph, CUuserObject, unsigned, unsigned flags) {
  const bool is_moved = flags == CU_GRAPH_USER_OBJECT_MOVE;
  driver.calls.push_back(fmt::format("graph {} holds", is_moved ? name_of(graph) : "?"));
  return CUDA_SUCCESS;
}
CUresult capture_info(CUstream where, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** nodes, const CUgraphEdgeData**, std::size_t* count) {
  const auto found = driver.captures.find(where);
  *status = found == driver.captures.end() ? CU_STREAM_CAPTURE_STATUS_NONE
                                           : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (found != driver.captures.end() && id != nullptr) *id = found->second;
  // Capture 7 makes graph G, capture 8 graph H.
  if (graph != nullptr && id != nullptr) *graph = reinterpret_cast<CUgraph>('G' + *id - 7);
  if (nodes != nullptr) *nodes = driver.nodes[where].data();
  if (count != nullptr) *count = driver.nodes[where].size();
  return CUDA_SUCCESS;
}
CUresult update_dependencies(CUstream where, CUgraphNode* nodes, const CUgraphEdgeData*,
                             std::size_t count, unsigned flags) {
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) driver.nodes[where].clear();
  for (std::size_t i = 0; i < count; ++i) {
    driver.calls.push_back(fmt::format("{} follows {}", name_of(where), name_of(nodes[i])));
    driver.nodes[where].push_back(nodes[i]);
  }
  return CUDA_SUCCESS;
}
CUresult add_event_node(CUgraphNode* made, CUgraph graph, const CUgraphNode* behind,
                        std::size_t count, CUevent event, const char* what) {
  if (driver.refuses_event_nodes) return CUDA_ERROR_NOT_SUPPORTED;
  *made = node(static_cast<char>('P' + driver.event_nodes++));
  std::string names;
  for (std::size_t i = 0; i < count; ++i) names += name_of(behind[i]);
  driver.calls.push_back(fmt::format("{}: {} {} {} behind {}", name_of(graph), name_of(*made), what,
                                     name_of(event), names));
  return CUDA_SUCCESS;
}
CUresult add_wait(CUgraphNode* made, CUgraph graph, const CUgraphNode* behind, std::size_t count,
                  CUevent event) {
  return add_event_node(made, graph, behind, count, event, "waits");
}
CUresult add_record(CUgraphNode* made, CUgraph graph, const CUgraphNode* behind, std::size_t count,
                    CUevent event) {
  return add_event_node(made, graph, behind, count, event, "records");
}
void note_edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, std::size_t count,
                const char* what) {
  for (std::size_t i = 0; i < count; ++i) {
    driver.calls.push_back(
        fmt::format("{}: {} {} {}", name_of(graph), name_of(to[i]), what, name_of(from[i])));
  }
}
CUresult add_edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                   const CUgraphEdgeData*, std::size_t count) {
  note_edges(graph, from, to, count, "follows");
  return CUDA_SUCCESS;
}
CUresult remove_edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                      const CUgraphEdgeData*, std::size_t count) {
  if (driver.refuses_removal) return CUDA_ERROR_INVALID_VALUE;
  note_edges(graph, from, to, count, "leaves");
  return CUDA_SUCCESS;
}

CudaTable logging_table() {
  CudaTable table = cuda();
  table.ctx_push_current = [](CUcontext) { return CUDA_SUCCESS; };
  table.ctx_pop_current = [](CUcontext*) { return CUDA_SUCCESS; };
  table.thread_exchange_stream_capture_mode = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
  table.event_create = create_event;
  table.event_destroy = destroy_event;
  table.event_record = record;
  table.event_query = query_event;
  table.user_object_create = create_user_object;
  table.graph_retain_user_object = retain_user_object;
  table.graph_add_event_wait_node = add_wait;
  table.graph_add_event_record_node = add_record;
  table.graph_add_dependencies = add_edges;
  table.graph_remove_dependencies = remove_edges;
  table.stream_wait_event = wait;
  table.stream_get_id = stream_id;
  table.stream_get_capture_info = capture_info;
  table.stream_update_capture_dependencies = update_dependencies;
  return table;
}

/// An executor of that driver.
class JoinedStreams {
 public:
  explicit JoinedStreams(comm::GraphOrder order = comm::GraphOrder::all)
      : table_(logging_table()), scoped_(table_) {
    driver = {};
    executor_ = make_executor(1, order);
  }
  /// The executor of a communicator, whose event behind the last call is E for the first, G, I.
  std::unique_ptr<comm::Executor> make_executor(std::uint64_t communicator,
                                                comm::GraphOrder order = comm::GraphOrder::all) {
    auto made = comm::CudaExecutor::make(nullptr, budget_,
                                         {.communicator = communicator, .ctas = 32}, order);
    REQUIRE(made.ok());
    return std::move(made).value();
  }
  comm::Executor& executor() { return *executor_; }

  Status check(const std::vector<void*>& streams) { return executor_->check_joined(streams); }
  void run(const std::vector<void*>& streams, std::size_t launches) {
    driver.calls.clear();
    join(streams.front(), streams);
    CHECK(exchange(streams.front(), launches).ok());
    release(streams.front(), streams);
  }
  void join(void* first, const std::vector<void*>& streams) {
    CHECK(executor_->join_streams(first, streams).ok());
  }
  void reduce(void* where) { CHECK(executor_->run({}, {}, where).ok()); }
  Status exchange(void* where, std::size_t launches) {
    comm::ExchangeCall call;
    for (std::size_t i = 0; i < launches; ++i) call.launches.add({});
    call.stream = where;
    return executor_->run_exchange(call);
  }
  void release(void* last, const std::vector<void*>& streams) {
    CHECK(executor_->release_streams(last, streams).ok());
  }
  /// Runs so many launches, of which the last one fails.
  Status run_in_part(void* where, std::size_t launches) {
    driver.calls.clear();
    driver.launches_left = launches - 1;
    Status done = exchange(where, launches);
    driver.launches_left = 100;
    return done;
  }

 private:
  CudaTable table_;
  ScopedCudaTable scoped_;
  comm::CtaBudget budget_{132};
  std::unique_ptr<comm::Executor> executor_;
};

using Calls = std::vector<std::string>;

}  // namespace

TEST_CASE("streams of a group meet before its first launch and wait for its last", "[req:5.2]") {
  JoinedStreams joined;
  const std::vector<void*> all = {stream('a'), stream('b'), stream('c')};
  joined.join(stream('a'), all);
  joined.reduce(stream('a'));
  joined.reduce(stream('b'));
  CHECK(joined.exchange(stream('c'), 1).ok());
  joined.release(stream('c'), all);
  CHECK(driver.calls == Calls{"b records F", "a waits F", "c records F", "a waits F",  // they meet
                              "a reduces", "a records E",                              // in order
                              "b waits E", "b reduces", "b records E",                 //
                              "c waits E", "c launches", "c records E",                //
                              "a waits E", "b waits E"});
}

TEST_CASE("streams of an exchange meet before its first launch and wait for its last",
          "[req:5.10]") {
  JoinedStreams joined;
  joined.run({stream('a'), stream('b'), stream('c')}, 2);
  CHECK(driver.calls == Calls{"b records F", "a waits F", "c records F", "a waits F", "a launches",
                              "a launches", "a records E", "b waits E", "c waits E"});
  // The next call on another stream waits for that one.
  joined.run({stream('b')}, 1);
  CHECK(driver.calls == Calls{"b waits E", "b launches", "b records E"});
  joined.run({stream('b')}, 1);
  CHECK(driver.calls == Calls{"b launches", "b records E"});
}

TEST_CASE("an exchange whose second launch fails is waited for, and concerns the communicator",
          "[req:5.10]") {
  JoinedStreams joined;
  const Status done = joined.run_in_part(stream('a'), 2);
  REQUIRE(!done.ok());
  CHECK(done.error().scope() == Scope::communicator);
  CHECK(driver.calls == Calls{"a launches", "a records E"});
  joined.run({stream('b')}, 1);
  CHECK(driver.calls == Calls{"b waits E", "b launches", "b records E"});
  const Status none = joined.run_in_part(stream('b'), 1);
  REQUIRE(!none.ok());
  CHECK(none.error().scope() != Scope::communicator);
}

TEST_CASE("captured streams of an exchange meet by dependencies of its launches", "[req:5.10]") {
  JoinedStreams joined;
  driver.captures = {{stream('a'), 7}, {stream('b'), 7}};
  driver.nodes = {{stream('a'), {node('x')}}, {stream('b'), {node('y')}}};
  REQUIRE(joined.check({stream('a'), stream('b')}).ok());
  joined.run({stream('a'), stream('b')}, 1);
  CHECK(driver.calls == Calls{"a follows y", "graph G holds", "G: P waits E behind xy",
                              "a follows P", "a launches", "G: Q records E behind 1",
                              "b follows 1"});
  // The next call of the capture on another stream follows the launch.
  driver.captures[stream('c')] = 7;
  joined.run({stream('c')}, 1);
  CHECK(driver.calls == Calls{"c follows 1", "c launches", "G: Q follows 2", "G: Q leaves 1"});
  for (const auto& graph : driver.graphs) graph();
}

TEST_CASE("two interleaved captures have a wait and a record each, the record behind the last call",
          "[req:5.4][D2]") {
  JoinedStreams joined;
  driver.captures = {{stream('a'), 7}, {stream('b'), 7}, {stream('c'), 8}};
  driver.nodes = {{stream('a'), {node('x')}}};
  for (const char where : {'a', 'c', 'a', 'c', 'b'}) {
    joined.reduce(stream(where));
    // No kernel follows the record.
    CHECK(driver.nodes[stream(where)] ==
          std::vector<CUgraphNode>{node(static_cast<char>('0' + driver.launched))});
  }
  CHECK(driver.calls == Calls{"graph G holds",
                              "G: P waits E behind x",
                              "a follows P",
                              "a reduces",                // 1
                              "G: Q records E behind 1",  //
                              "graph H holds",
                              "H: R waits E behind ",
                              "c follows R",
                              "c reduces",                // 2
                              "H: S records E behind 2",  //
                              "a reduces",
                              "G: Q follows 3",
                              "G: Q leaves 1",  // 3
                              "c reduces",
                              "H: S follows 4",
                              "H: S leaves 2",  // 4
                              "b follows 3",
                              "b reduces",
                              "G: Q follows 5",
                              "G: Q leaves 3"});
  for (const auto& graph : driver.graphs) graph();
}

TEST_CASE("a plain call waits for the event also on its last stream, while a graph lives",
          "[req:5.4][D2]") {
  JoinedStreams joined;
  joined.run({stream('a')}, 1);
  driver.captures = {{stream('b'), 7}};
  joined.reduce(stream('b'));
  joined.run({stream('a')}, 1);
  CHECK(driver.calls == Calls{"a waits E", "a launches", "a records E"});
  driver.graphs[0]();
  joined.run({stream('a')}, 1);
  CHECK(driver.calls == Calls{"a launches", "a records E"});
}

TEST_CASE("without mixing graphs have no nodes for events, and plain calls wait for no graph",
          "[req:5.4][D2]") {
  const bool is_ordered = GENERATE(true, false);
  JoinedStreams joined(is_ordered ? comm::GraphOrder::in_captures : comm::GraphOrder::none);
  joined.run({stream('c')}, 1);
  driver.captures = {{stream('a'), 7}, {stream('b'), 7}};
  driver.calls.clear();
  joined.reduce(stream('a'));
  joined.reduce(stream('b'));
  joined.reduce(stream('c'));
  Calls expected{"graph G holds", "a reduces", "b follows 2",
                 "b reduces",     "c reduces", "c records E"};
  if (!is_ordered) expected.erase(expected.begin() + 2);
  CHECK(driver.calls == expected);
  driver.graphs[0]();
}

TEST_CASE("a graph that allocates memory keeps the record's edges, its calls are accepted",
          "[req:5.4][D2]") {
  JoinedStreams joined;
  driver.captures = {{stream('a'), 7}};
  driver.refuses_removal = true;
  for (int i = 0; i < 3; ++i) joined.reduce(stream('a'));
  CHECK(driver.calls.back() == "G: Q follows 3");
  driver.graphs[0]();
}

TEST_CASE("a capture that takes no event is refused with a way out, the next call tries again",
          "[req:5.4][D2]") {
  JoinedStreams joined;
  driver.captures = {{stream('a'), 7}};
  driver.refuses_event_nodes = true;
  const Status refused = joined.exchange(stream('a'), 1);
  REQUIRE(!refused.ok());
  CHECK(has(refused.error().to_string(), "NCCL_GRAPH_MIXING_SUPPORT=0"));
  CHECK(driver.launched == 0);
  driver.refuses_event_nodes = false;
  joined.run({stream('a')}, 1);
  CHECK(driver.calls == Calls{"graph G holds", "G: P waits E behind ", "a follows P", "a launches",
                              "G: Q records E behind 1"});
  for (const auto& graph : driver.graphs) graph();
}

TEST_CASE("memory is in use while the last call runs, or a graph that holds a call lives",
          "[req:5.2][D3]") {
  JoinedStreams joined;
  comm::Executor& executor = joined.executor();
  driver.is_busy = true;
  CHECK(!executor.is_in_use());  // nothing was enqueued
  joined.reduce(stream('a'));
  CHECK(executor.is_in_use());
  CHECK(executor.drain(Deadline::after(Duration(0))).error().code() == ErrorCode::timeout);
  driver.is_busy = false;
  CHECK(!executor.is_in_use());

  driver.captures = {{stream('a'), 7}, {stream('b'), 8}};
  joined.reduce(stream('a'));
  joined.reduce(stream('a'));  // of a graph that is counted already
  joined.reduce(stream('b'));
  REQUIRE(driver.graphs.size() == 2);
  driver.graphs[0]();
  CHECK(executor.is_in_use());
  CHECK(executor.drain(Deadline::never()).ok());  // a graph is nobody's to wait for
  driver.graphs[1]();
  CHECK(!executor.is_in_use());
}

TEST_CASE("communicators that fit on the GPU launch freely, one more waits for their events",
          "[req:5.5][D1]") {
  JoinedStreams joined;
  comm::Executor& first = joined.executor();
  const auto second = joined.make_executor(2);
  auto third = joined.make_executor(3);
  const auto reduce = [](comm::Executor& executor, char where) {
    CHECK(executor.run({}, {}, stream(where)).ok());
  };
  driver.is_busy = true;
  for (int i = 0; i < 2; ++i) {
    reduce(first, 'a');
    reduce(*second, 'b');
  }
  CHECK(driver.calls == Calls{"a reduces", "a records E", "b reduces", "b records G",  //
                              "a reduces", "a records E", "b reduces", "b records G"});
  CHECK(driver.queries == 0);
  driver.calls.clear();
  reduce(*third, 'c');
  reduce(*third, 'c');
  reduce(first, 'a');
  CHECK(driver.calls == Calls{"c waits E", "c waits G", "c reduces", "c records I",  //
                              "c reduces", "c records I",                            //
                              "a waits I", "a reduces", "a records E"});
  driver.calls.clear();
  driver.captures = {{stream('d'), 7}};
  reduce(*second, 'd');  // waits for no other communicator
  CHECK(driver.calls == Calls{"graph G holds", "G: P waits G behind ", "d follows P", "d reduces",
                              "G: Q records G behind 8"});
  driver.graphs[0]();
  driver.calls.clear();
  driver.is_busy = false;
  third = nullptr;
  reduce(*second, 'b');
  reduce(first, 'a');
  CHECK(driver.calls == Calls{"b reduces", "b records G", "a reduces", "a records E"});
}

TEST_CASE("a graph may go after the executor that it holds, its event stays", "[req:5.2][D3]") {
  {
    JoinedStreams joined;
    driver.captures = {{stream('a'), 7}};
    joined.reduce(stream('a'));
  }
  REQUIRE(driver.graphs.size() == 1);
  CHECK(driver.destroyed == "F");
  driver.graphs[0]();
}

TEST_CASE("streams of which some are captured, or by different captures, are refused by name",
          "[req:5.10]") {
  JoinedStreams joined;
  CHECK(joined.check({stream('a'), stream('b')}).ok());
  driver.captures = {{stream('a'), 7}};
  CHECK(joined.check({stream('a')}).ok());
  for (const auto& streams : {std::vector<void*>{stream('a'), stream('b')},
                              std::vector<void*>{stream('b'), stream('c'), stream('a')}}) {
    const Status mixed = joined.check(streams);
    REQUIRE(!mixed.ok());
    CHECK(mixed.error().code() == ErrorCode::invalid_usage);
    CHECK(has(mixed.error().to_string(), "some are captured and some are not"));
  }
  driver.captures = {{stream('a'), 7}, {stream('b'), 8}};
  const Status different = joined.check({stream('a'), stream('b')});
  REQUIRE(!different.ok());
  CHECK(has(different.error().to_string(), "in different captures"));
}

}  // namespace oriel::test

// In place of the kernels: a captured launch becomes the node that its stream follows.
namespace oriel::kernels {

static Status note_launch(CUstream_st* where, const char* what) {
  auto& driver = test::driver;
  if (driver.launches_left == 0) return Error(ErrorCode::cuda, "a launch fails");
  --driver.launches_left;
  driver.calls.push_back(fmt::format("{} {}", test::name_of(where), what));
  ++driver.launched;
  driver.nodes[where] = {test::node(static_cast<char>('0' + driver.launched))};
  return {};
}

Status launch_exchange(const ExchangeArguments& /*arguments*/, CUstream_st* where) {
  return note_launch(where, "launches");
}
Status load_exchanges() {
  return {};
}
Status launch_all_reduce(const Plan& /*plan*/, const AllReduceArguments& /*arguments*/,
                         CUstream_st* where) {
  return note_launch(where, "reduces");
}
Status load_all_reduce(const Plan& /*plan*/, const AllReduceArguments& /*arguments*/) {
  return {};
}
Status launch_hierarchy(const HierarchyArguments& /*arguments*/, CUstream_st* /*stream*/) {
  return {};
}
Status load_hierarchy(const HierarchyArguments& /*arguments*/) {
  return {};
}

}  // namespace oriel::kernels
