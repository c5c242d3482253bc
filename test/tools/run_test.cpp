// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "program.hpp"
#include "support/words.hpp"

namespace {

using oriel::test::has;
const std::string kRun = ORIEL_RUN_PATH;
using Words = std::vector<std::string>;

ProgramResult oriel_run(Words arguments, const Program::Environment& environment = {}) {
  arguments.insert(arguments.begin(), kRun);
  return run_program(std::move(arguments), environment);
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

// Waits until a file holds a process id, which a rank writes when it is ready.
pid_t read_pid(const std::string& path) {
  for (int i = 0; i < 500; ++i) {
    FILE* file = std::fopen(path.c_str(), "r");
    int pid = 0;
    const bool got = file != nullptr && std::fscanf(file, "%d;", &pid) == 1;
    if (file != nullptr) std::fclose(file);
    if (got) return pid;
    usleep(10'000);
  }
  return -1;
}

std::string fresh_path(const std::string& name) {
  const std::string path = "/tmp/oriel-run-test-" + std::to_string(getpid()) + "-" + name;
  std::remove(path.c_str());
  return path;
}

}  // namespace

TEST_CASE("each rank learns its place", "[req:1.37]") {
  const auto result = oriel_run(
      {"-n", "3", "sh", "-c", "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR"});
  CHECK(result.status == 0);
  CHECK(result.err.empty());
  CHECK(sorted_lines(result.out) ==
        Words{"0 3 0 3 127.0.0.1", "1 3 1 3 127.0.0.1", "2 3 2 3 127.0.0.1"});
}

TEST_CASE("all ranks get the same usable port", "[req:1.37]") {
  const auto result = oriel_run({"-n", "2", "sh", "-c", "echo $MASTER_PORT"});
  const auto lines = sorted_lines(result.out);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == lines[1]);
  CHECK(std::stoi(lines[0]) > 1023);
  const auto chosen = oriel_run(
      {"-n", "1", "--port", "4711", "--host", "::1", "sh", "-c", "echo $MASTER_ADDR $MASTER_PORT"});
  CHECK(chosen.out == "::1 4711\n");
}

TEST_CASE("options behind the program's name go to the program", "[req:1.37]") {
  const auto result = oriel_run({"-n", "1", "echo", "-n", "7", "--tag-output"});
  CHECK(result.out == "7 --tag-output");
}

TEST_CASE("tagged output comes in whole lines", "[req:1.37]") {
  const auto result = oriel_run({"-n", "2", "--tag-output", "sh", "-c",
                                 "printf one; sleep 0.1; echo ' line'; echo oops >&2; printf end"});
  CHECK(result.status == 0);
  CHECK(sorted_lines(result.out) == Words{"[0] end", "[0] one line", "[1] end", "[1] one line"});
  CHECK(sorted_lines(result.err) == Words{"[0] oops", "[1] oops"});
}

TEST_CASE("a rank that fails is named and the others are stopped", "[req:1.37]") {
  const auto result = oriel_run({"-n", "3", "sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 60"});
  CHECK(result.status == 7);
  CHECK(result.seconds < 20);
  CHECK(has(result.err, "rank 1 (pid "));
  CHECK(result.err.find("exited with status 7; stopping the other 2") != std::string::npos);
}

TEST_CASE("a rank that is killed is named with its signal", "[req:1.37]") {
  const auto result = oriel_run({"-n", "2", "sh", "-c", "[ $RANK = 1 ] && kill -9 $$; sleep 60"});
  CHECK(result.status == 137);
  CHECK(has(result.err, "rank 1 (pid "));
  CHECK(has(result.err, "was killed by signal 9 (SIGKILL)"));
}

TEST_CASE("a rank that ignores SIGTERM is killed, with what it started", "[req:1.37]") {
  const std::string path = fresh_path("stubborn");
  const auto result = oriel_run(
      {"-n", "2", "--grace", "0.3", "sh", "-c",
       "if [ $RANK = 1 ]; then while [ ! -s $P ]; do sleep 0.02; done; exit 5; fi;"
       "trap '' TERM; sh -c 'trap \"\" TERM; echo \"$$;\" > $P; while :; do sleep 0.1; done'"},
      {{"P", path}});
  CHECK(result.status == 5);
  CHECK(result.seconds < 20);
  CHECK(has(result.err, "1 rank(s) did not end when asked to"));
  const pid_t grandchild = read_pid(path);
  REQUIRE(grandchild > 0);
  for (int i = 0; i < 100 && is_alive(grandchild); ++i) usleep(10'000);
  CHECK_FALSE(is_alive(grandchild));
  std::remove(path.c_str());
}

TEST_CASE("SIGTERM and SIGINT are passed on", "[req:1.37]") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string path = fresh_path("signal");
    // Background jobs of a shell ignore SIGINT, so the rank is a single process that waits.
    Program program({kRun, "-n", "1", "sh", "-c",
                     "trap 'echo got it; exit 3' TERM INT; echo \"$$;\" > $P;"
                     "while :; do sleep 0.05; done"},
                    {{"P", path}});
    REQUIRE(read_pid(path) > 0);
    kill(program.pid(), signal);
    const auto result = program.wait();
    CHECK(result.status == 128 + signal);
    CHECK(result.out == "got it\n");
    std::remove(path.c_str());
  }
}

TEST_CASE("a run has a time limit if one is given", "[req:1.37]") {
  const auto result = oriel_run({"-n", "2", "--timeout", "0.3", "sleep", "60"});
  CHECK(result.status == 124);
  CHECK(has(result.err, "the time limit has passed"));
}

TEST_CASE("oriel-run reports a program that it cannot run, and a wrong argument", "[req:1.37]") {
  const auto missing = oriel_run({"-n", "2", "/no/such/program"});
  CHECK(missing.status == 127);
  CHECK(has(missing.err, "/no/such/program"));
  CHECK(oriel_run({"-n", "2", "/dev/null"}).status == 126);
  CHECK(oriel_run({"-n", "0", "true"}).status == 2);
  CHECK(oriel_run({"-n", "1", "--grace", "-1", "true"}).status == 2);
}
