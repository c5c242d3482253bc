// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/request/flight_recorder.hpp"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "api/api_ranks.hpp"
#include "comm/request/call_text.hpp"
#include "comm/support/network_of.hpp"
#include "comm/support/stall_log.hpp"
#include "support/process_state.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

/// The flight recorder: the last calls of each rank, and the file with them.
namespace oriel::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using comm::FlightFacts;
using comm::FlightKind;
using comm::FlightRecorder;

kernels::CollectiveCall sum_of(std::uint64_t count) {
  return {kernels::Collective::all_reduce, DataType::f32, ReduceOp::sum, count, 0};
}

/// A folder for the files of ranks and for the log lines of processes.
class DumpFolder {
 public:
  DumpFolder() { fs::create_directory(folder_); }
  ~DumpFolder() { fs::remove_all(folder_); }
  DumpFolder(const DumpFolder&) = delete;
  DumpFolder& operator=(const DumpFolder&) = delete;

  std::string path() const { return folder_.string(); }
  /// Returns the text of the rank's file; empty if there is none.
  std::string text(int rank) const {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (name.find(fmt::format("-rank{}-", rank)) == std::string::npos) continue;
      if (name.ends_with(".json")) return read(entry.path());
    }
    return {};
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }
  static std::string read(const fs::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  const fs::path folder_ = fmt::format("/tmp/oriel-flight-{}", ::getpid());
};

std::size_t times_in(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("a recorder of more than 1,024 calls, read, has the last ones in order", "[req:5.7]") {
  FlightRecorder recorder({.folder = "/times", .size = 2});
  CHECK(recorder.records().empty());
  int stream = 0;
  for (std::uint64_t count = 1; count <= 1500; ++count) {
    recorder.enter(sum_of(count), &stream);
    CHECK(comm::text_of(recorder.activity()) == "a collective");
    if (count < 1500) recorder.leave(count != 1499);
  }
  const auto records = recorder.records();
  REQUIRE(records.size() == 1024);
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto& record = records[i];
    CHECK(record.number == 477 + i);
    CHECK(record.call == sum_of(record.number));
    CHECK(record.stream == reinterpret_cast<std::uintptr_t>(&stream));
    CHECK((record.ended >= record.enqueued) == (record.number < 1499));  // others failed or run
  }
}

TEST_CASE("a recorder that writes no file reads no clock", "[req:5.7][req:5.22]") {
  FlightRecorder recorder({.size = 2});
  recorder.enter(sum_of(1), nullptr);
  recorder.leave(true);
  recorder.enter(sum_of(2), nullptr);
  const auto records = recorder.records();
  REQUIRE(records.size() == 2);
  CHECK(records[0].enqueued == 0);
  CHECK(records[0].ended == 1);
  CHECK(records[1].ended == 0);
}

TEST_CASE("sends and receives of a group, recorded, are numbered for each peer and direction",
          "[req:5.7]") {
  FlightRecorder recorder({.size = 3});
  const comm::PointToPointRequest send{.is_send = true, .count = 5, .peer = 2};
  const comm::PointToPointRequest receive{.is_send = false, .count = 6, .peer = 2};
  const std::vector<comm::PointToPointRequest> group{send, receive, send};
  recorder.enter(group);
  CHECK(comm::text_of(recorder.activity()) == "a group of 2 sends and 1 receives");
  CHECK(recorder.enqueued_text() == "number 1, is a group of 2 sends and 1 receives");
  recorder.leave(true);
  CHECK(comm::text_of(recorder.activity()) == "no call");
  recorder.enter(std::vector{send});
  const auto records = recorder.records();
  REQUIRE(records.size() == 4);
  const std::uint64_t numbers[] = {1, 1, 2, 3};
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(records[i].kind == (i == 1 ? FlightKind::receive : FlightKind::send));
    CHECK(records[i].number == numbers[i]);
    CHECK(records[i].call.root == 2);
    CHECK((records[i].ended != 0) == (i < 3));
  }
}

TEST_CASE("records read while their rank makes calls are whole or left out", "[req:5.7]") {
  FlightRecorder recorder({.size = 1});
  std::atomic<bool> ended = false;
  std::jthread caller([&] {
    for (std::uint64_t count = 1; !ended; ++count) {
      recorder.enter(sum_of(count), reinterpret_cast<const void*>(count));
      recorder.leave(true);
    }
  });
  std::size_t read = 0, torn = 0;
  const auto enough = static_cast<std::size_t>(repeats(200'000));
  while (read < enough) {
    for (const auto& record : recorder.records()) {
      ++read;
      if (record.call.count != record.number || record.stream != record.number) ++torn;
    }
  }
  ended = true;
  CHECK(torn == 0);
}

TEST_CASE("a file of a rank, written twice, replaces what lies there and follows no link",
          "[req:5.7]") {
  const DumpFolder folder;
  const fs::path other = folder.path() + "/other";
  std::ofstream(other) << "kept";
  const std::string name =
      fmt::format("{}/flight-00000000000000ab-rank1-{}.json", folder.path(), ::getpid());
  fs::create_symlink(other, name);
  FlightRecorder recorder(
      {.folder = folder.path(), .communicator = 0xab, .name = "a \"b\"\n", .rank = 1, .size = 2});
  recorder.enter(sum_of(7), nullptr);
  recorder.write("first", false);
  recorder.write("the last", true);
  recorder.write("behind the last", false);
  CHECK(DumpFolder::read(other) == "kept");
  CHECK_FALSE(fs::is_symlink(name));
  CHECK(folder.files() == 2);
  CHECK_NOTHROW(require_words(
      DumpFolder::read(name),
      {R"("communicator": "00000000000000ab", "name": "a \"b\"\u000a",)",
       R"("rank": 1, "ranks": 2,)", R"("reason": "the last")",
       R"({"kind": "all-reduce", "op": "sum", "number": 1, "count": 7, "type": "f32",)",
       R"("ended_ns": null})"}));
}

TEST_CASE("a file of a GPU rank says of each marked call whether it has ended", "[req:5.7]") {
  const DumpFolder folder;
  FlightRecorder recorder(
      {.folder = folder.path(), .communicator = 0xab, .size = 2, .on_host = false});
  for (const std::uint64_t mark : {1, 2, 0, 3}) recorder.enter(sum_of(mark), nullptr, mark);
  recorder.note_ended(2);
  recorder.write("a test", true);
  std::vector<std::string> calls;
  std::istringstream lines(folder.text(0));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("{\"kind\"")) calls.push_back(line);
  }
  REQUIRE(calls.size() == 4);
  const char* const ends[] = {R"("ended": true})", R"("ended": true})", "}", R"("ended": false})"};
  for (std::size_t i = 0; i < 4; ++i) {
    const bool is_last = i + 1 == calls.size();
    CHECK(calls[i].ends_with(std::string(ends[i]) + (is_last ? "" : ",")));
  }
  CHECK(times_in(calls[2], "ended") == 0);  // captured
}

