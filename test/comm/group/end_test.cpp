// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <memory>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "nccl.h"

#include "comm/group/comm_entry.hpp"
#include "comm/group/group_jobs.hpp"
#include "comm/support/device_around.hpp"
#include "comm/support/held.hpp"
#include "support/fair_timer.hpp"
#include "support/ranks.hpp"

/// Communicators that end in a group, or while their device is busy.
namespace oriel::test {
namespace {

std::array<ncclComm_t, 2> init_two() {
  std::array<ncclComm_t, 2> comms{};
  require(ncclCommInitAll(comms.data(), 2, nullptr), "ncclCommInitAll");
  return comms;
}

bool is_ended(ncclComm_t comm) {
  int count = 0;
  return ncclCommCount(comm, &count) == ncclInvalidArgument;
}

TEST_CASE("a destruction in a group happens at its end, behind the calls before it", "[req:5.2]") {
  run_alone([] {
    const auto comms = init_two();
    const Buffer first(8192), second(8192);
    std::array<ncclWindow_t, 2> windows{};
    float data[2] = {1, 2};
    require(ncclGroupStart(), "ncclGroupStart");
    require(sum(&data[0], 1, comms[0]), "note");
    require(ncclCommWindowRegister(comms[0], first.at(), 4096, &windows[0], 1), "note");
    require(ncclCommDestroy(comms[0]), "note");
    require(ncclGroupStart(), "an inner group");
    require(sum(&data[1], 1, comms[1]), "note");
    require(ncclCommWindowRegister(comms[1], second.at(), 4096, &windows[1], 1), "note");
    require(ncclCommDestroy(comms[1]), "note");
    require(ncclGroupEnd(), "the inner end");
    require(!is_ended(comms[0]) && !is_ended(comms[1]), "the handles are good in the group");
    require(ncclGroupEnd(), "ncclGroupEnd");
    require(data[0] == 3 && data[1] == 3, "the sum");
    require(windows[0] != nullptr && windows[1] != nullptr, "the windows were registered");
    require(is_ended(comms[0]) && is_ended(comms[1]), "the handles have ended");
  });
}

TEST_CASE("CPU ranks that another thread destroys during a group keep their memory for its calls",
          "[req:5.2][D3]") {
  run_alone([] {
    const auto comms = init_two();
    std::array<std::weak_ptr<comm::Communicator>, 2> communicators;
    for (std::size_t i = 0; i < 2; ++i) {
      communicators[i] = comm::find_communicator(comms[i]).value();
    }
    float data[2] = {1, 2};
    require(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t i = 0; i < 2; ++i) require(sum(&data[i], 1, comms[i]), "note");
    std::array<ncclResult_t, 2> ended{};
    std::thread([&] {
      for (std::size_t i = 0; i < 2; ++i) ended[i] = ncclCommDestroy(comms[i]);
    }).join();
    for (const ncclResult_t each : ended) require(each, "ncclCommDestroy");
    require(is_ended(comms[0]) && is_ended(comms[1]), "the handles have ended");
    require(ncclGroupEnd(), "ncclGroupEnd");
    require(data[0] == 3 && data[1] == 3, "the sum");
    for (const auto& one : communicators) require(one.expired(), "memory is freed at once");
  });
}

TEST_CASE("a call behind the end of its communicator in a group is refused, the group as well",
          "[req:5.2]") {
  run_alone([] {
    for (const bool by_abort : {false, true}) {
      const auto comms = init_two();
      const auto end = by_abort ? ncclCommAbort : ncclCommDestroy;
      float data[2] = {1, 2};
      ncclWindow_t window = nullptr;
      ncclComm_t child = nullptr;
      const Buffer buffer(4096);
      require(ncclGroupStart(), "ncclGroupStart");
      require(sum(&data[0], 1, comms[0]), "note");
      require(end(comms[0]), "note");
      const std::vector<std::string> words = {"the group destroys or aborts this communicator"};
      const auto refused = [&](ncclResult_t result, const char* what) {
        expect_error(result, ncclInvalidUsage, what, words);
      };
      refused(end(comms[0]), "a second end");
      require(sum(&data[1], 1, comms[1]), "note");
      refused(sum(&data[0], 1, comms[0]), "ncclAllReduce");
      refused(ncclSend(&data[0], 1, ncclFloat, 1, comms[0], nullptr), "ncclSend");
      refused(ncclCommWindowRegister(comms[0], buffer.at(), 4096, &window, 1), "a window");
      refused(ncclCommSplit(comms[0], 0, 0, &child, nullptr), "ncclCommSplit");
      refused(ncclCommFinalize(comms[0]), "ncclCommFinalize");
      require(child == nullptr && window == nullptr, "nothing is given out");
      refused(ncclGroupEnd(), "ncclGroupEnd");
      require(data[0] == 1 && data[1] == 2, "no call was made");
      require(is_ended(comms[0]) && !is_ended(comms[1]), "a refused group still ends handles");
      require(ncclCommDestroy(comms[1]), "ncclCommDestroy");
    }
  });
}

TEST_CASE("behind a finalize of a group only an end of the communicator is accepted", "[req:5.2]") {
  run_alone([] {
    const auto comms = init_two();
    float data[2] = {1, 2};
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclCommFinalize(comms[0]), "note");
    const std::vector<std::string> words = {"the group finalizes this communicator already"};
    expect_error(sum(&data[0], 1, comms[0]), ncclInvalidUsage, "ncclAllReduce", words);
    expect_error(ncclCommFinalize(comms[0]), ncclInvalidUsage, "ncclCommFinalize", words);
    require(ncclCommDestroy(comms[0]), "ncclCommDestroy");
    expect_error(ncclGroupEnd(), ncclInvalidUsage, "ncclGroupEnd", words);
    require(data[0] == 1, "no call was made");
    require(ncclCommDestroy(comms[1]), "ncclCommDestroy");
  });
}

TEST_CASE("an end of no communicator, or in a group that is simulated, leaves the group as it is",
          "[req:5.2]") {
  run_alone([] {
    const auto comms = init_two();
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclCommDestroy(comms[0]), "note");
    require(ncclGroupSimulateEnd(&info), "ncclGroupSimulateEnd");
    float data[2] = {1, 2};
    require(ncclGroupStart(), "ncclGroupStart");
    require(sum(&data[0], 1, comms[0]), "a simulated end has no effect");
    require(ncclCommDestroy(nullptr), "null is allowed");
    const auto none = reinterpret_cast<ncclComm_t>(&info);
    expect_error(ncclCommDestroy(none), ncclInvalidArgument, "a destruction", {"no communicator"});
    expect_error(ncclCommAbort(none), ncclInvalidArgument, "an abort", {"no communicator"});
    require(sum(&data[1], 1, comms[1]), "note");
    require(ncclGroupEnd(), "ncclGroupEnd");
    require(data[0] == 3 && data[1] == 3, "the sum");
    destroy(comms);
  });
}

