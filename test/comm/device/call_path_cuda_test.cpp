// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "base/cuda_scope.hpp"
#include "comm/support/logged_executor.hpp"
#include "support/cuda/fault_cuda.hpp"
#include "support/cuda/noted_calls.hpp"
#include "support/fail_each_call.hpp"
#include "support/failing_memory.hpp"
#include "support/words.hpp"

/// Driver calls that the host makes for a call of a GPU rank. Also checks that the host allocates
/// nothing.
namespace oriel::test {
namespace {

using Names = std::vector<std::string>;

const Names kPlain{"stream_get_capture_info", "stream_get_id", "launch_kernel_ex", "event_record"};

/// Returns `names` without the calls that query, enter or leave a context, and those that exchange
/// the capture mode.
Names without_scopes(Names names) {
  std::erase_if(names, [](const std::string& name) {
    return name == "thread_exchange_stream_capture_mode" || name.starts_with("ctx_");
  });
  return names;
}

/// Returns a driver table whose calls neither do nor allocate anything.
CudaTable idle_table() {
  CudaTable table = logging_table();
  table.event_record = [](CUevent, CUstream) { return CUDA_SUCCESS; };
  table.stream_wait_event = [](CUstream, CUevent, unsigned) { return CUDA_SUCCESS; };
  table.launch_kernel_ex = [](const CUlaunchConfig*, CUfunction, void**, void**) {
    return CUDA_SUCCESS;
  };
  table.stream_get_capture_info = [](CUstream, CUstreamCaptureStatus* status, cuuint64_t*, CUgraph*,
                                     const CUgraphNode**, const CUgraphEdgeData**, std::size_t*) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  return table;
}

/// Counts the contexts that this thread has pushed on the driver below.
thread_local int contexts_entered = 0;
CUresult enter_context(CUcontext) {
  ++contexts_entered;
  return CUDA_SUCCESS;
}
CUresult leave_context(CUcontext*) {
  --contexts_entered;
  return CUDA_SUCCESS;
}

/// A driver call that fails unless the thread has a current context.
template <auto member, typename Function>
struct WithContext;
template <auto member, typename... Args>
struct WithContext<member, CUresult (*)(Args...)> {
  static CUresult CUDAAPI call(Args... args) {
    return contexts_entered > 0 ? (strict_below.*member)(args...) : CUDA_ERROR_INVALID_CONTEXT;
  }
  static inline CudaTable strict_below{};
};
template <auto member, typename Function>
void want_context(CudaTable& table, Function& entry) {
  WithContext<member, Function>::strict_below = table;
  entry = WithContext<member, Function>::call;
}

}  // namespace

TEST_CASE("a plain call on the last stream takes four driver calls, on another stream five",
          "[req:5.6]") {
  JoinedStreams joined;
  NotedCalls noted;
  joined.reduce(stream('a'));
  CHECK(noted.names_of([&] { joined.reduce(stream('a')); }) == kPlain);
  CHECK(joined.exchange(stream('a'), 1).ok());
  CHECK(noted.names_of([&] { CHECK(joined.exchange(stream('a'), 1).ok()); }) == kPlain);
  CHECK(noted.names_of([&] { joined.reduce(stream('b')); }) ==
        Names{"stream_get_capture_info", "stream_get_id", "stream_wait_event", "launch_kernel_ex",
              "event_record"});
  CHECK(noted.names_of([&] { joined.reduce(stream('b')); }) == kPlain);
}

TEST_CASE("a call on a default stream enters the communicator's context", "[req:5.6]") {
  JoinedStreams joined;
  NotedCalls noted;
  joined.reduce(stream('a'));
  for (CUstream const where : {CUstream{nullptr}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    joined.reduce(where);
    const Names names = noted.names_of([&] { joined.reduce(where); });
    CHECK(without_scopes(names) == kPlain);
    CHECK(std::count(names.begin(), names.end(), "ctx_push_current") == 1);
    CHECK(std::count(names.begin(), names.end(), "ctx_pop_current") == 1);
    CHECK(std::count(names.begin(), names.end(), "thread_exchange_stream_capture_mode") == 2);
  }
}

TEST_CASE("a driver call refused for lack of a context is repeated in the communicator's",
          "[req:5.6]") {
  JoinedStreams joined;
  CudaTable strict = cuda();
  want_context<&CudaTable::launch_kernel_ex>(strict, strict.launch_kernel_ex);
  want_context<&CudaTable::event_record>(strict, strict.event_record);
  strict.ctx_push_current = enter_context;
  strict.ctx_pop_current = leave_context;
  const ScopedCudaTable scoped(strict);
  joined.reduce(stream('a'));
  CHECK(driver.calls == std::vector<std::string>{"a reduces", "a records E"});
  CHECK(contexts_entered == 0);
  NotedCalls noted;
  const Names names = noted.names_of([&] { joined.reduce(stream('a')); });
  CHECK(without_scopes(names) == Names{"stream_get_capture_info", "stream_get_id",
                                       "launch_kernel_ex", "launch_kernel_ex", "event_record"});
}

TEST_CASE("a captured call takes six driver calls behind another one of its capture",
          "[req:5.4][req:5.6]") {
  JoinedStreams joined;
  NotedCalls noted;
  joined.reduce(stream('a'));
  driver.captures = {{stream('b'), 7}};
  CHECK(without_scopes(noted.names_of([&] { joined.reduce(stream('b')); })) ==
        Names{"stream_get_capture_info", "user_object_create", "graph_retain_user_object",
              "graph_add_event_wait_node", "stream_update_capture_dependencies", "launch_kernel_ex",
              "stream_get_capture_info", "graph_add_event_record_node"});
  CHECK(noted.names_of([&] { joined.reduce(stream('b')); }) ==
        Names{"stream_get_capture_info", "ctx_get_current", "launch_kernel_ex",
              "stream_get_capture_info", "graph_add_dependencies", "graph_remove_dependencies"});
  // A plain call cannot know whether the graph is launched meanwhile.
  CHECK(noted.names_of([&] { joined.reduce(stream('a')); }) ==
        Names{"stream_get_capture_info", "stream_get_id", "stream_wait_event", "launch_kernel_ex",
              "event_record"});
  for (const auto& graph : driver.graphs) graph();
}

TEST_CASE("a captured call that no graph's launch waits for takes four driver calls",
          "[req:5.4][req:5.6]") {
  JoinedStreams joined(comm::GraphOrder::in_captures);
  NotedCalls noted;
  driver.captures = {{stream('b'), 7}};
  joined.reduce(stream('b'));
  CHECK(noted.names_of([&] { joined.reduce(stream('b')); }) ==
        Names{"stream_get_capture_info", "ctx_get_current", "launch_kernel_ex",
              "stream_get_capture_info"});
  for (const auto& graph : driver.graphs) graph();
}

TEST_CASE("a call waits for others only where the GPU is full, and again takes four calls after it",
          "[req:5.5][req:5.6]") {
  JoinedStreams joined;
  const auto second = joined.make_executor(2);
  const auto third = joined.make_executor(3);
  NotedCalls noted;
  const auto reduce = [&](comm::Executor& executor, char where) {
    return noted.names_of([&] { CHECK(executor.run({}, {}, stream(where)).ok()); });
  };
  static_cast<void>(reduce(joined.executor(), 'a'));
  CHECK(reduce(*second, 'b') == kPlain);
  CHECK(reduce(joined.executor(), 'a') == kPlain);
  driver.is_busy = true;
  CHECK(without_scopes(reduce(*third, 'c')) ==
        Names{"stream_get_capture_info", "stream_get_id", "event_query", "event_query",
              "stream_wait_event", "stream_wait_event", "launch_kernel_ex", "event_record"});
  CHECK(reduce(*third, 'c') == kPlain);
  driver.is_busy = false;
  static_cast<void>(reduce(*second, 'b'));
  CHECK(reduce(*second, 'b') == kPlain);
}

TEST_CASE("the first communicator of a GPU loads all kernels, and no call loads any",
          "[req:5.6][req:5.5]") {
  JoinedStreams joined;
  constexpr std::size_t kCopyStreams = 3;  // collectives with a copying stream
  CHECK(driver.loads == kernels::kKernelCount - kernels::kCollectiveCount + kCopyStreams);
  const std::size_t loads = driver.loads;
  const auto second = joined.make_executor(2);
  NotedCalls noted;
  CHECK(noted.names_of([&] { joined.reduce(stream('a')); }) == kPlain);
  CHECK(noted.names_of([&] { CHECK(second->run({}, {}, stream('b')).ok()); }) == kPlain);
  CHECK(noted.names_of([&] { CHECK(joined.exchange(stream('a'), 1).ok()); }) == kPlain);
  CHECK(driver.loads == loads);
}

TEST_CASE("a marked call takes five driver calls, and it is known whether it has ended",
          "[req:5.7]") {
  JoinedStreams joined;
  const auto marked = joined.make_executor(2, comm::GraphOrder::all, true);
  CudaTable table = cuda();
  static std::uintptr_t last_ended;
  table.event_query = [](CUevent event) {
    ++driver.queries;
    const bool has_ended = reinterpret_cast<std::uintptr_t>(event) <= last_ended;
    return has_ended ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  };
  const ScopedCudaTable scoped(table);
  constexpr std::uint64_t kCalls = comm::LaunchMarks::kMarks;
  driver.launches_left = 2 * kCalls;
  last_ended = 0;
  const std::uintptr_t before = 'E' + driver.events - 1;  // the last event before the marks
  for (std::uint64_t call = 1; call <= kCalls; ++call) {
    CHECK(marked->run({}, {}, stream('a')).ok());
    CHECK(marked->last_mark() == call);
  }
  for (const std::uint64_t ended : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{700}}) {
    last_ended = before + ended;
    driver.queries = 0;
    CHECK(marked->ended_marks() == ended);
    CHECK(driver.queries <= 11);  // a search in halves
  }
  NotedCalls noted;
  Names with_mark = kPlain;
  with_mark.emplace_back("event_record");
  CHECK(noted.names_of([&] { CHECK(marked->run({}, {}, stream('a')).ok()); }) == with_mark);
  CHECK(marked->last_mark() == kCalls + 1);
  last_ended = before + kCalls;
  CHECK(marked->ended_marks() == kCalls + 1);
  driver.captures = {{stream('b'), 7}};
  CHECK(marked->run({}, {}, stream('b')).ok());
  CHECK(marked->last_mark() == 0);
  for (const auto& graph : driver.graphs) graph();
}

TEST_CASE("the number of ended calls, read while a launch waits for room, is unknown, at once",
          "[req:5.7]") {
  JoinedStreams joined;
  const auto marked = joined.make_executor(2, comm::GraphOrder::all, true);
  static std::atomic<bool> is_waiting, has_room;
  is_waiting = has_room = false;
  CudaTable table = cuda();
  table.launch_kernel_ex = [](const CUlaunchConfig*, CUfunction, void**, void**) {
    is_waiting = true;
    is_waiting.notify_all();
    has_room.wait(false);
    return CUDA_SUCCESS;
  };
  const ScopedCudaTable scoped(table);
  std::jthread caller([&] { CHECK(marked->run({}, {}, stream('a')).ok()); });
  is_waiting.wait(false);
  CHECK(!marked->ended_marks());
  has_room = true;
  has_room.notify_all();
  caller.join();
  CHECK(marked->ended_marks() == 1);
}

TEST_CASE("a launch that the driver refuses is named, and the next one goes on", "[req:5.6]") {
  JoinedStreams joined;
  driver.launches_left = 0;
  const Status refused = joined.executor().run({}, {}, stream('a'));
  REQUIRE(!refused.ok());
  CHECK(refused.error().code() == ErrorCode::cuda);
  CHECK(has(refused.error().to_string(), "launching stream of"));
  driver.launches_left = 1;
  joined.reduce(stream('a'));
}

namespace {

/// A kind of call: returns how it ended. Stream a has the communicator's last call.
struct CallKind {
  const char* name;
  Status (*make)(JoinedStreams& joined);
};

Status exchange_of_two_streams(JoinedStreams& joined) {
  const std::vector<void*> streams{stream('b'), stream('c')};
  ORIEL_CHECK(joined.check(streams));
  ORIEL_CHECK(joined.executor().join_streams(streams.front(), streams));
  ORIEL_CHECK(joined.exchange(streams.front(), 2));
  return joined.executor().release_streams(streams.front(), streams);
}
Status captured_calls(JoinedStreams& joined) {
  driver.captures = {{stream('b'), 7}};
  ORIEL_CHECK(joined.executor().run({}, {}, stream('b')));
  return joined.exchange(stream('b'), 2);
}

/// Returns whether a call succeeds although this driver call has failed. Two of them restore the
/// thread's state. The third removes an edge between nodes that are ordered anyway.
bool may_fail_unnoticed(const std::string& driver_call) {
  return driver_call == "ctx_pop_current" || driver_call == "thread_exchange_stream_capture_mode" ||
         driver_call == "graph_remove_dependencies";
}

constexpr CallKind kCallKinds[] = {
    {"a reduction",
     [](JoinedStreams& joined) { return joined.executor().run({}, {}, stream('a')); }},
    {"a reduction on another stream",
     [](JoinedStreams& joined) { return joined.executor().run({}, {}, stream('b')); }},
    {"a call among teams",
     [](JoinedStreams& joined) { return joined.executor().run_hierarchy({}, stream('b')); }},
    {"an exchange", [](JoinedStreams& joined) { return joined.exchange(stream('a'), 2); }},
    {"an exchange of two streams", exchange_of_two_streams},
    {"copies by engines",
     [](JoinedStreams& joined) {
       return joined.copy(stream('a'), {8, 16, 24}, true);
     }},
    {"captured calls", captured_calls},
};

}  // namespace

TEST_CASE("if a driver call of any kind of call fails, so does the call, and the next one goes on",
          "[req:5.21][req:5.6]") {
  for (const CallKind& kind : kCallKinds) {
    INFO(kind.name);
    const auto use = [&](FaultPlan& plan) {
      JoinedStreams joined;
      joined.reduce(stream('a'));
      const CudaFaultHooks hooks;
      Status outcome;
      {
        const ScopedCudaFaults faults(plan);
        outcome = kind.make(joined);
      }
      driver.captures.clear();
      joined.reduce(stream('a'));
      joined.reduce(stream('b'));
      for (const auto& graph : driver.graphs) graph();
      return outcome;
    };
    const auto check = [](const FaultPlan& plan, const Status& outcome) {
      if (plan.hit() && outcome.ok()) CHECK(may_fail_unnoticed(plan.failed.load()));
    };
    const long calls = fail_each_call(CUDA_ERROR_UNKNOWN, use, check);
    CHECK(calls >= 4);
  }
}

TEST_CASE("a GPU whose kernels cannot be loaded gets no communicator", "[req:5.6]") {
  const JoinedStreams joined;
  constexpr kernels::KernelLoader kBroken{
      .load = [](const void*) -> int { return 98; },
      .find = [](CUfunction*, const void*) -> int { return 98; }};
  const kernels::ScopedKernelLoader broken(kBroken);
  comm::CtaBudget budget(132);
  kernels::LoadedKernels kernels(nullptr);
  const auto refused =
      comm::CudaExecutor::make({nullptr, budget, kernels}, {.ctas = 32}, comm::GraphOrder::all);
  REQUIRE(!refused.ok());
  CHECK(has(refused.error().to_string(), "loading the kernels"));
}

TEST_CASE("a plain call, made again, allocates nothing", "[req:5.6]") {
  JoinedStreams joined;
  const CudaTable idle = idle_table();
  const ScopedCudaTable scoped(idle);
  const kernels::Plan plan;
  const kernels::AllReduceArguments arguments;
  comm::ExchangeCall exchange;
  exchange.launches.add({});
  exchange.stream = stream('a');
  Status done;
  const auto call_all = [&] {
    done = joined.executor().run(plan, arguments, stream('a'));
    if (done.ok()) done = joined.executor().run(plan, arguments, stream('b'));
    if (done.ok()) done = joined.executor().run_exchange(exchange);
  };
  call_all();
  REQUIRE(done.ok());
  CHECK(!with_failure(0, call_all, Whose::callers));
  CHECK(done.ok());
}

}  // namespace oriel::test
