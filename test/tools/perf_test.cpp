// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "program.hpp"
#include "support/words.hpp"

namespace {

using oriel::test::has;
using Words = std::vector<std::string>;
using Json = nlohmann::json;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words perf_command(const Words& arguments) {
  return Words{ORIEL_PERF_PATH, "all_reduce", "--backend", "host", "--lib", FAKE_NCCL_PATH} +
         arguments;
}

ProgramResult perf(const Words& arguments, const std::string& input = "") {
  return run_program(perf_command(arguments), {}, input);
}

/// Checks the exit status, and that standard error contains these words.
ProgramResult expect(int status, const Words& arguments, const Words& complaints = {}) {
  ProgramResult result = perf(arguments);
  INFO(result.out << result.err);
  CHECK(result.status == status);
  for (const std::string& words : complaints) CHECK(has(result.err, words));
  return result;
}

// Returns the rows of a table: lines that do not begin with '#', split at white space.
std::vector<Words> rows(const std::string& text) {
  std::vector<Words> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    found.emplace_back();
    for (std::string word; words >> word;) found.back().push_back(word);
  }
  return found;
}

// Returns the ranks' process ids from the table's head.
std::vector<pid_t> pids(const std::string& text) {
  std::vector<pid_t> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto at = line.find(" Pid ");
    if (at != std::string::npos) found.push_back(std::stoi(line.substr(at + 5)));
  }
  return found;
}

std::string json_path() {
  return "/tmp/oriel-perf-test-" + std::to_string(getpid()) + ".json";
}

Json read_json(const std::string& path) {
  std::ifstream in(path);
  Json document = Json::parse(in, nullptr, false);
  std::remove(path.c_str());
  return document;
}

}  // namespace

TEST_CASE("the table has nccl-tests' columns", "[req:1.35]") {
  const auto result = expect(0, {"-b", "8", "-e", "64", "-f", "2", "-n", "20", "--rounds", "3"});
  CHECK(has(result.out,
            "#       size         count      type   redop    root     time   algbw   "
            "busbw #wrong     time   algbw   busbw #wrong"));
  CHECK(has(result.out, "# Out of bounds values : 0 OK"));
  CHECK(has(result.out, "# Avg bus bandwidth    : "));
  const auto table = rows(result.out);
  REQUIRE(table.size() == 4);
  for (const Words& row : table) {
    REQUIRE(row.size() == 13);
    CHECK(row[2] == "float");
    CHECK(row[3] == "sum");
    CHECK(row[4] == "-1");
    CHECK(std::stod(row[5]) > 0);
    CHECK(row[8] == "0");
    CHECK(row[12] == "0");
  }
  CHECK(table[3][0] == "64");
  CHECK(table[3][1] == "16");
}

TEST_CASE("types, operations, odd counts and more than two ranks are measured and checked",
          "[req:1.35]") {
  const Words few{"-n", "3", "--rounds", "2"};
  const auto result =
      expect(0, few + Words{"--counts", "0,1,7,1001", "-d", "int8,int32,uint64,float,double", "-o",
                            "sum,prod,max,min,avg", "--ranks", "3"});
  CHECK(rows(result.out).size() == 4 * 5 * 5);
  // Each rank scales by its own factor.
  expect(0, few + Words{"--counts", "33", "-d", "int32,float", "-o", "mulsum"});
}

