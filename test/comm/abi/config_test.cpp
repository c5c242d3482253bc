// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nccl.h"

#include "base/log.hpp"
#include "base/settings_table.hpp"
#include "comm/support/held.hpp"
#include "kernels/plan/algorithm.hpp"
#include "support/ranks.hpp"

/// Configurations and environments with which a communicator refuses to start.
namespace oriel::test {
namespace {

TEST_CASE("init refuses bad ranks, ids and configurations", "[req:1.38][req:1.31]") {
  run_alone([] {
    const ncclUniqueId id = new_id();
    const auto refuse = [&](int size, int rank, const std::vector<std::string>& words) {
      int sentinel = 0;
      auto* comm = reinterpret_cast<ncclComm_t>(&sentinel);
      expect_error(ncclCommInitRank(&comm, size, id, rank), ncclInvalidArgument, "init", words);
      require(comm == nullptr, "a failed init leaves null");
    };
    refuse(0, 0, {"rank 0 of 0"});
    refuse(-1, 0, {"-1"});
    refuse(2, 2, {"rank 2 of 2"});
    refuse(2, -1, {"rank -1 of 2"});
    ncclComm_t comm = nullptr;
    ncclUniqueId zero{};
    const ncclResult_t bad_id = ncclCommInitRank(&comm, 1, zero, 0);
    require(bad_id == ncclInvalidArgument || bad_id == ncclInvalidUsage,
            std::string("an id of zeros: ") + ncclGetLastError(nullptr));
    require(comm == nullptr, "a failed init leaves null");

    const auto refuse_config = [&](const std::function<void(ncclConfig_t&)>& set,
                                   const std::vector<std::string>& words) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      set(config);
      // A refused init ends the rendezvous of its id.
      expect_error(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config), ncclInvalidArgument,
                   "ncclCommInitRankConfig", words);
      require(comm == nullptr, "a failed init leaves null");
    };
    refuse_config([](auto& c) { c.magic = 1; }, {"NCCL_CONFIG_INITIALIZER"});
    refuse_config([](auto& c) { c.size = 4; }, {"ncclConfig_t"});
    refuse_config([](auto& c) { c.size = 16; }, {"NCCL_CONFIG_INITIALIZER"});
    refuse_config([](auto& c) { c.size = 23; }, {"NCCL_CONFIG_INITIALIZER"});
    refuse_config([](auto& c) { c.blocking = 2; }, {"blocking", "2"});
    refuse_config([](auto& c) { c.blocking = -1; }, {"blocking", "-1"});

    const auto accept = [&](const char* what, const std::function<void(ncclConfig_t&)>& set) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      set(config);
      require(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config), what);
      require(ncclCommDestroy(comm), "ncclCommDestroy");
    };
    accept("a good configuration",
           [](auto& c) { c.blocking = 1, c.minCTAs = 1, c.maxCTAs = 16, c.commName = "one"; });
    require(ncclCommInitRankConfig(&comm, 1, new_id(), 0, nullptr), "none at all");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

struct RefusedStart {
  const char* name;
  Variables of_all{}, of_rank_1{};
  bool bad_config = false;  // rank 1 passes a bad config
  bool has_place = true;    // rank 1 passes a place for its handle
  ncclResult_t result = ncclInvalidUsage;
  std::vector<std::string> words{};
};

const std::vector<RefusedStart>& refused_starts() {
  static const std::vector<RefusedStart> starts = {
      {.name = "a bad configuration of one rank",
       .bad_config = true,
       .result = ncclInvalidArgument,
       .words = {"rank 1", "blocking is 4"}},
      {.name = "no place for a handle",
       .has_place = false,
       .result = ncclInvalidArgument,
       .words = {"comm is null"}},
      {.name = "more CTAs in the environment",
       .of_all = {{"ORIEL_CTAS", "2"}},
       .words = {"ORIEL_CTAS is 2", "but 1 is the most"}},
      {.name = "a bad value of one rank",
       .of_rank_1 = {{"ORIEL_CTAS", "much"}},
       .words = {"rank 1", "ORIEL_CTAS", "much"}},
      {.name = "settings that differ",
       .of_all = {{"ORIEL_ALGORITHM", "one_shot"}},
       .of_rank_1 = {{"ORIEL_ALGORITHM", "stream"}},
       .words = {"ORIEL_ALGORITHM", "one_shot on rank 0, stream on rank 1"}},
  };
  return starts;
}

TEST_CASE("a start that one rank's configuration or environment forbids is the same error on all",
          "[req:1.31][req:1.38]") {
  for (const RefusedStart& start : refused_starts()) {
    for (const LaunchMode launch_mode : kLaunchModes) {
      // Threads of one process share the environment.
      if (launch_mode != LaunchMode::processes && !start.of_rank_1.empty()) continue;
      INFO(start.name << ", " << name_of(launch_mode));
      const Environment common(start.of_all);
      check_all_ok(run_ranks(launch_mode, 2, [&](TestRanks& test_ranks) {
        const ncclUniqueId id = test_ranks.next_id();
        const Held before = held();
        std::optional<Environment> own;
        if (test_ranks.first() == 1 && launch_mode == LaunchMode::processes)
          own.emplace(start.of_rank_1);
        ncclComm_t comms[2] = {};
        const auto begin = std::chrono::steady_clock::now();
        const ncclResult_t result = test_ranks.together([&](std::size_t i, int rank) {
          ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
          if (rank == 1 && start.bad_config) config.blocking = 4;
          ncclComm_t* const place = rank == 1 && !start.has_place ? nullptr : &comms[i];
          return ncclCommInitRankConfig(place, 2, id, rank, &config);
        });
        expect_error(result, start.result, "init", start.words);
        require(comms[0] == nullptr && comms[1] == nullptr, "a failed init leaves null");
        require(std::chrono::steady_clock::now() - begin < 10s, "long before ORIEL_TIMEOUT");
        test_ranks.barrier();
        if (launch_mode == LaunchMode::processes) require_held(before, "after a refused init");
      }));
    }
  }
}

TEST_CASE("a non-blocking start whose configuration one rank has refused is an error on all ranks",
          "[req:1.38]") {
  check_all_ok(run_ranks(LaunchMode::threads, 2, [](TestRanks& test_ranks) {
    const ncclUniqueId id = test_ranks.next_id();
    ncclComm_t comm = nullptr;
    ncclConfig_t config = non_blocking();
    if (test_ranks.first() == 1) {
      config.blocking = 4;  // refused, so this rank's call blocks
      return expect_error(ncclCommInitRankConfig(&comm, 2, id, 1, &config), ncclInvalidArgument,
                          "init", {"rank 1", "blocking is 4"});
    }
    require(ncclCommInitRankConfig(&comm, 2, id, 0, &config) == ncclInProgress,
            ncclGetLastError(nullptr));
    require(settled_state(comm) == ncclInvalidArgument, ncclGetLastError(comm));
    require_words(ncclGetLastError(comm), {"rank 1", "blocking is 4"});
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

/// Waits until a stop signal has stopped every thread of the process, which happens one by one.
bool all_threads_stop(pid_t process) {
  const auto is_stopped = [](const auto& thread) {
    std::ifstream file(thread.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    return stat.find(") T") != std::string::npos;
  };
  return eventually([&] {
    const std::filesystem::directory_iterator threads(fmt::format("/proc/{}/task", process));
    return std::all_of(begin(threads), end(threads), is_stopped);
  });
}

TEST_CASE("if the process that made the unique id is stopped, init fails and says so",
          "[req:1.38]") {
  Environment environment(Variables{{"ORIEL_TIMEOUT", "1s"}});
  RankFixture fixture(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    const ncclUniqueId id = test_ranks.next_id();
    if (test_ranks.first() == 0) {
      test_ranks.word(0) = 1;
      return test_ranks.await(1);  // this process is stopped meanwhile
    }
    test_ranks.await(2);
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRank(&comm, 2, id, 1);
    test_ranks.word(1) = 1;
    expect_error(result, ncclSystemError, "init",
                 {"connecting to", "made the unique id is stopped, gone or unreachable"});
  });
  const bool made = fixture.wait_for_word(0, 1, 20s);
  fixture.kill(0, SIGSTOP);
  const bool stopped = all_threads_stop(fixture.pid(0));
  fixture.shared().words[2] = 1;
  const bool tried = fixture.wait_for_word(1, 1, 20s);
  fixture.kill(0, SIGCONT);
  CHECK(made);
  CHECK(stopped);
  CHECK(tried);
  check_all_ok(fixture.collect(20s));
}

TEST_CASE("a communicator's name is in its errors and in the log", "[req:1.31]") {
  char path[] = "/tmp/oriel-name-XXXXXX";
  const int fd = ::mkstemp(path);
  REQUIRE(fd >= 0);
  REQUIRE(::close(fd) == 0);
  const auto results = run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    Environment environment(Variables{{"ORIEL_LOG", "info"}, {"ORIEL_LOG_FILE", path}});
    reread_log_settings();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    std::string name = "the twins";
    config.commName = name.c_str();
    const ncclUniqueId id = test_ranks.next_id();
    ncclComm_t comm = nullptr;
    {
      const Environment too_much(Variables{{"ORIEL_CTAS", "2"}});
      expect_error(ncclCommInitRankConfig(&comm, 2, id, test_ranks.first(), &config),
                   ncclInvalidUsage, "init",
                   {fmt::format("joining \"the twins\" as rank {} of 2", test_ranks.first())});
    }
    comm = test_ranks.init(&config)[0];
    name = "forgotten";    // the name was copied
    test_ranks.barrier();  // an earlier abort would end the other rank's init
    if (test_ranks.first() == 1) return require(ncclCommAbort(comm), "ncclCommAbort");
    require(await_failure(comm) != ncclSuccess, "rank 1's abort did not arrive");
    require_words(ncclGetLastError(comm), {"in \"the twins\""});
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
  std::ostringstream log;
  log << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  check_all_ok(results);
  for (const char* words :
       {"VERSION Oriel 0.1.0 with the interface of NCCL 2.28.9",
        "joined \"the twins\" as rank 0 of 2", "rank 1: in \"the twins\": ncclCommAbort"}) {
    INFO("\"" << words << "\" in " << log.str());
    CHECK(log.str().find(words) != std::string::npos);
  }
}

TEST_CASE("a bad environment value is named, with what is allowed", "[req:1.38]") {
  const std::pair<Variables, std::vector<std::string>> cases[] = {
      {{{"ORIEL_TIMEOUT", "soon"}}, {"ORIEL_TIMEOUT", "soon"}},
      {{{"ORIEL_ALGORITHM", "ring"}},
       {"ORIEL_ALGORITHM", "\"ring\"", "one_shot, two_shot, stream, eager"}},
  };
  for (const auto& [variables, words] : cases) {
    const Environment environment(variables);
    run_alone([&, words = words] {
      ncclUniqueId id;
      expect_error(ncclGetUniqueId(&id), ncclInvalidUsage, "ncclGetUniqueId", words);
      void* pointer;
      expect_error(ncclMemAlloc(&pointer, 1), ncclInvalidUsage, "ncclMemAlloc", words);
    });
  }
}

TEST_CASE("ORIEL_ALGORITHM accepts auto and the name of each algorithm of the kernels",
          "[req:1.38][req:1.39]") {
  for (const auto& row : settings_table::rows()) {
    if (std::string_view(row.name) != "ORIEL_ALGORITHM") continue;
    std::string names = "auto";
    for (int i = 0; i < kernels::kAlgorithmCount; ++i) {
      const std::string name = kernels::name_of(static_cast<kernels::Algorithm>(i));
      names += ", " + name;
      Settings settings;
      REQUIRE(settings_table::parse(row.kind, name, settings));
      CHECK(static_cast<int>(settings.algorithm) == i + 1);
    }
    CHECK(settings_table::allowed(row.kind) == names);
    return;
  }
  FAIL("there is no ORIEL_ALGORITHM");
}

TEST_CASE("a table or log file that cannot be had is refused", "[req:1.38][req:1.39]") {
  char table[] = "/tmp/oriel-test-table-XXXXXX";
  const int fd = ::mkstemp(table);
  REQUIRE(fd >= 0);
  ::close(fd);
  std::ofstream(table) << "host 2 max stream 1 1 65536 -1 2\n";
  const std::string pipe = std::string(table) + ".pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const std::pair<Variables, std::vector<std::string>> cases[] = {
      {{{"ORIEL_TABLE", table}}, {"line 1 of the table: depth is \"-1\", but must be 2 to 16"}},
      {{{"ORIEL_LOG_FILE", pipe}, {"ORIEL_LOG", "version"}},
       {"ORIEL_LOG_FILE is", "nobody reads from it"}},
  };
  for (const auto& [variables, parts] : cases) {
    Environment environment(variables);
    check_all_ok(run_ranks(LaunchMode::processes, 2, [&, parts = parts](TestRanks& test_ranks) {
      reread_log_settings();
      const ncclUniqueId id = test_ranks.next_id();
      ncclComm_t comm = nullptr;
      expect_error(ncclCommInitRank(&comm, 2, id, test_ranks.first()), ncclInvalidUsage, "init",
                   parts);
      require(comm == nullptr, "a failed init leaves null");
    }));
  }
  ::unlink(table);
  ::unlink(pipe.c_str());
}

}  // namespace
}  // namespace oriel::test
