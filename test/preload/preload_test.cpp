// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "nccl.h"

#include "tools/program.hpp"

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

const std::string kRun = ORIEL_RUN;
const std::string kLibraries = ORIEL_LIBRARIES;
const std::string kNccl = kLibraries + "/libnccl.so.2";
const std::string kOriel = kLibraries + "/liboriel.so.0";
const std::string kPrograms = ORIEL_PROGRAMS;
const std::string kClient = kPrograms + "/nccl_client";
const std::string kOther = ORIEL_OTHER_NCCL "/libnccl.so.2";
const std::string kOtherBuild = ORIEL_OTHER_BUILD "/liboriel.so.0";
const std::string kVersion = std::to_string(NCCL_VERSION_CODE);
const std::string kFromOriel = "version " + kVersion + "\nsums 10 12 14 16\n";
const std::string kFromOther = "version 10000\n";
const std::string kReport = "oriel-run: ncclAllReduce is " + kOriel + "\n";

// Puts the other library first on the loader's path.
Program::Environment environment(Program::Environment more = {}) {
  more.insert(more.begin(), {{"LD_LIBRARY_PATH", ORIEL_OTHER_NCCL}, {"ORIEL_BACKEND", "host"}});
  return more;
}

ProgramResult run(const Words& command, const Program::Environment& more = {}) {
  return run_program(command, environment(more));
}

ProgramResult oriel_run(Words arguments, const Program::Environment& more = {}) {
  arguments.insert(arguments.begin(), kRun);
  return run(arguments, more);
}

// Returns the opener's output for a library whose calls reach Oriel's forwarder.
std::string shown(const std::string& what) {
  return what + ": " + kVersion + " " + kNccl + "\n";
}

// Ends the program as skipped; each case that calls this is a ctest entry of its own.
[[noreturn]] void skip(const char* reason) {
  std::printf("skipped: %s\n", reason);
  std::fflush(stdout);
  std::_Exit(77);
}

}  // namespace

TEST_CASE("an existing program with Oriel's libnccl.so.2 preloaded runs on Oriel", "[req:4.14]") {
  const auto before = run({kClient});
  CHECK(before.out == kFromOther);
  CHECK(before.status == 3);
  const auto after = run({kClient}, {{"LD_PRELOAD", kNccl}});
  CHECK(after.out == kFromOriel);
  CHECK(after.err.empty());
  CHECK(after.status == 0);
}

TEST_CASE("Oriel's libnccl.so.2 opened by its full path answers, in either scope", "[req:4.14]") {
  const std::string scope = GENERATE("local:", "global:");
  const auto alone = run({kPrograms + "/nccl_opener", scope + kNccl});
  CHECK_THAT(alone.out, StartsWith(shown(scope + kNccl)));
  CHECK(alone.status == 0);
}

TEST_CASE("each of two libraries opened by full path keeps its own entries", "[req:4.14]") {
  const std::string ours = "local:" + kNccl, theirs = "global:" + kOther;
  const Words order = GENERATE_COPY(Words{ours, theirs}, Words{theirs, ours});
  const auto both = run({kPrograms + "/nccl_opener", order[0], order[1]});
  CHECK_THAT(both.out, Contains(shown(ours)));
  CHECK_THAT(both.out, Contains(theirs + ": 10000 " + kOther));
}

TEST_CASE("another library opened by a program does not replace the preloaded one", "[req:4.14]") {
  const std::string theirs = "global:" + kOther;
  const auto result = run({kPrograms + "/nccl_opener", theirs}, {{"LD_PRELOAD", kNccl}});
  CHECK(result.out == theirs + ": 10000 " + kOther + "\n" + shown("process"));
}

TEST_CASE("liboriel.so.0 is found beside libnccl.so.2 before the loader's path", "[req:4.14]") {
  const auto result =
      run({kPrograms + "/nccl_opener", "local:" + kNccl}, {{"LD_LIBRARY_PATH", ORIEL_OTHER_BUILD}});
  CHECK_THAT(result.out, StartsWith(shown("local:" + kNccl)));
}

TEST_CASE("libnccl.so.2 refuses a liboriel.so.0 of another build and names both", "[req:4.14]") {
  const auto opened = run({kPrograms + "/nccl_opener", "local:" + kOtherBuild, "local:" + kNccl});
  CHECK(opened.status == 1);
  CHECK_THAT(opened.err, StartsWith(kOtherBuild + ": version `ORIEL_BUILD_"));
  CHECK_THAT(opened.err, Contains("not found (required by " + kNccl + ")"));
  const auto preloaded = run({kClient}, {{"LD_PRELOAD", kOtherBuild + ":" + kNccl}});
  CHECK(preloaded.status == 1);
  CHECK_THAT(preloaded.err, Contains(kOtherBuild + ": version `ORIEL_BUILD_"));
}

