// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <sstream>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "nccl.h"

#include "base/log.hpp"
#include "base/settings_table.hpp"
#include "kernels/algorithm.hpp"
#include "support/process_state.hpp"
#include "support/ranks.hpp"

/// Every entry of the C interface: what it gives, what it refuses and in which words, and that a
/// refused call leaves nothing behind.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

// Sanitizers take ten times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kCycles = 103;
#else
constexpr int kCycles = 1003;
#endif

struct Held {
  std::size_t fds;
  std::size_t mappings;
  std::size_t threads;
  bool operator==(const Held&) const = default;
};

Held held() {
#if defined(__SANITIZE_THREAD__)
  // It keeps a thread of its own from the first one that is started in a process on.
  static std::once_flag once;
  std::call_once(once, [] { std::thread([] {}).join(); });
#endif
  // One thread at a time: to list a directory is to have it open.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto begin = std::filesystem::directory_iterator("/proc/self/task");
  const auto threads = std::distance(begin, std::filesystem::directory_iterator{});
  return {count_fds(), count_mappings(), static_cast<std::size_t>(threads)};
}

std::string text_of(const Held& held) {
  return fmt::format("{} fds, {} mappings, {} threads", held.fds, held.mappings, held.threads);
}

/// What init leaves to be closed behind the last rank goes a little later, as do threads that were
/// joined: what is held has been taken once it has stayed the same for a while.
Held settled() {
  Held before = held();
  for (int same = 0; same < 20;) {
    std::this_thread::sleep_for(10ms);
    const Held now = held();
    same = now == before ? same + 1 : 0;
    before = now;
  }
  return before;
}

/// Nothing more is held than was; less is no leak (what init leaves may have gone since).
void require_held(const Held& expected, const std::string& when) {
  const auto within = [&](const Held& now) {
    return now.fds <= expected.fds && now.mappings <= expected.mappings &&
           now.threads <= expected.threads;
  };
  Held now = held();
  for (int i = 0; i < 300 && !within(now); ++i) {
    std::this_thread::sleep_for(10ms);
    now = held();
  }
  require(within(now), fmt::format("{}: {} instead of {}", when, text_of(now), text_of(expected)));
}

ncclComm_t init_alone() {
  ncclUniqueId id;
  require(ncclGetUniqueId(&id), "ncclGetUniqueId");
  ncclComm_t comm = nullptr;
  require(ncclCommInitRank(&comm, 1, id, 0), "ncclCommInitRank");
  return comm;
}

/// In a child process, so that nothing else changes what the process holds.
void run_alone(const std::function<void()>& body) {
  check_all_ok(play(Cast::processes, 1, [&](Players&) { body(); }));
}

