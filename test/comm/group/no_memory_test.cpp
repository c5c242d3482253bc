// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "nccl.h"

#include "comm/support/held.hpp"
#include "support/failing_memory.hpp"
#include "support/ranks.hpp"

/// An allocation fails in a call. Calls that fail must give the reason, also on the other ranks.
/// The process lives on, and nothing is left behind.
namespace oriel::test {
namespace {

void require_no_leak([[maybe_unused]] const std::string& when) {
#ifdef __SANITIZE_ADDRESS__
  require(__lsan_do_recoverable_leak_check() == 0, when + ": memory has leaked");
#endif
}

/// Runs a call on both ranks, each a thread, while the k-th allocation of rank 1 fails.
class Calls {
 public:
  explicit Calls(TestRanks& test_ranks) : test_ranks_(test_ranks) {}

  template <class Call>
  void together(long k, const Call& call) {
    const int rank = test_ranks_.first();
    const std::string where = fmt::format("rank {}, allocation {}", rank, k);
    hit_ = false;
    test_ranks_.barrier();
    ncclResult_t mine = ncclSuccess;
    if (rank == 1 && k >= 0) {
      hit_ = with_failure(k, [&] { mine = call(); });
    } else {
      mine = call();
    }
    if (mine != ncclSuccess) {
      const std::string text = ncclGetLastError(nullptr);
      require(mine == ncclSystemError || mine == ncclRemoteError, where + ": " + text);
      const bool named = text.find("rank 1") != std::string::npos;
      const bool says = text.find("memory") != std::string::npos;
      require(says || (named && rank == 0), where + ": " + text);
    }
    test_ranks_.word(static_cast<std::size_t>(rank)) = mine == ncclSuccess ? 0 : 1;
    test_ranks_.word(static_cast<std::size_t>(2 + rank)) = hit_ ? 1 : 0;
    test_ranks_.barrier();
    failures_ = test_ranks_.word(0) + test_ranks_.word(1);
    hit_ = test_ranks_.word(3) != 0;
    test_ranks_.barrier();
  }
  /// Returns the number of ranks whose call has failed.
  std::uint64_t failures() const { return failures_; }
  bool hit() const { return hit_; }

