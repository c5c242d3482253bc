// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/group/comm_entry.hpp"
#include "comm/support/held.hpp"
#include "comm/support/logged_executor.hpp"
#include "comm/support/model_gpu.hpp"
#include "comm/support/network_of.hpp"
#include "support/ranks.hpp"
#include "support/seed.hpp"

/// Communicators of a GPU rank that one thread ends while another thread makes a call on them. The
/// driver model runs no kernels; here each plain launch counts as running for a time.
namespace oriel::test {
namespace {

using Clock = std::chrono::steady_clock;

/// On top of the model, counts launches, and frees of a communicator's memory that is in use. It is
/// in use while the last launch runs or a graph holds a call. One communicator launches at a time.
class RunningLaunches {
 public:
  RunningLaunches() : scoped_(over_current()) {}

  static inline std::atomic<Clock::duration> duration{};  ///< time that a launch runs
  static inline std::atomic<int> launches{0};
  static inline std::atomic<int> graphs{0};  ///< that hold a call
  static inline std::atomic<int> frees_in_use{0};
  static inline std::function<void()> at_capture_query;  ///< called once, in the next query
  static inline std::function<void()> at_launch;         ///< called once, in the next launch

  /// Called once, as a thread other than the test's next enters a context.
  static inline std::function<void()> at_context;

  /// Sets the communicator that launches from now on.
  static void belong_to(std::weak_ptr<comm::Communicator> communicator) {
    const std::lock_guard lock(mutex_);
    launching_ = std::move(communicator);
  }
  static bool is_running() { return Clock::now().time_since_epoch() < end_.load(); }

 private:
  static void call_once(std::function<void()>& hook) {
    if (const auto called = std::exchange(hook, nullptr)) called();
  }
  static void note_free() {
    // A communicator frees its memory once nothing refers to it. While the one that launches lives,
    // an earlier one frees: a thread may free that behind the end of its test.
    const std::lock_guard lock(mutex_);
    if (launching_.expired() && (is_running() || graphs > 0)) ++frees_in_use;
  }
  static const CudaTable& over_current() {
    driver = {};
    test_thread_ = std::this_thread::get_id();
    static CudaTable table;
    table = below_ = cuda();
    log_captures(table);
    table.stream_get_capture_info = [](auto... arguments) {
      call_once(at_capture_query);
      return capture_info(arguments...);
    };
    table.user_object_create = [](auto... arguments) {
      ++graphs;
      return create_user_object(arguments...);
    };
    table.launch_kernel_ex = [](auto... arguments) {
      const bool is_plain = driver.captures.empty();  // a captured launch runs with its graph
      if (is_plain) end_ = Clock::now().time_since_epoch() + duration.load();
      ++launches;
      call_once(at_launch);
      return below_.launch_kernel_ex(arguments...);
    };
    table.event_query = [](CUevent event) {
      return is_running() ? CUDA_ERROR_NOT_READY : below_.event_query(event);
    };
    table.ctx_push_current = [](CUcontext context) {
      if (std::this_thread::get_id() != test_thread_) call_once(at_context);
      return below_.ctx_push_current(context);
    };
    table.mem_unmap = [](CUdeviceptr address, std::size_t bytes) {
      note_free();
      return below_.mem_unmap(address, bytes);
    };
    table.mem_free = [](CUdeviceptr address) {
      note_free();
      return below_.mem_free(address);
    };
    return table;
  }