TEST_CASE("1.31 queries answer, and refuse null pointers") {
  run_alone([] {
    int version = 0;
    require(ncclGetVersion(&version), "ncclGetVersion");
    require(version == 22809, "the version");
    expect_error(ncclGetVersion(nullptr), ncclInvalidArgument, "ncclGetVersion", {"version"});
    expect_error(ncclGetUniqueId(nullptr), ncclInvalidArgument, "ncclGetUniqueId", {"null"});

    ncclComm_t comm = init_alone();
    int value = -7;
    require(ncclCommCount(comm, &value), "ncclCommCount");
    require(value == 1, "the count");
    require(ncclCommUserRank(comm, &value), "ncclCommUserRank");
    require(value == 0, "the rank");
    require(ncclCommCuDevice(comm, &value), "ncclCommCuDevice");
    require(value == -1, "the device of a host rank");
    ncclResult_t state = ncclInternalError;
    require(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
    require(state == ncclSuccess, "the asynchronous error");

    expect_error(ncclCommCount(comm, nullptr), ncclInvalidArgument, "ncclCommCount", {"count"});
    expect_error(ncclCommUserRank(comm, nullptr), ncclInvalidArgument, "ncclCommUserRank");
    expect_error(ncclCommCuDevice(comm, nullptr), ncclInvalidArgument, "ncclCommCuDevice");
    expect_error(ncclCommGetAsyncError(comm, nullptr), ncclInvalidArgument, "async error");
    expect_error(ncclCommCount(nullptr, &value), ncclInvalidArgument, "ncclCommCount", {"null"});
    expect_error(ncclCommGetAsyncError(nullptr, &state), ncclInvalidArgument, "async error");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

TEST_CASE("1.31 results and errors have words") {
  run_alone([] {
    for (int result = -1; result <= 9; ++result) {
      const char* text = ncclGetErrorString(static_cast<ncclResult_t>(result));
      require(text != nullptr && *text != '\0', "ncclGetErrorString");
      require(text == pncclGetErrorString(static_cast<ncclResult_t>(result)) ||
                  std::strcmp(text, pncclGetErrorString(static_cast<ncclResult_t>(result))) == 0,
              "the twin's words");
    }
    require(std::string(ncclGetLastError(nullptr)).empty(), "no error yet");
    expect_error(ncclCommInitRank(nullptr, 1, ncclUniqueId{}, 0), ncclInvalidArgument,
                 "ncclCommInitRank", {"ncclCommInitRank", "comm is null"});
    // Another thread has its own.
    std::string elsewhere = "?";
    std::thread([&] { elsewhere = ncclGetLastError(nullptr); }).join();
    require(elsewhere.empty(), "another thread's error text: " + elsewhere);
    int value = 0;
    expect_error(pncclGetVersion(nullptr), ncclInvalidArgument, "pncclGetVersion");
    require(pncclGetVersion(&value), "pncclGetVersion");
  });
}

TEST_CASE("1.38 1.31 init refuses bad ranks, ids and configurations") {
  run_alone([] {
    ncclUniqueId id;
    require(ncclGetUniqueId(&id), "ncclGetUniqueId");
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
      require(ncclGetUniqueId(&id), "ncclGetUniqueId");  // each ends with its refused init
      expect_error(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument,
                   "ncclCommInitRankConfig", words);
      require(comm == nullptr, "a failed init leaves null");
    };
    refuse_config([](auto& c) { c.magic = 1; }, {"NCCL_CONFIG_INITIALIZER"});
    refuse_config([](auto& c) { c.size = 4; }, {"ncclConfig_t"});
    refuse_config([](auto& c) { c.size = sizeof c + 8; }, {"bytes"});
    refuse_config([](auto& c) { c.blocking = 2; }, {"blocking", "2"});
    refuse_config([](auto& c) { c.cgaClusterSize = 4; }, {"cgaClusterSize", "4"});
    refuse_config([](auto& c) { c.minCTAs = 0; }, {"minCTAs"});
    refuse_config([](auto& c) { c.maxCTAs = -3; }, {"maxCTAs", "-3"});
    refuse_config([](auto& c) { c.minCTAs = 8, c.maxCTAs = 4; }, {"minCTAs", "maxCTAs"});
    refuse_config([](auto& c) { c.netName = "IB"; }, {"netName", "IB"});
    refuse_config([](auto& c) { c.splitShare = 1; }, {"splitShare"});
    refuse_config([](auto& c) { c.trafficClass = 3; }, {"trafficClass"});
    refuse_config([](auto& c) { c.collnetEnable = 1; }, {"collnetEnable"});
    refuse_config([](auto& c) { c.CTAPolicy = NCCL_CTA_POLICY_ZERO; }, {"CTAPolicy"});
    refuse_config([](auto& c) { c.shrinkShare = 1; }, {"shrinkShare"});
    refuse_config([](auto& c) { c.nvlsCTAs = 2; }, {"nvlsCTAs"});
    refuse_config([](auto& c) { c.nChannelsPerNetPeer = 2; }, {"nChannelsPerNetPeer"});
    refuse_config([](auto& c) { c.nvlinkCentricSched = 1; }, {"nvlinkCentricSched"});

    ncclConfig_t good = NCCL_CONFIG_INITIALIZER;
    good.blocking = 1;
    good.minCTAs = 1;
    good.maxCTAs = 16;
    good.commName = "one";
    require(ncclGetUniqueId(&id), "ncclGetUniqueId");
    require(ncclCommInitRankConfig(&comm, 1, id, 0, &good), "a good configuration");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    comm = init_alone();  // and none at all
    require(ncclCommDestroy(comm), "ncclCommDestroy");

    // An older program's shorter one, whose last bytes are padding and may hold anything.
    ncclConfig_t older = NCCL_CONFIG_INITIALIZER;
    older.version = NCCL_VERSION(2, 14, 3);
    older.blocking = 1;
    older.cgaClusterSize = 77;
    older.size = 24;
    require(ncclGetUniqueId(&id), "ncclGetUniqueId");
    require(ncclCommInitRankConfig(&comm, 1, id, 0, &older), "a configuration of NCCL 2.14");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    older = NCCL_CONFIG_INITIALIZER;
    older.version = NCCL_VERSION(2, 18, 0);
    older.trafficClass = 0;
    older.size = 56;
    require(ncclGetUniqueId(&id), "ncclGetUniqueId");
    require(ncclCommInitRankConfig(&comm, 1, id, 0, &older), "a configuration of NCCL 2.18");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    refuse_config([](auto& c) { c.size = 24, c.cgaClusterSize = 4; }, {"cgaClusterSize", "4"});
    refuse_config([](auto& c) { c.size = 16; }, {"NCCL_CONFIG_INITIALIZER"});
  });
}

TEST_CASE("1.38 a configuration refused on one rank is the same error on all, at once") {
  for (const Cast cast : kCasts) {
    INFO(name_of(cast));
    check_all_ok(play(cast, 2, [](Players& players) {
      const ncclUniqueId id = players.next_id();
      ncclComm_t comms[2] = {};
      const auto begin = std::chrono::steady_clock::now();
      const ncclResult_t result = players.together([&](std::size_t i, int rank) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        if (rank == 1) config.cgaClusterSize = 4;
        return ncclCommInitRankConfig(&comms[i], 2, id, rank, &config);
      });
      expect_error(result, ncclInvalidArgument, "init", {"rank 1", "cgaClusterSize is 4"});
      require(comms[0] == nullptr && comms[1] == nullptr, "a failed init leaves null");
      require(std::chrono::steady_clock::now() - begin < 10s, "long before ORIEL_TIMEOUT");
    }));
  }
}

TEST_CASE("1.38 a non-blocking communicator's refused configuration arrives on all ranks") {
  for (const Cast cast : kCasts) {
    INFO(name_of(cast));
    check_all_ok(play(cast, 2, [](Players& players) {
      const ncclUniqueId id = players.next_id();
      ncclComm_t comms[2] = {};
      const ncclResult_t begun = players.together([&](std::size_t i, int rank) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        if (rank == 1) config.cgaClusterSize = 4;
        return ncclCommInitRankConfig(&comms[i], 2, id, rank, &config);
      });
      require(begun == ncclInProgress, ncclGetLastError(nullptr));
      for (std::size_t i = 0; i < players.ranks().size(); ++i) {
        ncclResult_t state = ncclInProgress;
        for (int k = 0; k < 1000 && state == ncclInProgress; ++k) {
          std::this_thread::sleep_for(10ms);
          require(ncclCommGetAsyncError(comms[i], &state), "ncclCommGetAsyncError");
        }
        const std::string text = ncclGetLastError(comms[i]);
        require(state == ncclInvalidArgument, text);
        require(text.find("rank 1") != std::string::npos, text);
        require(text.find("cgaClusterSize is 4") != std::string::npos, text);
        require(ncclCommDestroy(comms[i]), "ncclCommDestroy");
      }
    }));
  }
}

/// A signal stops the threads of a process one by one: waits until the last has stopped.
bool all_threads_stop(pid_t process) {
  for (int i = 0; i < 1000; ++i) {
    bool all = true;
    for (const auto& thread :
         std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process))) {
      std::ifstream file(thread.path() / "stat");
      std::string stat;
      std::getline(file, stat);
      const std::size_t name_end = stat.rfind(") ");
      all = all && name_end != std::string::npos && stat.compare(name_end, 3, ") T") == 0;
    }
    if (all) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

TEST_CASE("1.38 ranks are told when the process that made the unique id is stopped") {
  Environment environment(Variables{{"ORIEL_TIMEOUT", "1s"}});
  Stage stage(Cast::processes, 2, [](Players& players) {
    const ncclUniqueId id = players.next_id();
    if (players.first() == 0) {
      players.word(0) = 1;
      while (players.word(1) == 0) std::this_thread::sleep_for(1ms);  // stopped meanwhile
      return;
    }
    while (players.word(2) == 0) std::this_thread::sleep_for(1ms);
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRank(&comm, 2, id, 1);
    players.word(1) = 1;
    expect_error(result, ncclSystemError, "init",
                 {"connecting to", "made the unique id is stopped, gone or unreachable"});
  });
  const bool made = stage.wait_for_word(0, 1, 20s);
  stage.kill(0, SIGSTOP);
  const bool stopped = all_threads_stop(stage.pid(0));
  stage.board().words[2] = 1;
  const bool tried = stage.wait_for_word(1, 1, 20s);
  stage.kill(0, SIGCONT);
  CHECK(made);
  CHECK(stopped);
  CHECK(tried);
  check_all_ok(stage.collect(20s));
}

TEST_CASE("1.38 a bad environment value on one rank is the same error on all, at once") {
  check_all_ok(play(Cast::processes, 2, [](Players& players) {
    const ncclUniqueId id = players.next_id();
    Environment environment(Variables{{"ORIEL_SPIN", players.first() == 1 ? "much" : "-1"}});
    ncclComm_t comm = nullptr;
    const auto begin = std::chrono::steady_clock::now();
    expect_error(ncclCommInitRank(&comm, 2, id, players.first()), ncclInvalidUsage, "init",
                 {"rank 1", "ORIEL_SPIN", "much"});
    require(comm == nullptr, "a failed init leaves null");
    require(std::chrono::steady_clock::now() - begin < 10s, "long before ORIEL_TIMEOUT");
  }));
}

TEST_CASE("1.31 1.38 a number of CTAs that cannot be had is refused by name") {
  for (const Cast cast : kCasts) {
    INFO(name_of(cast));
    check_all_ok(play(cast, 2, [](Players& players) {
      const ncclUniqueId id = players.next_id();
      ncclComm_t comms[2] = {};
      const ncclResult_t result = players.together([&](std::size_t i, int rank) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.minCTAs = 8;
        return ncclCommInitRankConfig(&comms[i], 2, id, rank, &config);
      });
      // A CPU rank computes in one.
      expect_error(result, ncclInvalidArgument, "init", {"minCTAs is 8", "but 1 is the most"});
    }));
  }
}

