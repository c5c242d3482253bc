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

/// How streams of a group meet at its launches, and what still uses a communicator's memory, on a
/// driver that notes what it is asked to do.
namespace oriel::test {
namespace {

/// What the driver was asked for, in order, and the captures that streams are in.
struct DriverLog {
  std::vector<std::string> calls;
  std::map<CUstream, cuuint64_t> captures;
  std::map<CUstream, std::vector<CUgraphNode>> nodes;
  std::uintptr_t events = 0;
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
CUresult destroy_event(CUevent) {
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
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(std::uintptr_t{'G'});
  if (nodes != nullptr) *nodes = driver.nodes[where].data();
  if (count != nullptr) *count = driver.nodes[where].size();
  return CUDA_SUCCESS;
}
CUresult update_dependencies(CUstream where, CUgraphNode* nodes, const CUgraphEdgeData*,
                             std::size_t count, unsigned) {
  for (std::size_t i = 0; i < count; ++i) {
    driver.calls.push_back(fmt::format("{} follows {}", name_of(where), name_of(nodes[i])));
    driver.nodes[where].push_back(nodes[i]);
  }
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
  table.stream_wait_event = wait;
  table.stream_get_id = stream_id;
  table.stream_get_capture_info = capture_info;
  table.stream_update_capture_dependencies = update_dependencies;
  return table;
}

/// An executor of that driver.
class JoinedStreams {
 public:
  JoinedStreams() : table_(logging_table()), scoped_(table_) {
    driver = {};
    executor_ = make_executor(1);
  }
  /// The executor of a communicator, whose event behind the last call is E for the first, G, I.
  std::unique_ptr<comm::Executor> make_executor(std::uint64_t communicator) {
    auto made =
        comm::CudaExecutor::make(nullptr, budget_, {.communicator = communicator, .ctas = 32});
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
  CHECK(driver.calls == Calls{"a follows y", "a launches", "graph G holds", "b follows 1"});
  // The next call of the capture on another stream follows the launch.
  driver.captures[stream('c')] = 7;
  joined.run({stream('c')}, 1);
  CHECK(driver.calls == Calls{"c follows 1", "c launches"});
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
  reduce(*second, 'd');  // cannot wait for what is outside its graph
  CHECK(driver.calls == Calls{"d reduces", "graph G holds"});
  driver.graphs[0]();
  driver.calls.clear();
  driver.is_busy = false;
  third = nullptr;
  reduce(*second, 'b');
  reduce(first, 'a');
  CHECK(driver.calls == Calls{"b reduces", "b records G", "a reduces", "a records E"});
}

TEST_CASE("a graph may go after the executor that it holds", "[req:5.2][D3]") {
  {
    JoinedStreams joined;
    driver.captures = {{stream('a'), 7}};
    joined.reduce(stream('a'));
  }
  REQUIRE(driver.graphs.size() == 1);
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

Status launch_exchange(const ExchangeArguments& /*arguments*/, CUstream_st* where) {
  auto& driver = test::driver;
  if (driver.launches_left == 0) return Error(ErrorCode::cuda, "a launch fails");
  --driver.launches_left;
  driver.calls.push_back(fmt::format("{} launches", test::name_of(where)));
  ++driver.launched;
  driver.nodes[where] = {test::node(static_cast<char>('0' + driver.launched))};
  return {};
}
Status load_exchange(const ExchangeArguments& /*arguments*/) {
  return {};
}
Status launch_all_reduce(const Plan& /*plan*/, const AllReduceArguments& /*arguments*/,
                         CUstream_st* where) {
  test::driver.calls.push_back(fmt::format("{} reduces", test::name_of(where)));
  return {};
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