  static inline CudaTable below_{};
  static inline std::atomic<Clock::duration> end_{};
  static inline std::mutex mutex_;  // guards launching_
  static inline std::weak_ptr<comm::Communicator> launching_;
  static inline std::thread::id test_thread_;
  ScopedCudaTable scoped_;
};

enum class End : std::uint8_t { destroy, abort, finalize };
constexpr End kEnds[] = {End::destroy, End::abort, End::finalize};

ncclResult_t end(End how, ncclComm_t comm) {
  switch (how) {
    case End::destroy:
      return ncclCommDestroy(comm);
    case End::abort:
      return ncclCommAbort(comm);
    default:
      return ncclCommFinalize(comm);
  }
}

void end_in_other_thread(End how, ncclComm_t comm) {
  ncclResult_t ended = ncclInternalError;
  std::thread([&] { ended = end(how, comm); }).join();
  require(ended, "the end");
}

/// A communicator of one rank, and what its calls need.
class RacedRank {
 public:
  RacedRank(float* data, cudaStream_t first, cudaStream_t second)
      : data_(data), streams_{first, second} {}

  void start() {
    comm = init_alone();
    communicator_ = must(comm::find_communicator(comm));
    RunningLaunches::belong_to(communicator_);
    launched_ = RunningLaunches::launches;
  }
  ncclResult_t reduce(int stream) const {
    return ncclAllReduce(data_, data_, 2, ncclFloat, ncclSum, comm, streams_[stream]);
  }
  ncclResult_t send(int stream) const {
    return ncclSend(data_, 2, ncclFloat, 0, comm, streams_[stream]);
  }
  ncclResult_t receive(int stream) const {
    return ncclRecv(data_ + 8, 2, ncclFloat, 0, comm, streams_[stream]);
  }
  comm::CollectiveRequest request() const {
    return {.collective = kernels::Collective::all_reduce,
            .input = data_,
            .output = data_,
            .count = 2,
            .stream = streams_[0]};
  }
  int launches() const { return RunningLaunches::launches - launched_; }
  bool is_gone() const { return communicator_.expired(); }
  /// Checks that the ended communicator's memory goes, and was in no use before.
  void require_gone(const std::string& what) const {
    const bool goes = eventually([&] { return is_gone() && !has_thread("oriel-keeper"); });
    require(goes, what + ": the communicator stays");
    require(RunningLaunches::frees_in_use == 0, what + ": memory in use was freed");
  }
  void require_refused(ncclResult_t result, const std::string& what) const {
    expect_error(result, ncclInvalidUsage, what.c_str(), {"before the call was enqueued"});
    require(launches() == 0, what + " was launched");
  }

  ncclComm_t comm = nullptr;