TEST_CASE("1.31 a communicator's name is in its errors and in the log") {
  char path[] = "/tmp/oriel-name-XXXXXX";
  const int fd = ::mkstemp(path);
  REQUIRE(fd >= 0);
  REQUIRE(::close(fd) == 0);
  const auto verdicts = play(Cast::processes, 2, [&](Players& players) {
    Environment environment(Variables{{"ORIEL_LOG", "info"}, {"ORIEL_LOG_FILE", path}});
    reread_log_settings();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    std::string name = "the twins";
    config.commName = name.c_str();
    config.minCTAs = 8;
    const ncclUniqueId id = players.next_id();
    ncclComm_t comm = nullptr;
    expect_error(ncclCommInitRankConfig(&comm, 2, id, players.first(), &config),
                 ncclInvalidArgument, "init",
                 {fmt::format("joining \"the twins\" as rank {} of 2", players.first())});
    config.minCTAs = NCCL_CONFIG_UNDEF_INT;
    comm = players.init(&config)[0];
    name = "forgotten";  // was copied
    players.barrier();   // an abort that comes sooner ends the others' init
    if (players.first() == 1) return require(ncclCommAbort(comm), "ncclCommAbort");
    ncclResult_t state = ncclSuccess;
    for (int i = 0; i < 500 && state == ncclSuccess; ++i) {
      std::this_thread::sleep_for(10ms);
      require(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
    }
    require(state != ncclSuccess, "rank 1's abort did not arrive");
    const std::string text = ncclGetLastError(comm);
    require(text.find("in \"the twins\"") != std::string::npos, "no name in " + text);
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
  std::ostringstream log;
  log << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  check_all_ok(verdicts);
  for (const char* words :
       {"joined \"the twins\" as rank 0 of 2", "rank 1: in \"the twins\": ncclCommAbort"}) {
    INFO("\"" << words << "\" in " << log.str());
    CHECK(log.str().find(words) != std::string::npos);
  }
}

TEST_CASE("1.32 1.38 a destroyed communicator is refused by every call") {
  run_alone([] {
    for (const bool by_abort : {false, true}) {
      ncclComm_t comm = init_alone();
      Buffer buffer(4096);
      require(by_abort ? ncclCommAbort(comm) : ncclCommDestroy(comm), "the end");
      int value = 0;
      ncclResult_t state;
      ncclWindow_t window = nullptr;
      ncclRedOp_t op;
      float scalar = 2;
      const std::vector<std::string> words = {"no communicator", "destroyed"};
      const auto refused = [&](ncclResult_t result, const char* call) {
        expect_error(result, ncclInvalidArgument, call, words);
      };
      refused(ncclCommCount(comm, &value), "ncclCommCount");
      refused(ncclCommUserRank(comm, &value), "ncclCommUserRank");
      refused(ncclCommCuDevice(comm, &value), "ncclCommCuDevice");
      refused(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
      refused(ncclCommFinalize(comm), "ncclCommFinalize");
      refused(ncclCommDestroy(comm), "ncclCommDestroy");
      refused(ncclCommAbort(comm), "ncclCommAbort");
      refused(ncclCommWindowRegister(comm, buffer.at(), 4096, &window, 0), "register");
      refused(ncclCommWindowDeregister(comm, reinterpret_cast<ncclWindow_t>(&value)), "deregister");
      refused(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat, ncclScalarHostImmediate, comm),
              "ncclRedOpCreatePreMulSum");
      refused(ncclRedOpDestroy(static_cast<ncclRedOp_t>(7), comm), "ncclRedOpDestroy");
      refused(ncclAllReduce(buffer.at(), buffer.at(), 1, ncclFloat, ncclSum, comm, nullptr),
              "ncclAllReduce");
      require(std::string(ncclGetLastError(comm)).find("no communicator") != std::string::npos,
              "the text for a destroyed communicator");
      // The place in the table is taken again: the old handle still stands for nothing.
      ncclComm_t next = init_alone();
      require(next != comm, "a handle is not given twice");
      refused(ncclCommCount(comm, &value), "ncclCommCount");
      require(ncclCommDestroy(next), "ncclCommDestroy");
    }
    int value = 0;
    expect_error(ncclCommCount(reinterpret_cast<ncclComm_t>(&value), &value), ncclInvalidArgument,
                 "a pointer to anything");
    require(ncclCommDestroy(nullptr), "ncclCommDestroy of null");
    require(ncclCommAbort(nullptr), "ncclCommAbort of null");
    expect_error(ncclCommFinalize(nullptr), ncclInvalidArgument, "ncclCommFinalize of null");
  });
}

TEST_CASE("1.38 memory calls refuse what they cannot do") {
  run_alone([] {
    void* pointer = &pointer;
    expect_error(ncclMemAlloc(nullptr, 4096), ncclInvalidArgument, "ncclMemAlloc", {"null"});
    expect_error(ncclMemAlloc(&pointer, 0), ncclInvalidArgument, "ncclMemAlloc", {"0 bytes"});
    require(pointer == nullptr, "a failed allocation leaves null");
    expect_error(ncclMemAlloc(&pointer, SIZE_MAX), ncclInvalidArgument, "ncclMemAlloc");
    require(ncclMemFree(nullptr), "ncclMemFree of null");
    int anything = 0;
    expect_error(ncclMemFree(&anything), ncclInvalidArgument, "ncclMemFree", {"ncclMemAlloc"});
    require(ncclMemAlloc(&pointer, 1), "ncclMemAlloc");
    require(reinterpret_cast<std::uintptr_t>(pointer) % NCCL_WIN_REQUIRED_ALIGNMENT == 0,
            "aligned");
    expect_error(ncclMemFree(static_cast<char*>(pointer) + 1), ncclInvalidArgument, "ncclMemFree");
    require(ncclMemFree(pointer), "ncclMemFree");
    expect_error(ncclMemFree(pointer), ncclInvalidArgument, "a second ncclMemFree");
  });
}

TEST_CASE("1.38 an all-reduce refuses what it cannot do, and goes on") {
  run_alone([] {
    ncclComm_t comm = init_alone();
    std::array<float, 64> in{}, out{};
    in[3] = 4;
    const auto call = [&](const void* from, void* to, std::size_t count, int type, int op,
                          void* stream = nullptr) {
      return ncclAllReduce(from, to, count, static_cast<ncclDataType_t>(type),
                           static_cast<ncclRedOp_t>(op), comm, static_cast<cudaStream_t>(stream));
    };
    const auto refused = [&](ncclResult_t result, const std::vector<std::string>& words) {
      expect_error(result, ncclInvalidArgument, "ncclAllReduce", words);
    };
    refused(call(nullptr, out.data(), 8, ncclFloat, ncclSum), {"sendbuff", "null"});
    refused(call(in.data(), nullptr, 8, ncclFloat, ncclSum), {"recvbuff", "null"});
    refused(call(in.data(), out.data(), 8, ncclNumTypes, ncclSum), {"datatype", "12"});
    refused(call(in.data(), out.data(), 8, -1, ncclSum), {"datatype", "-1"});
    refused(call(in.data(), out.data(), 8, ncclFloat, ncclNumOps), {"5"});
    refused(call(in.data(), out.data(), 8, ncclFloat, -1), {"-1"});
    refused(call(in.data(), out.data(), 8, ncclFloat, INT_MAX), {"reduction"});
    refused(call(in.data(), out.data(), SIZE_MAX / 2, ncclFloat, ncclSum), {"count"});
    refused(call(in.data(), in.data() + 1, 8, ncclFloat, ncclSum), {"overlap"});
    refused(call(reinterpret_cast<char*>(in.data()) + 2, out.data(), 8, ncclFloat, ncclSum),
            {"sendbuff", "aligned"});
    refused(call(in.data(), reinterpret_cast<char*>(out.data()) + 1, 8, ncclFloat, ncclSum),
            {"recvbuff", "aligned"});
    refused(call(in.data(), out.data(), 8, ncclFloat, ncclSum, &in), {"stream", "null"});
    require(call(nullptr, nullptr, 0, ncclFloat, ncclSum), "a count of 0");
    require(call(in.data(), in.data() + 8, 8, ncclFloat, ncclSum), "adjacent buffers");
    require(call(in.data(), out.data(), 64, ncclFloat, ncclSum), "after all that");
    require(out == in, "the result of one rank");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

TEST_CASE("1.31 pre-multiplied sums live and die with their communicator") {
  run_alone([] {
    ncclComm_t comm = init_alone();
    ncclComm_t other = init_alone();
    double scalar = 3;
    ncclRedOp_t op;
    const auto create = [&](ncclRedOp_t* out, void* value, int type, int residence) {
      return ncclRedOpCreatePreMulSum(out, value, static_cast<ncclDataType_t>(type),
                                      static_cast<ncclScalarResidence_t>(residence), comm);
    };
    expect_error(create(nullptr, &scalar, ncclDouble, 0), ncclInvalidArgument, "create", {"op"});
    expect_error(create(&op, nullptr, ncclDouble, 0), ncclInvalidArgument, "create", {"scalar"});
    expect_error(create(&op, &scalar, 12, 0), ncclInvalidArgument, "create", {"12"});
    expect_error(create(&op, &scalar, ncclDouble, 2), ncclInvalidArgument, "create", {"residence"});
    require(create(&op, &scalar, ncclDouble, ncclScalarHostImmediate), "create");
    scalar = 100;  // was read before the call returned
    double in = 2;
    double out = 0;
    require(ncclAllReduce(&in, &out, 1, ncclDouble, op, comm, nullptr), "ncclAllReduce");
    require(out == 6, "2 x 3");
    expect_error(ncclAllReduce(&in, &out, 1, ncclFloat, op, comm, nullptr), ncclInvalidArgument,
                 "another type", {"f64", "f32"});
    expect_error(ncclAllReduce(&in, &out, 1, ncclDouble, op, other, nullptr), ncclInvalidArgument,
                 "another communicator", {"reduction"});
    expect_error(ncclRedOpDestroy(op, other), ncclInvalidArgument, "another communicator");
    ncclRedOp_t later;
    require(create(&later, &scalar, ncclDouble, ncclScalarDevice), "create");
    scalar = 5;  // is read at each call
    require(ncclAllReduce(&in, &out, 1, ncclDouble, later, comm, nullptr), "ncclAllReduce");
    require(out == 10, "2 x 5");
    require(ncclRedOpDestroy(op, comm), "ncclRedOpDestroy");
    expect_error(ncclRedOpDestroy(op, comm), ncclInvalidArgument, "a second destroy");
    expect_error(ncclAllReduce(&in, &out, 1, ncclDouble, op, comm, nullptr), ncclInvalidArgument,
                 "a destroyed operation", {"destroyed"});
    expect_error(ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument, "a built-in one");
    require(ncclCommDestroy(other), "ncclCommDestroy");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

TEST_CASE("1.38 1.16 a bad registration is the same error on every rank and leaves nothing") {
  for (const Cast cast : kCasts) {
    INFO(name_of(cast));
    check_all_ok(play(cast, 3, [](Players& players) {
      auto comms = players.init();
      std::vector<Buffer> buffers;
      for (std::size_t i = 0; i < comms.size(); ++i) buffers.emplace_back(1 << 20);
      players.barrier();
      const Held before = settled();
      players.barrier();
      // What rank 1 does wrong; the others call correctly.
      std::vector<char> foreign(1 << 16);
      struct Misuse {
        const char* name;
        std::function<ncclResult_t(ncclComm_t, Buffer&, ncclWindow_t*)> call;
        std::vector<std::string> words;
      };
      const auto misuse = [&](const char* name, void* (*pointer)(Buffer&, char*), std::size_t bytes,
                              int flags, std::vector<std::string> words) {
        return Misuse{name,
                      [=, &foreign](ncclComm_t comm, Buffer& buffer, ncclWindow_t* out) {
                        return ncclCommWindowRegister(comm, pointer(buffer, foreign.data()), bytes,
                                                      out, flags);
                      },
                      std::move(words)};
      };
      const auto own = [](Buffer& buffer, char*) -> void* { return buffer.at(); };
      const std::vector<Misuse> misuses = {
          misuse("null", [](Buffer&, char*) -> void* { return nullptr; }, 65536, 1, {"null"}),
          misuse("size 0", own, 0, 1, {"0"}),
          misuse("past the end", own, 8 << 20, 1, {"8388608"}),
          misuse("misaligned", [](Buffer& b, char*) -> void* { return b.at(8); }, 65536, 1,
                 {"4096"}),
          misuse("malloc",
                 [](Buffer&, char* p) -> void* {
                   return reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(p) + 4095) /
                                                  4096 * 4096);
                 },
                 4096, 1, {"ncclMemAlloc"}),
          Misuse{"no place for the window",
                 [](ncclComm_t comm, Buffer& buffer, ncclWindow_t* out) {
                   *out = nullptr;
                   return ncclCommWindowRegister(comm, buffer.at(), 65536, nullptr, 1);
                 },
                 {"win", "null"}},
          misuse("unknown flags", own, 65536, 0x40, {"flag"}),
          misuse("another size", own, 131072, 1, {"size"}),
          misuse("other flags", own, 65536, 0, {"flags"}),
      };
      for (const Misuse& wrong : misuses) {
        std::vector<ncclWindow_t> windows(comms.size(), reinterpret_cast<ncclWindow_t>(&foreign));
        const ncclResult_t result = players.together([&](std::size_t i, int rank) {
          return rank == 1
                     ? wrong.call(comms[i], buffers[i], &windows[i])
                     : ncclCommWindowRegister(comms[i], buffers[i].at(), 65536, &windows[i], 1);
        });
        const std::string text = ncclGetLastError(nullptr);
        require(result != ncclSuccess, std::string(wrong.name) + " was not refused");
        for (ncclWindow_t window : windows) {
          require(window == nullptr, std::string(wrong.name) + ": a window was given out");
        }
        for (const std::string& word : wrong.words) {
          require(text.find(word) != std::string::npos,
                  fmt::format("{}: no \"{}\" in \"{}\"", wrong.name, word, text));
        }
        require(text.find("rank") != std::string::npos,
                fmt::format("{}: no rank in \"{}\"", wrong.name, text));
        players.barrier();
        require_held(before, wrong.name);
        players.barrier();
      }
      ncclResult_t result = ncclGroupStart();
      std::vector<ncclWindow_t> windows(2 * comms.size(), nullptr);
      for (std::size_t i = 0; i < comms.size(); ++i) {
        require(ncclCommWindowRegister(comms[i], buffers[i].at(), 4096, &windows[2 * i], 1),
                "note");
        if (players.ranks()[i] != 1) continue;
        require(ncclCommWindowRegister(comms[i], buffers[i].at(), 4096, &windows[2 * i + 1], 1),
                "note");
      }
      result = ncclGroupEnd();
      require(result == ncclInvalidUsage,
              fmt::format("another number of windows: {}", ncclGetLastError(nullptr)));
      players.barrier();
      require_held(before, "another number of windows");
      players.barrier();
      // The communicators are as good as new.
      std::vector<void*> pointers;
      for (const Buffer& buffer : buffers) pointers.push_back(buffer.at());
      const auto good = players.register_windows(comms, pointers, 65536);
      for (std::size_t i = 0; i < comms.size(); ++i) {
        require(ncclCommWindowDeregister(comms[i], good[i]), "deregister");
        expect_error(ncclCommWindowDeregister(comms[i], good[i]), ncclInvalidArgument,
                     "a second deregistration", {"window"});
        expect_error(ncclCommWindowDeregister(comms[i], nullptr), ncclInvalidArgument, "null");
      }
      players.destroy(comms);
    }));
  }
}

TEST_CASE("1.38 a window of another communicator is refused") {
  check_all_ok(play(Cast::threads, 2, [](Players& players) {
    auto first = players.init();
    auto second = players.init();
    Buffer buffer(65536);
    const auto window = players.register_windows(first, {buffer.at()}, 65536)[0];
    expect_error(ncclCommWindowDeregister(second[0], window), ncclInvalidArgument,
                 "a window of another communicator", {"window"});
    ncclWindow_t out;
    require(ncclCommWindowRegister(second[0], buffer.at(), 65536, &out, 1), "in both");
    require(ncclCommWindowDeregister(second[0], out), "deregister");
    require(ncclCommWindowDeregister(first[0], window), "deregister");
    players.destroy(first);
    players.destroy(second);
  }));
}

TEST_CASE("1.38 after finalize only queries and the end are allowed") {
  for (const Cast cast : kCasts) {
    INFO(name_of(cast));
    check_all_ok(play(cast, 2, [](Players& players) {
      auto comms = players.init();
      require(players.together([&](std::size_t i, int) { return ncclCommFinalize(comms[i]); }),
              "ncclCommFinalize");
      float value = 1;
      ncclWindow_t window = nullptr;
      Buffer buffer(4096);
      int rank = -1;
      for (ncclComm_t comm : comms) {
        expect_error(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr),
                     ncclInvalidUsage, "ncclAllReduce", {"finalized"});
        expect_error(ncclCommWindowRegister(comm, buffer.at(), 4096, &window, 0), ncclInvalidUsage,
                     "ncclCommWindowRegister", {"finalized"});
        expect_error(ncclCommFinalize(comm), ncclInvalidUsage, "ncclCommFinalize", {"finalized"});
        require(ncclCommUserRank(comm, &rank), "ncclCommUserRank");
      }
      players.destroy(comms);
    }));
  }
}

TEST_CASE("1.38 a bad environment value is named, with what is allowed") {
  Environment environment(Variables{{"ORIEL_TIMEOUT", "soon"}});
  run_alone([] {
    ncclUniqueId id;
    expect_error(ncclGetUniqueId(&id), ncclInvalidUsage, "ncclGetUniqueId",
                 {"ORIEL_TIMEOUT", "soon"});
    void* pointer;
    expect_error(ncclMemAlloc(&pointer, 1), ncclInvalidUsage, "ncclMemAlloc", {"ORIEL_TIMEOUT"});
  });
}

TEST_CASE("1.38 1.39 the algorithms of the settings are those of the kernels") {
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

TEST_CASE("1.38 an algorithm that does not exist is refused at the first call") {
  Environment environment(Variables{{"ORIEL_ALGORITHM", "ring"}});
  run_alone([] {
    ncclUniqueId id;
    expect_error(ncclGetUniqueId(&id), ncclInvalidUsage, "ncclGetUniqueId",
                 {"ORIEL_ALGORITHM", "\"ring\"", "one_shot, two_shot, stream, eager"});
  });
}

TEST_CASE("1.38 a number of CTAs in the environment that cannot be had is refused") {
  Environment environment(Variables{{"ORIEL_CTAS", "2"}});
  for (const Cast cast : kCasts) {
    INFO(name_of(cast));
    check_all_ok(play(cast, 2, [](Players& players) {
      const ncclUniqueId id = players.next_id();
      ncclComm_t comms[2] = {};
      const ncclResult_t result = players.together(
          [&](std::size_t i, int rank) { return ncclCommInitRank(&comms[i], 2, id, rank); });
      expect_error(result, ncclInvalidUsage, "init", {"ORIEL_CTAS is 2", "but 1 is the most"});
    }));
  }
}

TEST_CASE("1.38 ranks whose settings differ are told so, all of them") {
  check_all_ok(play(Cast::processes, 3, [](Players& players) {
    const Held before = held();
    Environment environment(
        Variables{{"ORIEL_ALGORITHM", players.first() == 1 ? "stream" : "one_shot"}});
    const ncclUniqueId id = players.next_id();
    ncclComm_t comm = nullptr;
    expect_error(ncclCommInitRank(&comm, 3, id, players.first()), ncclInvalidUsage, "init",
                 {"ORIEL_ALGORITHM", "one_shot on rank 0, stream on rank 1"});
    require(comm == nullptr, "a failed init leaves null");
    players.barrier();
    require_held(before, "after a refused init");
  }));
}

TEST_CASE("promise 3 cycle 1,003 of create and destroy holds what cycle 3 held") {
  for (const Cast cast : kCasts) {
    INFO(name_of(cast));
    check_all_ok(play(
        cast, 2,
        [](Players& players) {
          Held third{};
          for (int cycle = 1; cycle <= kCycles; ++cycle) {
            auto comms = players.init();
            std::vector<Buffer> buffers;
            std::vector<void*> pointers;
            for (std::size_t i = 0; i < comms.size(); ++i) {
              pointers.push_back(buffers.emplace_back(65536).at());
            }
            players.register_windows(comms, pointers, 65536);
            require(players.together([&](std::size_t i, int) {
              return ncclAllReduce(pointers[i], pointers[i], 1000, ncclFloat, ncclSum, comms[i],
                                   nullptr);
            }),
                    "ncclAllReduce");
            players.destroy(comms);
            buffers.clear();
            players.barrier();
            if (cycle == 3) third = settled();
            players.barrier();
            if (cycle == kCycles) require_held(third, fmt::format("cycle {}", cycle));
            players.barrier();
          }
        },
        100s));
  }
}

}  // namespace
}  // namespace oriel::test
