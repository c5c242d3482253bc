// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/executor_cuda.hpp"

#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "comm/support/logged_executor.hpp"
#include "support/words.hpp"

/// Order of a communicator's launches: streams of a group, captures, and graphs beside plain calls.
/// Also checks when the executor is in use. Runs on a driver that logs its calls.
namespace oriel::test {
namespace {

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
  CHECK(driver.calls == Calls{"b records F", "a waits F", "c records F", "a waits F",  // join
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
  // The next call on another stream waits for the previous call.
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

TEST_CASE("copies run between the launches of their call, which are in order with other calls",
          "[req:5.9]") {
  JoinedStreams joined;
  CHECK(joined.exchange(stream('b'), 1).ok());
  CHECK(joined.copy(stream('a'), {8, 9}).ok());
  CHECK(driver.calls == Calls{"a waits E", "a launches", "a copies 8 from 100 to 101",
                              "a copies 9 from 200 to 201", "a launches", "a records E"});
}

TEST_CASE("a copy inside the GPU runs beside the others on a stream of its own", "[req:5.9]") {
  JoinedStreams joined;
  CHECK(joined.copy(stream('a'), {8, 9, 7}, true).ok());
  CHECK(driver.calls == Calls{"a launches", "a records G", "s waits G",                    //
                              "s copies 7 from 300 to 301",                                //
                              "a copies 8 from 100 to 101", "a copies 9 from 200 to 201",  //
                              "s records G", "a waits G", "a launches", "a records E"});
  driver.calls.clear();
  CHECK(joined.copy(stream('a'), {8}, true).ok());
  CHECK(driver.calls ==
        Calls{"a launches", "a copies 8 from 100 to 101", "a launches", "a records E"});
}

TEST_CASE("a captured call makes its copies on the captured stream alone", "[req:5.9][req:1.13]") {
  JoinedStreams joined;
  driver.captures = {{stream('a'), 7}};
  CHECK(joined.copy(stream('a'), {8, 9}, true).ok());
  for (const std::string& call : driver.calls) CHECK_FALSE(call.starts_with("s "));
  CHECK(std::count(driver.calls.begin(), driver.calls.end(), "a copies 9 from 200 to 201") == 1);
  driver.captures.clear();
  CHECK(joined.copy(stream('b'), {8, 9}, true).ok());  // while the graph lives
  CHECK(std::count(driver.calls.begin(), driver.calls.end(), "s copies 9 from 200 to 201") == 1);
}

TEST_CASE("a copy that fails between launches is waited for, and concerns the communicator",
          "[req:5.9]") {
  JoinedStreams joined;
  const Status done = joined.copy(stream('a'), {8, 0, 9}, true);
  REQUIRE(!done.ok());
  CHECK(done.error().scope() == Scope::communicator);
  CHECK(has(done.error().to_string(), "copying a block of a collective"));
  CHECK(driver.calls == Calls{"a launches", "a records G", "s waits G",
                              "s copies 9 from 300 to 301", "a copies 8 from 100 to 101",
                              "s records G", "a waits G", "a records E"});
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
  // The next call in the capture, on another stream, follows the launch.
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
    // No kernel depends on the record node.
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
  joined.reduce(stream('a'));  // in a graph that is already counted
  joined.reduce(stream('b'));
  REQUIRE(driver.graphs.size() == 2);
  driver.graphs[0]();
  CHECK(executor.is_in_use());
  CHECK(executor.drain(Deadline::never()).ok());  // drain() does not wait for graphs
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
