// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "nccl.h"

#include "base/log.hpp"
#include "comm/support/held.hpp"
#include "support/ranks.hpp"

/// Calls that move no data: init with several ids, buffer registration, simulated groups,
/// revocation, and calls that are refused by name.
namespace oriel::test {
namespace {

std::vector<ncclUniqueId> next_ids(TestRanks& test_ranks, int count) {
  std::vector<ncclUniqueId> ids;
  for (int i = 0; i < count; ++i) ids.push_back(test_ranks.next_id());
  return ids;
}

/// Sums rank + 1 over all ranks.
void require_sum_of_ranks(TestRanks& test_ranks, const std::vector<ncclComm_t>& comms) {
  std::vector<float> data;
  for (const int rank : test_ranks.ranks()) data.push_back(static_cast<float>(rank + 1));
  require(test_ranks.together([&](std::size_t i, int) { return sum(&data[i], 1, comms[i]); }),
          "sum");
  const int size = test_ranks.size();
  for (const float value : data) {
    require(value == static_cast<float>(size * (size + 1) / 2), "the sum of ranks");
  }
}

TEST_CASE("a start by several ids joins all ranks at the first, for each number of ids",
          "[req:5.16]") {
  run_in_all_modes(3, [](TestRanks& test_ranks) {
    for (int count = 1; count <= 3; ++count) {
      auto ids = next_ids(test_ranks, count);
      std::vector<ncclComm_t> comms(test_ranks.ranks().size());
      require(test_ranks.together([&](std::size_t i, int rank) {
        return ncclCommInitRankScalable(&comms[i], 3, rank, count, ids.data(), nullptr);
      }),
              "ncclCommInitRankScalable");
      require_sum_of_ranks(test_ranks, comms);
      test_ranks.destroy(comms);
    }
  });
}

TEST_CASE("a start by ids that cannot be read is refused at once, the handle is null",
          "[req:5.16]") {
  run_alone([] {
    int sentinel = 0;
    auto* comm = reinterpret_cast<ncclComm_t>(&sentinel);
    ncclUniqueId id = new_id();
    const auto refuse = [&](int size, int rank, int count, ncclUniqueId* ids,
                            const std::vector<std::string>& words) {
      comm = reinterpret_cast<ncclComm_t>(&sentinel);
      expect_error(ncclCommInitRankScalable(&comm, size, rank, count, ids, nullptr),
                   ncclInvalidArgument, "init", words);
      require(comm == nullptr, "a failed init leaves null");
    };
    refuse(1, 0, 1, nullptr, {"ncclCommInitRankScalable", "commIds is null"});
    refuse(1, 0, 0, &id, {"nId is 0", "1 to 1"});
    refuse(2, 0, -1, &id, {"nId is -1", "1 to 2"});
    refuse(2, 2, 1, &id, {"rank 2 of 2"});
    refuse(0, 0, 1, &id, {"rank 0 of 0"});
    expect_error(ncclCommInitRankScalable(nullptr, 1, 0, 1, &id, nullptr), ncclInvalidArgument,
                 "init", {"comm is null"});
  });
}

TEST_CASE("a start whose further ids are wrong on one rank is the same error on all ranks",
          "[req:5.16]") {
  for (const LaunchMode launch_mode : kLaunchModes) {
    INFO(name_of(launch_mode));
    check_all_ok(run_ranks(launch_mode, 2, [](TestRanks& test_ranks) {
      const auto refused = [&](int count, bool is_damaged, const std::vector<std::string>& words) {
        auto ids = next_ids(test_ranks, 2);
        auto damaged = ids;
        if (is_damaged) damaged[1] = ncclUniqueId{};
        std::array<ncclComm_t, 2> comms{};
        const ncclResult_t result = test_ranks.together([&](std::size_t i, int rank) {
          return rank == 1
                     ? ncclCommInitRankScalable(&comms[i], 2, rank, count, damaged.data(), nullptr)
                     : ncclCommInitRankScalable(&comms[i], 2, rank, 2, ids.data(), nullptr);
        });
        expect_error(result, ncclInvalidArgument, "init", words);
        require(comms[0] == nullptr && comms[1] == nullptr, "a failed init leaves null");
      };
      refused(3, false, {"rank 1", "nId is 3"});
      refused(2, true, {"rank 1", "commIds[1]"});
    }));
  }
}

TEST_CASE("a non-blocking start with too many ids on one rank reports the error by every handle",
          "[req:5.16]") {
  check_all_ok(run_ranks(LaunchMode::threads, 2, [](TestRanks& test_ranks) {
    auto ids = next_ids(test_ranks, 2);
    const int rank = test_ranks.first();
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    require(ncclCommInitRankScalable(&comm, 2, rank, rank == 1 ? 3 : 2, ids.data(), &config) ==
                ncclInProgress,
            ncclGetLastError(nullptr));
    require(settled_state(comm) == ncclInvalidArgument, ncclGetLastError(comm));
    require_words(ncclGetLastError(comm), {"rank 1", "nId is 3"});
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a registration takes any memory, its handle ends once and with its communicator only",
          "[req:5.16]") {
  run_alone([] {
    ncclComm_t comm = init_alone();
    ncclComm_t other = init_alone();
    std::vector<float> heap(1000);
    char stack[64];
    const Buffer window(8192);
    void* handles[4] = {};
    require(ncclCommRegister(comm, heap.data(), 4000, &handles[0]), "heap memory");
    require(ncclCommRegister(comm, stack, sizeof stack, &handles[1]), "the stack");
    require(ncclCommRegister(comm, window.at(), 8192, &handles[2]), "memory of ncclMemAlloc");
    require(ncclCommRegister(comm, heap.data(), 4000, &handles[3]), "the same memory again");
    for (void* handle : handles) require(handle != nullptr, "a handle");
    require(handles[0] != handles[3], "each registration has its handle");

    expect_error(ncclCommDeregister(other, handles[0]), ncclInvalidArgument,
                 "another communicator's handle", {"ncclCommDeregister", "no registration"});
    expect_error(ncclCommDeregister(comm, &stack), ncclInvalidArgument, "an address");
    for (void* handle : handles) require(ncclCommDeregister(comm, handle), "ncclCommDeregister");
    expect_error(ncclCommDeregister(comm, handles[0]), ncclInvalidArgument, "a second time");
    require(ncclCommDeregister(comm, nullptr), "null is allowed");

    void* again = nullptr;
    require(ncclCommRegister(comm, stack, sizeof stack, &again), "ncclCommRegister");
    for (void* handle : handles) require(again != handle, "an old handle is not used again");
    require_sum(std::vector<ncclComm_t>{comm});
    destroy(std::vector<ncclComm_t>{comm, other});
    expect_error(ncclCommDeregister(comm, again), ncclInvalidArgument, "a destroyed communicator",
                 {"no communicator"});
  });
}

TEST_CASE("a registration of no memory, or without a place for its handle, is refused",
          "[req:5.16]") {
  run_alone([] {
    ncclComm_t comm = init_alone();
    int sentinel = 0;
    void* handle = &sentinel;
    expect_error(ncclCommRegister(comm, nullptr, 8, &handle), ncclInvalidArgument, "null",
                 {"ncclCommRegister", "buff is null"});
    require(handle == nullptr, "a failed registration leaves null");
    expect_error(ncclCommRegister(comm, &sentinel, SIZE_MAX, &handle), ncclInvalidArgument,
                 "too long", {"beyond the address space"});
    expect_error(ncclCommRegister(comm, &sentinel, 4, nullptr), ncclInvalidArgument, "no place",
                 {"handle is null"});
    expect_error(ncclCommRegister(nullptr, &sentinel, 4, &handle), ncclInvalidArgument, "no comm",
                 {"communicator is null"});
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

TEST_CASE("a registration in a group is made at once, none follows the end of a communicator",
          "[req:5.16]") {
  run_in_all_modes(2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    float data = 0;
    std::vector<void*> handles(comms.size());
    require(test_ranks.together([&](std::size_t i, int) {
      require(ncclCommRegister(comms[i], &data, sizeof data, &handles[i]), "ncclCommRegister");
      require(handles[i] != nullptr, "a handle before the group has ended");
      return ncclCommFinalize(comms[i]);
    }),
            "ncclCommFinalize");
    for (std::size_t i = 0; i < comms.size(); ++i) {
      void* late = nullptr;
      expect_error(ncclCommRegister(comms[i], &data, sizeof data, &late), ncclInvalidUsage,
                   "after the end", {"has been finalized"});
      require(ncclCommDeregister(comms[i], handles[i]), "deregistered after the end");
    }
    test_ranks.destroy(comms);
  });
}

TEST_CASE("a destroyed communicator frees its registrations, their places serve the next one",
          "[req:5.16]") {
  run_alone([] {
    const auto place_of = [](void* handle) {
      return reinterpret_cast<std::uintptr_t>(handle) & 0xffffff;
    };
    int data = 0;
    std::uintptr_t largest = 0;
    for (int cycle = 0; cycle < 4; ++cycle) {
      ncclComm_t comm = init_alone();
      for (int i = 0; i < 100; ++i) {
        void* handle = nullptr;
        require(ncclCommRegister(comm, &data, sizeof data, &handle), "ncclCommRegister");
        if (cycle == 0) largest = std::max(largest, place_of(handle));
        require(place_of(handle) <= largest, "the places of an earlier communicator are free");
      }
      require(ncclCommDestroy(comm), "ncclCommDestroy");
    }
  });
}

TEST_CASE("a simulated group has no effect, its id starts a communicator afterwards",
          "[req:5.16]") {
  run_in_all_modes(2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    const ncclUniqueId id = test_ranks.next_id();
    std::vector<ncclComm_t> more(comms.size());
    std::vector<float> data(comms.size(), 1.0f);
    std::vector<std::unique_ptr<Buffer>> buffers;
    ncclWindow_t window = nullptr;
    require(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t i = 0; i < comms.size(); ++i) {
      buffers.push_back(std::make_unique<Buffer>(8192));
      require(ncclCommInitRank(&more[i], 2, id, test_ranks.ranks()[i]), "noted");
      require(more[i] != nullptr, "a handle in the group");
      require(sum(&data[i], 1, comms[i]), "noted");
      require(ncclCommWindowRegister(comms[i], buffers[i]->at(), 8192, &window, 0), "noted");
      require(ncclCommFinalize(comms[i]), "noted");
    }
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    info.estimatedTime = 7;
    require(ncclGroupSimulateEnd(&info), "ncclGroupSimulateEnd");
    require(info.estimatedTime > 0 && info.estimatedTime < 1000, "the time of the sums");
    for (std::size_t i = 0; i < comms.size(); ++i) {
      require(more[i] == nullptr && window == nullptr && data[i] == 1.0f, "no effect");
    }
    require_sum_of_ranks(test_ranks, comms);
    require(test_ranks.together(
                [&](std::size_t i, int rank) { return ncclCommInitRank(&more[i], 2, id, rank); }),
            "the id is still good");
    require_sum_of_ranks(test_ranks, more);
    test_ranks.destroy(more);
    test_ranks.destroy(comms);
  });
}

/// Returns the estimate for a group of the calls that `note` notes.
template <class Note>
float estimate_of(const Note& note) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  require(ncclGroupStart(), "ncclGroupStart");
  note();
  require(ncclGroupSimulateEnd(&info), "ncclGroupSimulateEnd");
  return info.estimatedTime;
}

TEST_CASE("a simulated group adds the calls of a communicator, but not of several", "[req:5.16]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    const ncclComm_t comm = test_ranks.init()[0], other = test_ranks.init()[0];
    std::vector<float> data(std::size_t{1} << 20);
    const int peer = 1 - test_ranks.first();
    const auto send = [&](std::size_t count) {
      require(ncclSend(data.data(), count, ncclFloat, peer, comm, nullptr), "noted");
    };
    const auto add = [&](std::size_t count, ncclComm_t on) {
      require(sum(data.data(), count, on), "noted");
    };
    require(estimate_of([] {}) == NCCL_UNDEF_FLOAT, "a group without calls");
    const float short_sum = estimate_of([&] { add(1, comm); });
    const float long_sum = estimate_of([&] { add(data.size(), comm); });
    require(short_sum > 0 && long_sum > 10 * short_sum, "a long call takes longer");
    const float both = estimate_of([&] {
      add(1, comm);
      add(data.size(), comm);
    });
    require(both > long_sum && both < long_sum + 2 * short_sum, "calls of one communicator");
    const float apart = estimate_of([&] {
      add(1, other);
      add(data.size(), comm);
    });
    require(apart == long_sum, "calls of two communicators");
    const float sends = estimate_of([&] {
      send(data.size() / 2);
      send(data.size() / 2);
    });
    require(sends == estimate_of([&] { send(data.size()); }), "sends are one exchange");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    require(ncclCommDestroy(other), "ncclCommDestroy");
  }));
}

TEST_CASE("a simulated group inside another only counts, the outer one runs what both have noted",
          "[req:5.16]") {
  run_alone([] {
    ncclComm_t comm = init_alone();
    float from = 3, to = 0;
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    info.estimatedTime = 7;
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclAllReduce(&from, &to, 1, ncclFloat, ncclSum, comm, nullptr), "noted");
    require(ncclGroupSimulateEnd(&info), "the inner end");
    require(info.estimatedTime == 7, "left as it was");
    require(ncclGroupEnd(), "ncclGroupEnd");
    require(to == 3, "the collective has run");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

TEST_CASE("a simulated group returns the error of a refused call, and closes for wrong information",
          "[req:5.16]") {
  run_alone([] {
    ncclComm_t comm = init_alone();
    float data = 1;
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    const auto require_closed = [&](const std::string& when) {
      expect_error(ncclGroupSimulateEnd(&info), ncclInvalidUsage, when.c_str(),
                   {"ncclGroupSimulateEnd", "without ncclGroupStart"});
      require(sum(&data, 1, comm), "a call outside groups");
    };
    require_closed("before any group");

    require(ncclGroupStart(), "ncclGroupStart");
    require(sum(nullptr, 1, comm) == ncclInvalidArgument, "a refused call");
    require(ncclGroupSimulateEnd(&info) == ncclInvalidArgument, "the refused call's error");
    require_closed("after the refused call");

    const std::pair<const char*, std::function<void(ncclSimInfo_t&)>> cases[] = {
        {"size", [](ncclSimInfo_t& i) { i.size = 16; }},
        {"magic", [](ncclSimInfo_t& i) { i.magic = 0xcafebeef; }},
        {"version", [](ncclSimInfo_t& i) { i.version = NCCL_VERSION(2, 21, 5); }},
    };
    for (const auto& [name, damage] : cases) {
      ncclSimInfo_t wrong = NCCL_SIM_INFO_INITIALIZER;
      wrong.estimatedTime = 7;
      damage(wrong);
      require(ncclGroupStart(), "ncclGroupStart");
      expect_error(ncclGroupSimulateEnd(&wrong), ncclInvalidArgument, name,
                   {"ncclSimInfo_t", "NCCL_SIM_INFO_INITIALIZER"});
      require(wrong.estimatedTime == 7, "left as it was");
      require_closed(name);
    }
    require(ncclGroupStart(), "ncclGroupStart");
    expect_error(ncclGroupSimulateEnd(nullptr), ncclInvalidArgument, "null", {"simInfo is null"});
    require_closed("null");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

TEST_CASE("a revoked communicator fails calls and answers queries, its peers get an error",
          "[req:5.16]") {
  for (const LaunchMode launch_mode : {LaunchMode::processes, LaunchMode::threads}) {
    INFO(name_of(launch_mode));
    check_all_ok(run_ranks(launch_mode, 2, [](TestRanks& test_ranks) {
      ncclComm_t comm = test_ranks.init()[0];
      test_ranks.barrier();  // an earlier revocation would end the other rank's init
      float data = 1;
      if (test_ranks.first() == 0) {
        expect_error(sum(&data, 1, comm), ncclRemoteError, "a call that waits for rank 1",
                     {"rank 1", "ncclCommRevoke was called"});
        require(state_of(comm) == ncclRemoteError, "the peer's state");
      }
      require(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), "ncclCommRevoke");
      require(state_of(comm) == ncclSuccess, "the state of a revoked communicator");
      require_words(ncclGetLastError(comm), {"ncclCommRevoke was called"});
      const ncclResult_t expected = test_ranks.first() == 0 ? ncclRemoteError : ncclInvalidUsage;
      expect_error(sum(&data, 1, comm), expected, "a collective", {"ncclCommRevoke was called"});
      require(ncclCommFinalize(comm) == expected, "ncclCommFinalize");
      void* handle = nullptr;
      require(ncclCommRegister(comm, &data, sizeof data, &handle) == expected, "ncclCommRegister");
      int size = 0;
      require(ncclCommCount(comm, &size), "ncclCommCount");
      require(size == 2, "the number of ranks");
      expect_error(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), ncclInvalidUsage, "a second time",
                   {"was revoked"});
      require(ncclCommDestroy(comm), "ncclCommDestroy");
    }));
  }
}

TEST_CASE("a call that waits in another thread ends when its communicator is revoked",
          "[req:5.16]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    ncclComm_t comm = test_ranks.init()[0];
    test_ranks.barrier();
    if (test_ranks.first() == 1) {
      test_ranks.await(0);
      return require(ncclCommDestroy(comm), "ncclCommDestroy");
    }
    ncclResult_t result = ncclSuccess;
    std::thread waiting([&] {
      float data = 1;
      result = sum(&data, 1, comm);
    });
    std::this_thread::sleep_for(100ms);
    require(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), "ncclCommRevoke");
    waiting.join();
    require(result == ncclInvalidUsage, fmt::format("the call returned {}", result));
    test_ranks.word(0) = 1;
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a start in the background ends with an error when it is revoked", "[req:5.16]") {
  run_alone([] {
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    require(ncclCommInitRankConfig(&comm, 2, new_id(), 0, &config) == ncclInProgress,
            ncclGetLastError(nullptr));
    require(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), "ncclCommRevoke");
    require(settled_state(comm) == ncclInvalidUsage, ncclGetLastError(comm));
    require_words(ncclGetLastError(comm), {"ncclCommRevoke was called"});
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

TEST_CASE("a revocation with flags or after the end is refused, one of null has no effect",
          "[req:5.16]") {
  run_alone([] {
    ncclComm_t comm = init_alone();
    expect_error(ncclCommRevoke(comm, 1), ncclInvalidArgument, "flags",
                 {"ncclCommRevoke", "revokeFlags is 1"});
    require_sum(std::vector<ncclComm_t>{comm});
    require(ncclCommRevoke(nullptr, NCCL_REVOKE_DEFAULT), "null is allowed");
    require(ncclCommFinalize(comm), "ncclCommFinalize");
    expect_error(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), ncclInvalidUsage, "after the end",
                 {"has been finalized"});
    require(state_of(comm) == ncclSuccess, "the state");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    require(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT) == ncclInvalidArgument, "a destroyed one");
  });
}

TEST_CASE("a call that is not supported is refused by name on one rank alone, and changes nothing",
          "[req:5.16]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    if (test_ranks.first() == 0) {  // the other rank need not call
      int excluded = 1;
      int sentinel = 0;
      auto* shrunk = reinterpret_cast<ncclComm_t>(&sentinel);
      expect_error(
          ncclCommShrink(comms[0], &excluded, 1, &shrunk, nullptr, NCCL_SHRINK_DEFAULT),
          ncclInvalidUsage, "ncclCommShrink",
          {"ncclCommShrink is not supported by this version of Oriel", "ncclCommInitRank"});
      require(shrunk == nullptr, "a refused call leaves null");
      expect_error(ncclDevCommCreate(comms[0], nullptr, nullptr), ncclInvalidUsage, "create",
                   {"ncclDevCommCreate is not supported", "Oriel's device headers"});
      expect_error(ncclDevCommDestroy(comms[0], nullptr), ncclInvalidUsage, "destroy",
                   {"ncclDevCommDestroy is not supported"});
      expect_error(ncclCommShrink(nullptr, &excluded, 1, &shrunk, nullptr, NCCL_SHRINK_ABORT),
                   ncclInvalidArgument, "null", {"communicator is null"});
    }
    require_sum_of_ranks(test_ranks, comms);
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("a reset of the log leaves its level as it was, the log says so", "[req:5.16]") {
  char path[] = "/tmp/oriel-reset-XXXXXX";
  const int fd = ::mkstemp(path);
  REQUIRE(fd >= 0);
  ::close(fd);
  run_alone([&] {
    const Environment environment(Variables{{"ORIEL_LOG", "info"}, {"ORIEL_LOG_FILE", path}});
    reread_log_settings();
    ncclResetDebugInit();
    ::setenv("ORIEL_LOG", "alert", 1);
    ncclResetDebugInit();
  });
  std::ostringstream log;
  log << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  const std::string words = "ncclResetDebugInit does nothing";
  const std::string text = log.str();
  INFO(text);
  const auto first = text.find(words);
  REQUIRE(first != std::string::npos);
  CHECK(text.find(words, first + 1) != std::string::npos);
}

}  // namespace
}  // namespace oriel::test