TEST_CASE("every kind of wrong result is counted", "[req:1.35]") {
  const Words base{"--counts", "1000",     "-n", "4",  "--rounds",
                   "2",        "--rotate", "2",  "-J", json_path()};
  const auto with = [&](const std::string& fault) {
    INFO(fault);
    CHECK(has(expect(1, base + Words{"--env", fault}).out, "FAILED"));
    const Json document = read_json(json_path());
    CHECK(document["wrong"].get<int>() > 0);
    return document["cases"][0];
  };
  // Two rounds check two buffer sets each, with one wrong element in each set on rank 0.
  const Json wrong = with("FAKE_NCCL_WRONG_AT=700")["out_of_place"]["ours"];
  CHECK(wrong["wrong_outputs"] == 4);
  CHECK(wrong["first_wrong_index"] == 700);
  CHECK(wrong["same_bits_on_all_ranks"] == false);
  CHECK(with("FAKE_NCCL_WRONG_AT=700")["in_place"]["ours"]["wrong_outputs"] == 4);
  CHECK(with("FAKE_NCCL_SKIP_LAST=1")["out_of_place"]["ours"]["first_wrong_index"] == 999);
  CHECK(with("FAKE_NCCL_WRITE_PAST=1")["out_of_place"]["ours"]["bytes_written_past_end"] == 4);
  CHECK(with("FAKE_NCCL_CHANGE_INPUT=1")["out_of_place"]["ours"]["changed_inputs"].get<int>() > 0);
}

TEST_CASE("results that differ in bits alone end a run with 1, but not the opponent's",
          "[req:1.35]") {
  // The fault flips the lowest bit of a sum of two, which is within the rounding tolerance.
  const Words base{"--counts", "1000", "-n", "4", "--rounds", "2"};
  const std::string fault = "FAKE_NCCL_OTHER_BITS_AT=7";
  const auto result = expect(1, base + Words{"--env", fault});
  CHECK(has(result.out, "Out of bounds values : 0 OK"));
  CHECK(has(result.out, "differ in bits : 2 FAILED"));
  expect(0, base + Words{"--against", FAKE_NCCL_PATH, "--against-env", fault});
}

TEST_CASE("-w calls are made before the first round", "[req:1.35]") {
  const auto with = [](const std::string& warmup, const std::string& fail_at) {
    return perf({"--counts", "8", "-n", "2", "--rounds", "1", "-c", "0", "--out-of-place", "-w",
                 warmup, "--env", "FAKE_NCCL_RANK=0", "--env", "FAKE_NCCL_FAIL_AT_CALL=" + fail_at})
        .status;
  };
  // Each rank makes four more calls: one for setup, and those of the round.
  CHECK(with("40", "44") != 0);
  CHECK(with("40", "45") == 0);
}

TEST_CASE("nothing is checked with -c 0", "[req:1.35]") {
  const auto result = expect(0, {"--counts", "10", "-n", "2", "--rounds", "1", "-c", "0", "--env",
                                 "FAKE_NCCL_WRONG_AT=3"});
  CHECK(rows(result.out).at(0).at(8) == "N/A");
}

TEST_CASE("the JSON holds every round, the median and p99", "[req:1.35]") {
  const auto result = expect(0, {"--counts", "10", "-n", "20", "--rounds", "7", "--json",
                                 json_path(), "--p99", "--jitter", "30"});
  const Json document = read_json(json_path());
  const Json& ours = document["cases"][0]["in_place"]["ours"];
  CHECK(ours["rounds_us"].size() == 7);
  std::vector<double> times = ours["rounds_us"];
  std::sort(times.begin(), times.end());
  CHECK(ours["median_us"].get<double>() == times[3]);
  CHECK(ours["p99_us"].get<double>() == times[6]);
  CHECK(ours["jittered_us"].get<double>() > 0);
  CHECK(rows(result.out).at(0).size() == 15);
}

TEST_CASE("two libraries are compared round by round", "[req:1.36]") {
  const auto result = perf({"--counts", "64", "-n", "10", "--env", "FAKE_NCCL_DELAY_US=1000",
                            "--against", FAKE_NCCL_PATH, "--against-env", "FAKE_NCCL_DELAY_US=4000",
                            "--out-of-place", "-J", json_path()});
  INFO(result.out << result.err);
  REQUIRE(result.status == 0);
  const Json document = read_json(json_path());
  const Json& one = document["cases"][0]["out_of_place"];
  REQUIRE(one["ours"]["rounds_us"].size() == 9);
  REQUIRE(one["theirs"]["rounds_us"].size() == 9);
  CHECK(one["ours"]["median_us"].get<double>() >= 1000);
  CHECK(one["theirs"]["median_us"].get<double>() >= 4000);
  std::vector<double> ratios;
  for (int i = 0; i < 9; ++i)
    ratios.push_back(one["ours"]["rounds_us"][i].get<double>() /
                     one["theirs"]["rounds_us"][i].get<double>());
  std::sort(ratios.begin(), ratios.end());
  CHECK(one["ratio"]["median"].get<double>() == Approx(ratios[4]));
  CHECK(one["ratio"]["low"].get<double>() >= ratios[0]);
  CHECK(one["ratio"]["high"].get<double>() <= ratios[8]);
  CHECK(one["ratio"]["median"].get<double>() < 1);
  CHECK(document["theirs"]["environment"]["FAKE_NCCL_DELAY_US"] == "4000");
}