 private:
  TestRanks& test_ranks_;
  std::uint64_t failures_ = 0;
  bool hit_ = false;
};

/// Uses and destroys a communicator. Its next call succeeds if no allocation has failed, and fails
/// if any rank has failed.
void use_and_destroy(TestRanks& test_ranks, const Calls& calls, ncclComm_t comm) {
  float value = 1;
  const ncclResult_t result = comm != nullptr ? sum(&value, 1, comm) : ncclSuccess;
  if (comm != nullptr && calls.failures() > 0) require(result != ncclSuccess, "a peer has failed");
  if (!calls.hit()) require(result == ncclSuccess && value == 2, ncclGetLastError(nullptr));
  test_ranks.barrier();
  if (comm != nullptr) require(ncclCommDestroy(comm), "ncclCommDestroy");
}

/// Makes every `stride`-th allocation of `cycle` fail, one per run, until a run needs fewer
/// allocations.
template <class Cycle>
void walk(TestRanks& test_ranks, long stride, const Cycle& cycle) {
  Calls calls(test_ranks);
  cycle(calls, -1);
  test_ranks.barrier();
  const Held before = settled();
  test_ranks.barrier();
  std::uint64_t failures = 0;
  for (long k = 0;; k += stride) {
    cycle(calls, k);
    if (!calls.hit()) break;
    failures += calls.failures();
    require(k < 20'000, "allocations without end");
  }
  test_ranks.barrier();
  require_held(before, "after all cycles");
  require_no_leak("after all cycles");
  require(failures >= 4, fmt::format("{} failures", failures));
}

TEST_CASE("a start in which memory runs out on one rank fails and leaves nothing",
          "[req:1.12][req:1.38][req:1.41]") {
  const Environment brief(Variables{{"ORIEL_TIMEOUT", "3s"}});
  check_all_ok(run_ranks(LaunchMode::threads, 2, [](TestRanks& test_ranks) {
    walk(test_ranks, 397, [&](Calls& calls, long k) {
      const ncclUniqueId id = test_ranks.next_id();
      ncclComm_t comm = nullptr;
      calls.together(k, [&] { return ncclCommInitRank(&comm, 2, id, test_ranks.first()); });
      use_and_destroy(test_ranks, calls, comm);
    });
  }));
}

TEST_CASE("a registration in which memory runs out on one rank fails and leaves nothing",
          "[req:1.16][req:1.38][req:1.41]") {
  const Environment brief(Variables{{"ORIEL_TIMEOUT", "3s"}});
  check_all_ok(run_ranks(LaunchMode::threads, 2, [](TestRanks& test_ranks) {
    const Buffer buffer(4096);
    walk(test_ranks, 47, [&](Calls& calls, long k) {
      const ncclComm_t comm = test_ranks.init()[0];
      ncclWindow_t window = nullptr;
      calls.together(k,
                     [&] { return ncclCommWindowRegister(comm, buffer.at(), 4096, &window, 1); });
      if (calls.failures() == 2) require(window == nullptr, "a window after a failure");
      if (window != nullptr && calls.failures() == 0) {
        require(ncclCommWindowDeregister(comm, window), "ncclCommWindowDeregister");
      }
      // A failed allocation either ends the communicator or leaves it unchanged.
      float value = 1;
      const ncclResult_t result = sum(&value, 1, comm);
      require(calls.hit() || (result == ncclSuccess && value == 2), ncclGetLastError(nullptr));
      test_ranks.barrier();
      require(ncclCommDestroy(comm), "ncclCommDestroy");
    });
  }));
}

TEST_CASE("a group of all-reduces that runs out of memory ends with an error",
          "[req:1.31][req:1.38]") {
  run_alone([] {
    long failures = 0;
    for (long k = 0;; ++k) {
      ncclComm_t comms[3];
      require(ncclCommInitAll(comms, 3, nullptr), "ncclCommInitAll");
      float data[3] = {1, 2, 3};
      ncclResult_t noted = ncclSuccess;
      ncclResult_t result = ncclSuccess;
      const bool hit = with_failure(k, [&] {
        result = ncclGroupStart();
        for (std::size_t i = 0; i < 3; ++i) {
          const ncclResult_t one = sum(&data[i], 1, comms[i]);
          if (one != ncclSuccess) noted = one;
        }
        result = ncclGroupEnd();
      });
      const bool complete = data[0] == 6 && data[1] == 6 && data[2] == 6;
      require(result == ncclSuccess ? complete : result == ncclSystemError || !complete,
              fmt::format("allocation {}: {}", k, static_cast<int>(result)));
      require(noted == ncclSuccess || (noted == ncclSystemError && result == ncclSystemError),
              fmt::format("allocation {}: {} in a group", k, static_cast<int>(noted)));
      if (result != ncclSuccess) ++failures;
      require(result == ncclSuccess || *ncclGetLastError(nullptr) != '\0', "the error's text");
      destroy(comms);
      require(ncclGroupEnd() == ncclInvalidUsage, fmt::format("allocation {}: a group is open", k));
      if (!hit) break;
      require(k < 1000, "allocations without end");
    }
    require(failures >= 5, fmt::format("{} failures", failures));
  });
}

/// Makes a call of one kind with blocks of `count` elements. `from` and `to` hold two blocks each.
struct KindOfCall {
  const char* name;
  ncclResult_t (*make)(ncclComm_t comm, int rank, const float* from, float* to, std::size_t count);
};

/// Sends to a rank and receives from it; the lower rank sends first.
ncclResult_t exchange_with(int peer, ncclComm_t comm, int rank, const float* from, float* to,
                           std::size_t count) {
  const auto send = [&] { return ncclSend(from, count, ncclFloat, peer, comm, nullptr); };
  const ncclResult_t sent = rank <= peer ? send() : ncclSuccess;
  const ncclResult_t received = ncclRecv(to, count, ncclFloat, peer, comm, nullptr);
  const ncclResult_t sent_later = rank <= peer ? ncclSuccess : send();
  return sent + received + sent_later == ncclSuccess ? ncclSuccess : ncclInternalError;
}

constexpr KindOfCall kKindsOfCalls[] = {
    {"an all-reduce",
     [](ncclComm_t comm, int, const float* from, float* to, std::size_t count) {
       return ncclAllReduce(from, to, count, ncclFloat, ncclSum, comm, nullptr);
     }},
    {"a reduce-scatter",
     [](ncclComm_t comm, int, const float* from, float* to, std::size_t count) {
       return ncclReduceScatter(from, to, count, ncclFloat, ncclSum, comm, nullptr);
     }},
    {"an all-gather",
     [](ncclComm_t comm, int, const float* from, float* to, std::size_t count) {
       return ncclAllGather(from, to, count, ncclFloat, comm, nullptr);
     }},
    {"an all-to-all",
     [](ncclComm_t comm, int, const float* from, float* to, std::size_t count) {
       return ncclAlltoAll(from, to, count, ncclFloat, comm, nullptr);
     }},
    {"a broadcast",
     [](ncclComm_t comm, int, const float* from, float* to, std::size_t count) {
       return ncclBroadcast(from, to, count, ncclFloat, 1, comm, nullptr);
     }},
    {"a send and a receive",
     [](ncclComm_t comm, int rank, const float* from, float* to, std::size_t count) {
       return exchange_with(1 - rank, comm, rank, from, to, count);
     }},
    {"a group of sends and receives, also of its own",
     [](ncclComm_t comm, int rank, const float* from, float* to, std::size_t count) {
       const ncclResult_t started = ncclGroupStart();
       const ncclResult_t noted = exchange_with(1 - rank, comm, rank, from, to, count);
       const ncclResult_t own = exchange_with(rank, comm, rank, from, to + count, count);
       const ncclResult_t ended = ncclGroupEnd();
       return started + noted + own == ncclSuccess ? ended : ncclInternalError;
     }},
    {"a group of collectives",
     [](ncclComm_t comm, int, const float* from, float* to, std::size_t count) {
       const ncclResult_t started = ncclGroupStart();
       const ncclResult_t first = ncclBroadcast(from, to, count, ncclFloat, 0, comm, nullptr);
       const ncclResult_t second =
           ncclAllReduce(from, to, count, ncclFloat, ncclMax, comm, nullptr);
       const ncclResult_t ended = ncclGroupEnd();
       return started + first + second == ncclSuccess ? ended : ncclInternalError;
     }},
};

TEST_CASE("a call of a CPU rank, made again, allocates nothing", "[req:5.6]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    const ncclComm_t comm = test_ranks.init()[0];
    // Sizes that use packets, slots, and neither.
    for (const std::size_t count : {2u, 200u, 20'000u}) {
      const std::vector<float> from(2 * count, 1);
      std::vector<float> to(2 * count);
      for (const KindOfCall& kind : kKindsOfCalls) {
        const std::string what = fmt::format("{} of {} elements", kind.name, count);
        const auto call = [&] {
          return kind.make(comm, test_ranks.first(), from.data(), to.data(), count);
        };
        require(call(), what.c_str());
        ncclResult_t again = ncclInternalError;
        const bool allocates = with_failure(
            0, [&] { again = call(); }, Whose::callers);
        require(!allocates, what + " allocates");
        require(again, what.c_str());
      }
    }
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a simulated group that runs out of memory has ended, and its calls never run",
          "[req:1.31][req:5.16]") {
  run_alone([] {
    ncclComm_t comm = init_alone();
    long failures = 0;
    for (bool hit = true; hit; ++failures) {
      float from = 3, to = 0;
      ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
      require(ncclGroupStart(), "ncclGroupStart");
      require(ncclAllReduce(&from, &to, 1, ncclFloat, ncclSum, comm, nullptr), "noted");
      require(ncclSend(&from, 1, ncclFloat, 0, comm, nullptr), "noted");
      ncclResult_t result = ncclInternalError;
      hit = with_failure(failures, [&] { result = ncclGroupSimulateEnd(&info); });
      require(result == (hit ? ncclSystemError : ncclSuccess), "ncclGroupSimulateEnd");
      require(ncclGroupStart(), "ncclGroupStart");
      require(ncclGroupEnd(), "an empty group");
      require(to == 0, "the call of the simulated group has not run");
    }
    CHECK(failures > 1);
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

TEST_CASE("a non-blocking start that runs out of memory says so when it is asked",
          "[req:1.31][req:1.38]") {
  run_alone([] {
    ncclConfig_t config = non_blocking();
    long failures = 0;
    for (long k = 0;; k += 83) {
      const ncclUniqueId id = new_id();
      ncclComm_t comm = nullptr;
      ncclResult_t state = ncclInProgress;
      const bool hit = with_failure(k, [&] {
        if (ncclCommInitRankConfig(&comm, 1, id, 0, &config) != ncclInProgress) return;
        while (state == ncclInProgress) {
          std::this_thread::sleep_for(1ms);
          // This call may run out of memory, too.
          require(ncclCommGetAsyncError(comm, &state) != ncclInvalidArgument, "the handle");
        }
      });
      if (state != ncclSuccess) ++failures;
      if (comm != nullptr) require(ncclCommDestroy(comm), "ncclCommDestroy");
      if (!hit) break;
    }
    require(failures >= 4, fmt::format("{} failures", failures));
  });
}

}  // namespace
}  // namespace oriel::test