TEST_CASE("a folder that is not there is named once in the log, and nothing fails", "[req:5.7]") {
  const DumpFolder folder;
  const std::string log = folder.path() + "/log";
  check_all_ok(run_ranks(LaunchMode::processes, 1, [&](TestRanks&) {
    const Environment environment(
        Variables{{"ORIEL_LOG", ""}, {"NCCL_DEBUG", ""}, {"ORIEL_LOG_FILE", log}});
    FlightRecorder recorder({.folder = folder.path() + "/missing"});
    recorder.write("first", false);
    recorder.write("second", true);
  }));
  const std::string lines = DumpFolder::read(log);
  CHECK(times_in(lines, "ORIEL_DUMP_DIR") == 1);
  CHECK_NOTHROW(require_words(lines, {"WARN", "/missing/flight-", "No such file or directory"}));
}

TEST_CASE("ranks in different calls write both, each as not ended, with the error", "[req:5.7]") {
  const DumpFolder folder;
  const Environment environment(Variables{{"ORIEL_DUMP_DIR", folder.path()}});
  check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    auto comm = join(test_ranks, {.name = "gradients"});
    add_one(comm);
    std::vector<float> data(8);
    const std::size_t count = test_ranks.first() == 0 ? 4 : 8;
    const auto done =
        comm.all_reduce({.input = data.data(), .output = data.data(), .count = count});
    must_fail(done, ErrorCode::invalid_usage, {"are in different calls"});
    // The file is complete when the call returns.
    const std::string text = folder.text(test_ranks.first());
    require_words(text,
                  {"\"name\": \"gradients\"", "are in different calls", "\"count\": 1,",
                   fmt::format("\"number\": 2, \"count\": {},", count), "\"ended_ns\": null"});
    require(times_in(text, "\"ended_ns\": null") == 1, "only the last call has not ended");
    test_ranks.barrier();
  }));
  CHECK(folder.files() == 2);
}

TEST_CASE("calls that are refused for an argument or after a failure are not recorded",
          "[req:4.11][req:5.7]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const auto inside = must(comm::find_communicator(comm.handle()));
    const auto require_one = [&](const char* when) {
      require(NetworkInside::flight(*inside).records().size() == 1, when);
    };
    add_one(comm);
    require_one("the first call");
    float value = 1;
    const auto refused = [&](ErrorCode code) {
      must_fail(comm.all_reduce({.input = nullptr, .output = &value, .count = 1}), code, {});
      const ncclResult_t sent = ncclSend(&value, 1, ncclFloat, 2, comm.handle(), nullptr);
      require(sent != ncclSuccess, "a send to no rank");
    };
    refused(ErrorCode::invalid_argument);
    require_one("refused calls");
    test_ranks.barrier();
    if (test_ranks.first() == 0) comm.abort();
    const auto error = error_of(comm);
    require(error.has_value(), "an error behind the abort");
    must_fail(comm.all_reduce({.input = &value, .output = &value, .count = 1}), error->code(), {});
    refused(error->code());
    require_one("calls after the abort");
    test_ranks.barrier();
  }));
}

TEST_CASE("a stall is written by the rank that waits and by the rank that it waits for",
          "[req:5.7]") {
  const StallLog log;
  const DumpFolder folder;
  const Environment environment(Variables{{"ORIEL_DUMP_DIR", folder.path()}});
  check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    add_one(comm);
    const bool is_late = test_ranks.first() == 1;
    if (is_late) {
      require(eventually([&] { return !folder.text(0).empty() && !folder.text(1).empty(); }),
              "both files");
    }
    add_one(comm);
    test_ranks.barrier();
  }));
  CHECK_NOTHROW(require_words(folder.text(0), {"\"reason\": \"stalled: rank 0 has waited for 1 s",
                                               "\"number\": 2,", "\"ended_ns\": null"}));
  CHECK_NOTHROW(
      require_words(folder.text(1), {"\"reason\": \"another rank has waited for long\""}));
  CHECK(times_in(folder.text(1), "\"kind\"") == 1);
}

}  // namespace oriel::test
