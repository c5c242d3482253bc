// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/executor_cuda.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "kernels/cuda/launch_cuda.hpp"
#include "support/words.hpp"

/// How streams meet at the launches of an exchange, on a driver that notes what it is asked to do.
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
CUresult capture_info(CUstream where, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph*,
                      const CUgraphNode** nodes, const CUgraphEdgeData**, std::size_t* count) {
  const auto found = driver.captures.find(where);
  *status = found == driver.captures.end() ? CU_STREAM_CAPTURE_STATUS_NONE
                                           : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (found != driver.captures.end() && id != nullptr) *id = found->second;
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
    auto made = comm::CudaExecutor::make(nullptr);
    REQUIRE(made.ok());
    executor_ = std::move(made).value();
  }
  comm::Executor& executor() { return *executor_; }

  Status check(const std::vector<void*>& streams) { return executor_->check_joined(streams); }
  void run(const std::vector<void*>& streams, std::size_t launches) {
    driver.calls.clear();
    comm::ExchangeCall call;
    for (std::size_t i = 0; i < launches; ++i) call.launches.add({});
    call.streams = streams;
    const Status done = executor_->run_exchange(call);
    CHECK(done.ok());
  }
  /// Runs so many launches, of which the last one fails.
  Status run_in_part(const std::vector<void*>& streams, std::size_t launches) {
    driver.calls.clear();
    driver.launches_left = launches - 1;
    comm::ExchangeCall call;
    for (std::size_t i = 0; i < launches; ++i) call.launches.add({});
    call.streams = streams;
    Status done = executor_->run_exchange(call);
    driver.launches_left = 100;
    return done;
  }

 private:
  CudaTable table_;
  ScopedCudaTable scoped_;
  std::unique_ptr<comm::Executor> executor_;
};

using Calls = std::vector<std::string>;

}  // namespace

TEST_CASE("streams of an exchange meet before its first launch and wait for its last",
          "[req:5.10]") {
  JoinedStreams joined;
  joined.run({stream('a'), stream('b'), stream('c')}, 2);
  CHECK(driver.calls == Calls{"b records F", "a waits F", "c records F", "a waits F", "a launches",
                              "a launches", "a records F", "b waits F", "a records F", "c waits F",
                              "a records E"});
  // The next call on another stream waits for that one.
  joined.run({stream('b')}, 1);
  CHECK(driver.calls == Calls{"b waits E", "b launches", "b records E"});
  joined.run({stream('b')}, 1);
  CHECK(driver.calls == Calls{"b launches", "b records E"});
}

TEST_CASE("an exchange whose second launch fails is waited for, and concerns the communicator",
          "[req:5.10]") {
  JoinedStreams joined;
  const Status done = joined.run_in_part({stream('a')}, 2);
  REQUIRE(!done.ok());
  CHECK(done.error().scope() == Scope::communicator);
  CHECK(driver.calls == Calls{"a launches", "a records E"});
  joined.run({stream('b')}, 1);
  CHECK(driver.calls == Calls{"b waits E", "b launches", "b records E"});
  const Status none = joined.run_in_part({stream('b')}, 1);
  REQUIRE(!none.ok());
  CHECK(none.error().scope() != Scope::communicator);
}

TEST_CASE("captured streams of an exchange meet by dependencies of its launches", "[req:5.10]") {
  JoinedStreams joined;
  driver.captures = {{stream('a'), 7}, {stream('b'), 7}};
  driver.nodes = {{stream('a'), {node('x')}}, {stream('b'), {node('y')}}};
  REQUIRE(joined.check({stream('a'), stream('b')}).ok());
  joined.run({stream('a'), stream('b')}, 1);
  CHECK(driver.calls == Calls{"a follows y", "a launches", "b follows 1"});
  // The next call of the capture on another stream follows the launch.
  driver.captures[stream('c')] = 7;
  joined.run({stream('c')}, 1);
  CHECK(driver.calls == Calls{"c follows 1", "c launches"});
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
                         CUstream_st* /*stream*/) {
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