TEST_CASE("a forwarded call costs less than 5 ns more than a direct one", "[req:4.14]") {
  using Clock = std::chrono::steady_clock;
  using Function = const char* (*)(ncclResult_t);
  const auto find = [](const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library != nullptr);
    return reinterpret_cast<Function>(dlsym(library, "ncclGetErrorString"));
  };
  const auto least_ns = [](Function named) {
    volatile Function function = named;
    constexpr int kCalls = 20'000;
    double least = std::numeric_limits<double>::max();
    for (int round = 0; round < 100; ++round) {
      const auto begin = Clock::now();
      for (int i = 0; i < kCalls; ++i) function(ncclSuccess);
      const std::chrono::duration<double, std::nano> spent = Clock::now() - begin;
      least = std::min(least, spent.count() / kCalls);
    }
    return least;
  };
  const Function forwarded = find(kNccl), direct = find(kOriel);
  REQUIRE(forwarded != nullptr);
  REQUIRE(forwarded != direct);
  const double through = least_ns(forwarded), straight = least_ns(direct);
  std::printf("forwarded %.2f ns, direct %.2f ns\n", through, straight);
  CHECK(through - straight < 5);
}

TEST_CASE("oriel-run --preload runs an existing program once and says where its calls go",
          "[req:4.14]") {
  const auto result = oriel_run({"--preload", kClient});
  CHECK(result.out == kFromOriel);
  CHECK(result.err == kReport);
  CHECK(result.status == 0);
  CHECK(oriel_run({"--preload", "sh", "-c", "exit 7"}).status == 7);
  CHECK(oriel_run({"--preload", "sh", "-c", "echo ${RANK-none}"}).out == "none\n");
}

TEST_CASE("oriel-run --preload -n runs as many copies and reports once", "[req:4.14]") {
  const auto result =
      oriel_run({"--preload", "-n", "2", "sh", "-c", kClient + "; exit $((4 * RANK))"});
  CHECK(result.status == 4);
  CHECK_THAT(result.err, StartsWith(kReport));
  CHECK(result.err.find("ncclAllReduce", kReport.size()) == std::string::npos);
  const auto quiet = oriel_run({"--preload", "-n", "2", kClient});
  CHECK(quiet.err == kReport);
  CHECK(std::count(quiet.out.begin(), quiet.out.end(), '\n') == 4);
  CHECK(quiet.out.find(kFromOther) == std::string::npos);
}

TEST_CASE("a libnccl.so.2 opened by its full path is replaced under oriel-run --preload",
          "[req:4.14]") {
  const std::string theirs = "global:" + kOther;
  const auto result = oriel_run({"--preload", kPrograms + "/nccl_opener", theirs});
  CHECK(result.out == shown(theirs) + shown("process"));
  CHECK(result.err == kReport);
}

TEST_CASE("NVIDIA's library opened by its full path is replaced under oriel-run --preload",
          "[.][vendor][req:4.14]") {
  const std::string vendor = ORIEL_VENDOR_NCCL;
  if (vendor.empty()) skip("there is no NVIDIA libnccl.so.2 on this machine");
  const std::string theirs = "local:" + vendor;
  CHECK_THAT(run({kPrograms + "/nccl_opener", theirs}).out, Contains(vendor));
  CHECK_THAT(oriel_run({"--preload", kPrograms + "/nccl_opener", theirs}).out,
             StartsWith(shown(theirs)));
}

TEST_CASE("plug-ins whose names begin like libnccl.so.2 are left alone", "[req:4.14]") {
  const std::string plugin = std::string("local:") + ORIEL_PROFILER;
  const auto result = oriel_run({"--preload", kPrograms + "/nccl_opener", plugin});
  CHECK_THAT(result.out, StartsWith(plugin + ": 0 " + ORIEL_PROFILER));
}

TEST_CASE("Python processes that open another library by its path run on Oriel",
          "[.][python][req:4.14]") {
  if (std::string(ORIEL_PYTHON).empty()) skip("there is no Python 3");
  const auto before = run({ORIEL_PYTHON, ORIEL_CLIENT_PY, kOther});
  CHECK_THAT(before.out, StartsWith("0 10000 3 "));
  const auto result = oriel_run({"--preload", ORIEL_PYTHON, ORIEL_CLIENT_PY, kOther});
  const std::string sums = " " + kVersion + " 0 [10.0, 12.0, 14.0, 16.0]\n";
  CHECK(result.out == "0" + sums + "1" + sums);
  CHECK(result.err == kReport);
}

TEST_CASE("a profiler preloaded before Oriel sees the calls and is named", "[req:4.14]") {
  const auto result = oriel_run({"--preload", kClient}, {{"LD_PRELOAD", ORIEL_PROFILER}});
  CHECK(result.out == kFromOriel);
  CHECK_THAT(result.err, Contains("ncclAllReduce is " ORIEL_PROFILER ", which is not Oriel"));
  CHECK_THAT(result.err, Contains("profiler: 4 elements"));
}