 private:
  float* data_;
  cudaStream_t streams_[2];
  std::weak_ptr<comm::Communicator> communicator_;
  int launched_ = 0;
};

/// Puts two streams into one capture.
class Captured {
 public:
  Captured(cudaStream_t first, cudaStream_t second) { driver.captures = {{first, 7}, {second, 7}}; }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() { driver.captures.clear(); }
};

void destroy_graphs() {
  RunningLaunches::graphs = 0;
  for (const auto& graph : std::exchange(driver.graphs, {})) graph();
}

/// Runs `body(rank, first, second)` on the model, with two streams.
template <class Body>
void run_raced(const Body& body) {
  const Environment environment(Variables{{"ORIEL_BACKEND", "cuda"}, {"ORIEL_SCRATCH_SIZE", "1M"}});
  check_all_ok(run_ranks(LaunchMode::processes, 1, [&](TestRanks&) {
    const FakeCuda& model = model_with_current_device(FakeCuda::Options{}, 0);
    const RunningLaunches running;
    const Buffer buffer(4096);
    CUstream streams[2] = {};
    for (CUstream& each : streams) {
      require(cuda().stream_create(&each, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS, "a stream");
    }
    RacedRank rank(reinterpret_cast<float*>(buffer.at()), streams[0], streams[1]);
    body(rank, streams[0], streams[1]);
    for (const std::string& violation : model.violations()) require(false, violation);
  }));
}

struct RacedGroup {
  const char* name;
  ncclResult_t (*note)(const RacedRank& rank);
};
constexpr RacedGroup kGroups[] = {
    {"collectives",
     [](const RacedRank& rank) {
       const ncclResult_t first = rank.reduce(0);
       return first == ncclSuccess ? rank.reduce(1) : first;
     }},
    {"a send and a receive",
     [](const RacedRank& rank) {
       const ncclResult_t first = rank.send(0);
       return first == ncclSuccess ? rank.receive(1) : first;
     }},
};

ncclResult_t run_group(const RacedGroup& group, const RacedRank& rank) {
  if (const ncclResult_t started = ncclGroupStart(); started != ncclSuccess) return started;
  const ncclResult_t noted = group.note(rank);
  const ncclResult_t ended = ncclGroupEnd();
  return noted == ncclSuccess ? ended : noted;
}

/// Ends a communicator that has been finalized, and checks that its memory goes.
void conclude(End how, const RacedRank& rank, const std::string& what) {
  if (how == End::finalize) require(ncclCommDestroy(rank.comm), "ncclCommDestroy");
  rank.require_gone(what);
}

/// Makes random calls, some of them captured, until one fails.
void call_until_refused(const RacedRank& rank, std::mt19937_64& random, bool in_capture) {
  const auto call = [&] {
    const auto kind = random() % 4;
    if (kind == 0) return run_group(kGroups[0], rank);
    if (kind == 1) return run_group(kGroups[1], rank);
    return rank.reduce(static_cast<int>(kind - 2));
  };
  do {
    // Each captured call makes the log of a graph's calls longer.
    if (in_capture) std::this_thread::sleep_for(10us);
  } while (call() == ncclSuccess);
}

}  // namespace

TEST_CASE("a call that another thread's end overtakes before its launch is refused",
          "[req:5.2][D3]") {
  run_raced([](RacedRank& rank, cudaStream_t, cudaStream_t) {
    RunningLaunches::duration = 50ms;
    for (const End how : kEnds) {
      const std::string what = fmt::format("end {}", static_cast<int>(how));
      rank.start();
      {
        // ncclAllReduce does the same.
        const auto entry = must(comm::pin_entry(rank.comm));
        comm::CallRunner& calls = entry->started()->calls();
        comm::CallPlan plan;
        require(calls.plan_for(rank.request(), plan).ok(), "a plan");
        end_in_other_thread(how, rank.comm);
        require(!rank.is_gone(), "the call keeps the communicator");
        const Status run = calls.run(rank.request(), plan);
        require(!run.ok() && run.error().code() == ErrorCode::invalid_usage, what);
        require(rank.launches() == 0, what + " was launched");
      }
      conclude(how, rank, what);
    }
  });
}

TEST_CASE("calls of a group that another thread's end overtakes before a launch are refused",
          "[req:5.2][D3]") {
  run_raced([](RacedRank& rank, cudaStream_t first, cudaStream_t second) {
    RunningLaunches::duration = 50ms;
    for (const bool in_capture : {false, true}) {
      for (const RacedGroup& group : kGroups) {
        for (const End how : kEnds) {
          const std::string what = fmt::format("{}{}, end {}", in_capture ? "captured " : "",
                                               group.name, static_cast<int>(how));
          rank.start();
          std::optional<Captured> captured;
          if (in_capture) captured.emplace(first, second);
          // The group checks its streams after its calls and before the launches.
          RunningLaunches::at_capture_query = [&] { end_in_other_thread(how, rank.comm); };
          rank.require_refused(run_group(group, rank), what);
          require(driver.graphs.empty(), what + ": a graph holds the communicator");
          conclude(how, rank, what);
        }
      }
    }
  });
}

TEST_CASE("a group whose communicator another thread ends before the group is refused",
          "[req:5.2][D3]") {
  run_raced([](RacedRank& rank, cudaStream_t, cudaStream_t) {
    RunningLaunches::duration = 50ms;
    for (const RacedGroup& group : kGroups) {
      rank.start();
      require(ncclGroupStart(), "ncclGroupStart");
      require(group.note(rank), "note");
      end_in_other_thread(End::destroy, rank.comm);
      rank.require_refused(ncclGroupEnd(), group.name);
      rank.require_gone(group.name);
    }
  });
}

TEST_CASE(
    "a launch that another thread's end does not overtake keeps the memory until it has ended",
    "[req:5.2][D3]") {
  run_raced([](RacedRank& rank, cudaStream_t first, cudaStream_t second) {
    RunningLaunches::duration = 300ms;
    for (const bool in_capture : {false, true}) {
      for (const End how : {End::destroy, End::abort}) {
        const std::string what =
            fmt::format("end {} of a {} launch", static_cast<int>(how), in_capture);
        rank.start();
        std::optional<Captured> captured;
        if (in_capture) captured.emplace(first, second);
        std::thread ender;
        ncclResult_t ended = ncclInternalError;
        RunningLaunches::at_launch = [&] {
          ender = std::thread([&] { ended = end(how, rank.comm); });
          std::this_thread::sleep_for(30ms);
        };
        require(rank.reduce(0), "the call");
        ender.join();
        require(ended, "the end");
        require(rank.launches() == 1, what);
        if (in_capture) {
          std::this_thread::sleep_for(150ms);  // longer than a pause of the thread that frees it
          require(!rank.is_gone(), what + ": memory that a graph holds was freed");
          destroy_graphs();
        }
        rank.require_gone(what);
      }
    }
  });
}

TEST_CASE("an abort in the middle of a captured call keeps the memory for the call's graph",
          "[req:5.2][D3]") {
  run_raced([](RacedRank& rank, cudaStream_t first, cudaStream_t second) {
    rank.start();
    const Captured captured(first, second);
    std::atomic<bool> goes_on = false, has_returned = false;
    std::thread ender;
    ncclResult_t ended = ncclInternalError;
    // The call stops before it has added the graph. It goes on if the thread that is to free the
    // memory has found no graph and now looks for launches. That thread is the second after the
    // ender.
    const auto look_for_launches = [&] {
      goes_on = true;
      static_cast<void>(eventually([&] { return has_returned.load(); }));
    };
    RunningLaunches::at_capture_query = [&] {
      RunningLaunches::at_context = [&] { RunningLaunches::at_context = look_for_launches; };
      ender = std::thread([&] { ended = ncclCommAbort(rank.comm); });
      static_cast<void>(eventually([&] { return goes_on.load(); }, 100ms));
    };
    require(rank.reduce(0), "the call");
    has_returned = true;
    ender.join();
    require(ended, "the abort");
    std::this_thread::sleep_for(150ms);  // longer than a pause of the thread that keeps the memory
    require(!rank.is_gone(), "memory that a graph holds was freed");
    destroy_graphs();
    rank.require_gone("the graph");
  });
}

TEST_CASE("communicators that are ended at random moments of calls are freed after their launches",
          "[req:5.2][D3]") {
  const std::uint64_t seed = test_seed();
  run_raced([&](RacedRank& rank, cudaStream_t first, cudaStream_t second) {
    RunningLaunches::duration = 300us;
    std::mt19937_64 random(seed);
    for (int round = 0; round < 100; ++round) {
      const End how = random() % 2 == 0 ? End::destroy : End::abort;
      const bool in_capture = random() % 4 == 0;
      const std::string what = fmt::format("round {}, end {}{}", round, static_cast<int>(how),
                                           in_capture ? ", captured" : "");
      rank.start();
      std::optional<Captured> captured;
      if (in_capture) captured.emplace(first, second);
      std::thread caller([&, own = std::mt19937_64(random())]() mutable {
        call_until_refused(rank, own, in_capture);
      });
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      const ncclResult_t ended = end(how, rank.comm);
      caller.join();
      require(ended, "the end");
      require(driver.graphs.empty() || !rank.is_gone(), what + ": a graph's memory was freed");
      destroy_graphs();
      rank.require_gone(what);
    }
  });
}

}  // namespace oriel::test