TEST_CASE("a start, an all-reduce and an abort in a group: the call completes, peers get an error",
          "[req:5.2]") {
  check_all_ok(run_ranks(LaunchMode::threads, 2, [](TestRanks& test_ranks) {
    ncclComm_t comm = test_ranks.init()[0];
    const ncclUniqueId id = test_ranks.next_id();
    const bool aborts = test_ranks.first() == 0;
    float value = 1;
    ncclComm_t other = nullptr;
    require(ncclGroupStart(), "ncclGroupStart");
    require(sum(&value, 1, comm), "note");
    require(ncclCommInitRank(&other, 2, id, test_ranks.first()), "note");
    if (aborts) require(ncclCommAbort(comm), "note");
    require(ncclGroupEnd(), "ncclGroupEnd");
    require(value == 2, "the sum");
    if (!aborts) {
      require(await_failure(comm) == ncclRemoteError, "the peer is told");
      require(ncclCommDestroy(comm), "ncclCommDestroy");
    } else {
      require(is_ended(comm), "the handle has ended");
    }
    require(sum(&value, 1, other), "the other communicator goes on");
    require(value == 4, "the sum");
    require(ncclCommDestroy(other), "ncclCommDestroy");
  }));
}

/// Makes communicators of one rank on a device that may be busy.
class OnBusyDevice {
 public:
  ncclComm_t init() {
    const ncclUniqueId id = new_id();
    const auto decoded = boot::UniqueId::decode(std::as_bytes(std::span(id.internal)));
    comm::GroupJobs jobs;
    jobs.push_back(
        comm::make_init_job(decoded.value(), 0, 1, comm::CommunicatorOptions{}, true, &device_));
    ncclComm_t comm = nullptr;
    std::get<comm::InitJob>(jobs.front()).handle.show(&comm);
    bool in_progress = false;
    require(comm::run_jobs(jobs, in_progress).ok(), "the start");
    const auto found = comm::find_communicator(comm);
    require(found.ok(), "a communicator");
    started_.push_back(found.value());
    return comm;
  }
  ExecutorScript& script() { return *script_; }
  bool is_all_freed() const {
    for (const auto& one : started_) {
      if (!one.expired()) return false;
    }
    return true;
  }
  bool is_any_freed() const {
    for (const auto& one : started_) {
      if (one.expired()) return true;
    }
    return false;
  }