TEST_CASE("a libnccl.so.2 opened by its name is Oriel's if that is preloaded", "[req:4.14]") {
  const Words command = {kPrograms + "/nccl_opener", "local:libnccl.so.2"};
  CHECK_THAT(run(command).out, StartsWith("local:libnccl.so.2: 10000 " + kOther));
  CHECK_THAT(run(command, {{"LD_PRELOAD", kNccl}}).out, StartsWith(shown("local:libnccl.so.2")));
  CHECK_THAT(oriel_run({"--preload", command[0], command[1]}).out,
             StartsWith(shown("local:libnccl.so.2")));
}

TEST_CASE("the loader's own report of bindings names Oriel's file", "[req:4.14]") {
  const auto result = oriel_run({"--preload", kClient}, {{"LD_DEBUG", "bindings"}});
  CHECK_THAT(result.err,
             Contains(kClient + " [0] to " + kNccl + " [0]: normal symbol `ncclAllReduce'"));
}

TEST_CASE("a program that links NCCL statically is named as such", "[req:4.14]") {
  struct Case {
    std::string program, said;
  };
  const auto one = GENERATE(
      Case{"nccl_client_static", "links NCCL statically: it defines ncclAllReduce itself"},
      Case{"nccl_client_stripped", "seems to link NCCL statically: it has no symbol table"},
      Case{"nccl_client_without_loader", "links NCCL statically"});
  const std::string program = kPrograms + "/" + one.program;
  CHECK(run({program}, {{"LD_PRELOAD", kNccl}}).out == kFromOther);
  const auto result = oriel_run({"--preload", program});
  CHECK_THAT(result.err, StartsWith("oriel-run: " + program + " " + one.said));
  CHECK(result.err.find("ncclAllReduce is") == std::string::npos);
  CHECK(result.out == kFromOther);
  CHECK(result.status == 3);
}

TEST_CASE("a library that uses NCCL reaches Oriel unless it binds its calls to NCCL in itself",
          "[req:4.14]") {
  struct Case {
    std::string library;
    bool redirected;
  };
  const auto one = GENERATE(Case{"client_rpath", true}, Case{"client_visible", true},
                            Case{"client_symbolic", false}, Case{"client_hidden", false});
  CAPTURE(one.library);
  const Words command = {kPrograms + "/library_user",
                         ORIEL_CLIENT_LIBRARIES "/" + one.library + ".so"};
  const Program::Environment no_path = {{"LD_LIBRARY_PATH", ""}};
  CHECK(run(command, no_path).out == kFromOther);
  const std::string& expected = one.redirected ? kFromOriel : kFromOther;
  CHECK(run(command, {{"LD_LIBRARY_PATH", ""}, {"LD_PRELOAD", kNccl}}).out == expected);
  CHECK(oriel_run({"--preload", command[0], command[1]}, no_path).out == expected);
}

// Set-group-ID stands in for set-user-ID: the loader treats both alike, and a set-user-ID
// program could not read a private build folder.
TEST_CASE("a set-group-ID program keeps its own library, and oriel-run says so",
          "[.][root][req:4.14]") {
  const std::string client = kPrograms + "/nccl_client_rpath";
  const std::string copy = "/tmp/oriel-set-group-id-" + std::to_string(::getpid());
  constexpr gid_t kOtherGroup = 65534;
  struct statvfs where {};
  if (::geteuid() != 0 || ::getegid() == kOtherGroup) skip("only root makes set-group-ID programs");
  if (::statvfs("/tmp", &where) != 0 || (where.f_flag & ST_NOSUID) != 0) {
    skip("/tmp is mounted with nosuid");
  }
  fs::copy_file(client, copy, fs::copy_options::overwrite_existing);
  const auto before = oriel_run({"--preload", copy});
  REQUIRE(::chown(copy.c_str(), 0, kOtherGroup) == 0);
  REQUIRE(::chmod(copy.c_str(), S_ISGID | 0755) == 0);
  const auto after = oriel_run({"--preload", copy});
  fs::remove(copy);
  CHECK(before.out == kFromOriel);
  CHECK(before.err == kReport);
  CHECK(after.out == kFromOther);
  CHECK_THAT(after.err, StartsWith("oriel-run: " + copy + " is a set-user-ID or set-group-ID"));
  CHECK(after.err.find("ncclAllReduce is") == std::string::npos);
}

TEST_CASE("a static executable is named as beyond the loader's reach", "[req:4.14]") {
  const std::string program = kPrograms + "/static_nothing";
  const auto result = oriel_run({"--preload", program});
  CHECK_THAT(result.err, StartsWith("oriel-run: " + program + " is a static executable"));
}

TEST_CASE("oriel-run --preload says what it cannot run", "[req:4.14]") {
  const auto missing = oriel_run({"--preload", "/no/such/program"});
  CHECK(missing.status == 127);
  CHECK_THAT(missing.err, Contains("/no/such/program"));
  CHECK(oriel_run({"--preload"}).status == 2);
}