TEST_CASE("a wrong opponent is found as well", "[req:1.36]") {
  expect(1, {"--counts", "64", "-n", "4", "--rounds", "2", "--against", FAKE_NCCL_PATH,
             "--against-env", "FAKE_NCCL_WRONG_AT=5"});
}

TEST_CASE("a rank that dies, fails or stops answering is named", "[req:1.35]") {
  const Words base{"--counts", "64", "-n", "20", "--env", "FAKE_NCCL_RANK=1", "--env"};
  expect(1, base + Words{"FAKE_NCCL_DIE_AT_CALL=15"},
         {"rank 1 (pid ", "was killed by signal 9 (SIGKILL)"});
  expect(1, base + Words{"FAKE_NCCL_FAIL_AT_CALL=15"},
         {"ncclAllReduce: fake error (result 3): as the test asked"});
  const auto hanging = expect(1, base + Words{"FAKE_NCCL_HANG_AT_CALL=15", "-T", "1"},
                              {"no answer from", "rank 1 (pid "});
  CHECK(hanging.seconds < 30);
}

TEST_CASE("--threads, the ranks are threads of one process and each is checked", "[req:5.23]") {
  const Words base{"--threads", "-g", "3", "--counts", "64", "-n", "20", "--rounds", "2"};
  const auto result = expect(0, base + Words{"--against", FAKE_NCCL_PATH});
  const std::vector<pid_t> ranks = pids(result.out);
  CHECK(ranks.size() == 3);
  CHECK(std::count(ranks.begin(), ranks.end(), ranks.at(0)) == 3);
  expect(1, base + Words{"--env", "FAKE_NCCL_WRONG_AT=5"});
  const Words faulty = base + Words{"-T", "1", "--env", "FAKE_NCCL_RANK=1", "--env"};
  expect(1, faulty + Words{"FAKE_NCCL_FAIL_AT_CALL=15"}, {"rank 1 (pid ", "fake error"});
  expect(1, faulty + Words{"FAKE_NCCL_HANG_AT_CALL=15"}, {"no answer from", "rank 1 (pid "});
  expect(1, faulty + Words{"FAKE_NCCL_DIE_AT_CALL=15"}, {"was killed by signal 9 (SIGKILL)"});
}