 private:
  // Never destroyed, like real devices.
  ExecutorScript* script_ = new ExecutorScript;
  DeviceAround& device_ = *new DeviceAround(comm::host_device(), *script_, "");
  std::vector<std::weak_ptr<comm::Communicator>> started_;
};

TEST_CASE("an abort on a device that stays busy returns in time, memory goes when that has ended",
          "[req:5.2][D3]") {
  run_alone([] {
    const Held before = settled();
    for (const bool in_group : {false, true}) {
      OnBusyDevice ranks;
      std::vector<ncclComm_t> comms = {ranks.init()};
      if (in_group) comms.insert(comms.end(), {ranks.init(), ranks.init(), ranks.init()});
      ranks.script().is_busy = true;
      const FairTimer timer;
      if (in_group) require(ncclGroupStart(), "ncclGroupStart");
      for (ncclComm_t comm : comms) require(ncclCommAbort(comm), "ncclCommAbort");
      if (in_group) require(ncclGroupEnd(), "ncclGroupEnd");
      require(timer.spent() < 250ms, "the abort took too long");
      for (ncclComm_t comm : comms) require(is_ended(comm), "the handles have ended");
      std::this_thread::sleep_for(300ms);
      require(!ranks.is_any_freed(), "memory was freed that the device may use");
      ranks.script().is_busy = false;
      require(eventually([&] { return ranks.is_all_freed(); }), "memory is freed in the end");
    }
    require_held(before, "after the aborts");
  });
}

TEST_CASE("a destroyed communicator lives until the last graph that holds a call of it has gone",
          "[req:5.2][D3]") {
  run_alone([] {
    OnBusyDevice ranks;
    const ncclComm_t comm = ranks.init();
    ranks.script().has_graph = true;
    const FairTimer timer;
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    require(timer.spent() < 1s, "a destruction waited for a graph");
    require(is_ended(comm), "the handle has ended");
    std::this_thread::sleep_for(300ms);
    require(!ranks.is_any_freed(), "memory was freed that a graph may use");
    ranks.script().has_graph = false;
    require(eventually([&] { return ranks.is_all_freed(); }), "memory is freed in the end");
  });
}

TEST_CASE("a destruction waits for a busy device", "[req:5.2]") {
  run_alone([] {
    OnBusyDevice ranks;
    const ncclComm_t comm = ranks.init();
    ranks.script().is_busy = true;
    std::thread device([&] {
      std::this_thread::sleep_for(400ms);
      ranks.script().is_busy = false;
    });
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    require(!ranks.script().is_busy, "it has waited");
    device.join();
    require(ranks.is_all_freed(), "memory is freed at once");
  });
}

TEST_CASE("a process may exit while the memory of an aborted communicator is kept",
          "[req:5.2][D16]") {
  run_alone([] {
    auto& ranks = *new OnBusyDevice;
    const ncclComm_t comm = ranks.init();
    ranks.script().is_busy = true;
    require(ncclCommAbort(comm), "ncclCommAbort");
  });
}

}  // namespace
}  // namespace oriel::test