TEST_CASE("--threads with ranks of a launcher or of several nodes is refused", "[req:5.23]") {
  const Words command = perf_command({"--threads", "--counts", "64"});
  const auto launched = run_program(command, {{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  CHECK(launched.status == 1);
  CHECK(has(launched.err, "2 ranks were started as processes"));
  expect(2, {"--threads", "--per-node", "2"}, {"--threads with --per-node"});
}

TEST_CASE("a report that cannot be written is refused before anything is measured", "[req:1.35]") {
  const std::pair<std::string, std::string> places[] = {
      {"/tmp/no-such-folder/report.json", "No such file or directory"},
      {"/tmp", "this is a folder"}};
  for (const auto& [path, reason] : places) {
    const auto result =
        expect(1, {"--counts", "64", "-n", "10", "-J", path}, {"-J " + path, reason});
    CHECK(rows(result.out).empty());
  }
}

TEST_CASE("a report goes into a device, which does not become a file", "[req:1.35]") {
  const auto result = expect(0, {"--counts", "64", "-n", "10", "-J", "/dev/stdout"});
  CHECK(has(result.out, "\"busbw_gb_per_s\""));
  CHECK(std::filesystem::is_symlink("/dev/stdout"));
}

TEST_CASE("ranks that do not come are named, and where they were waited for", "[req:1.35]") {
  const auto meeting =
      std::filesystem::temp_directory_path() / ("oriel-" + std::to_string(getpid()));
  const auto result = run_program(
      perf_command({"--counts", "64", "-T", "1", "--rendezvous", "file:" + meeting.string()}),
      {{"RANK", "0"}, {"WORLD_SIZE", "3"}});
  INFO(result.out << result.err);
  CHECK(result.status == 1);
  CHECK(has(result.err, "ranks 1, 2 of 3"));
  CHECK(has(result.err, meeting.string()));
}

TEST_CASE("a run that gets SIGTERM ends with its status, and its ranks end too", "[req:1.35]") {
  Program program(perf_command(
      {"--counts", "64", "-n", "10", "--rounds", "9999", "--env", "FAKE_NCCL_DELAY_US=1000"}));
  REQUIRE(program.wait_for_output("(elements)"));
  kill(program.pid(), SIGTERM);
  const auto result = program.wait();
  CHECK(result.status == 128 + SIGTERM);
  const std::vector<pid_t> ranks = pids(result.out);
  for (const pid_t rank : ranks) CHECK_FALSE(is_alive(rank));
  CHECK(ranks.size() == 2);
}

TEST_CASE("a launcher's ranks find each other", "[req:1.35]") {
  const Words measure = perf_command({"--counts", "64", "-n", "10", "--rounds", "2"});
  for (const Words& extra : {Words{}, Words{"--against", FAKE_NCCL_PATH},
                             Words{"--rendezvous", "file:/tmp/oriel-perf-test-meeting"}}) {
    const auto result = run_program(Words{ORIEL_RUN_PATH, "-n", "3"} + measure + extra);
    INFO(result.out << result.err);
    CHECK(result.status == 0);
    CHECK(has(result.out, "3 ranks"));
    CHECK(rows(result.out).size() == 1);
  }
}

TEST_CASE("a dead rank of a launcher ends the run", "[req:1.35]") {
  const auto result =
      run_program(Words{ORIEL_RUN_PATH, "-n", "2"} +
                  perf_command({"--counts", "64", "-n", "100", "-T", "5", "--env",
                                "FAKE_NCCL_RANK=1", "--env", "FAKE_NCCL_DIE_AT_CALL=50"}));
  CHECK(result.status != 0);
  CHECK(result.status != -1);
  CHECK(result.seconds < 30);
}

TEST_CASE("oriel-perf --serve measures one round for each line of its input", "[req:1.35]") {
  const auto result = perf({"--serve", "-e", "4K", "--out-of-place"}, "8 50\n4096 20\n8 50\n");
  INFO(result.err);
  CHECK(result.status == 0);
  const auto answers = rows(result.out);
  REQUIRE(answers.size() == 3);
  for (const Words& answer : answers) {
    CHECK(std::stod(answer.at(0)) > 0);
    CHECK(answer.at(1) == "0");
  }
  CHECK(perf({"--serve", "-e", "4K"}, "8 x\n").status == 1);
  CHECK(perf({"--serve", "-e", "4K"}, "1000000 5\n").status == 1);
}

TEST_CASE("bad arguments are refused with the reason", "[req:1.35]") {
  CHECK(run_program({ORIEL_PERF_PATH, "all_to_all"}).status == 2);
  CHECK(has(perf({"-d", "float128"}).err, "float128"));
  CHECK(perf({"-b", "64", "-e", "8"}).status == 2);
  CHECK(perf({"-f", "0.5"}).status == 2);
  CHECK(has(perf({"--against", "/no/such/lib.so", "--counts", "1"}).err, "/no/such/lib.so"));
  expect(1, {"-G", "1", "--counts", "1"}, {"-G"});
}
