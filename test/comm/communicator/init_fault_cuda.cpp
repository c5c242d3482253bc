// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/init_fault_cuda.hpp"

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "base/cuda_scope.hpp"
#include "boot/session/inherited_memory.hpp"
#include "comm/support/fault_outcome.hpp"
#include "comm/support/model_gpu.hpp"
#include "support/cuda/cuda_tally.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/cuda/fault_cuda.hpp"
#include "support/process_state.hpp"

namespace oriel::test {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 3;
// Ends the walk after runs without a hit that cover this many calls. Timing decides which thread
// opens a shared device, so one run may end before call k.
constexpr int kMissesToEnd = 3;
constexpr long kCallsMost = 2'000;
constexpr int kFailuresMost = 5;  // failures reported before the walk stops

constexpr std::array kStatuses = {CUDA_ERROR_OUT_OF_MEMORY,    CUDA_ERROR_INVALID_VALUE,
                                  CUDA_ERROR_UNKNOWN,          CUDA_ERROR_NOT_PERMITTED,
                                  CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_NOT_SUPPORTED,
                                  CUDA_ERROR_INVALID_DEVICE};

/// Model and counters between the library and the driver in a process of ranks. Never destroyed.
struct Instruments {
  explicit Instruments(const DriverWalk& walk)
      : model(walk.on_model ? std::make_unique<FakeCuda>(FakeCuda::Options{.devices = walk.devices})
                            : nullptr) {
    if (walk.on_model) loader.emplace(kModelKernels);
  }
  std::unique_ptr<FakeCuda> model;
  std::optional<kernels::ScopedKernelLoader> loader;
  CudaTally tally;
  CudaFaultHooks hooks;
};

Instruments& instruments(const DriverWalk& walk) {
  static auto* const made = new Instruments(walk);
  return *made;
}

struct Holding {
  CudaHoldings cuda;
  std::size_t fds = 0;
  bool operator==(const Holding&) const = default;
  bool within(const Holding& other) const { return cuda.within(other.cuda) && fds <= other.fds; }
  std::string text() const { return fmt::format("{}, {} fds", cuda.text(), fds); }
};

Holding holding(const DriverWalk& walk) {
  return {instruments(walk).tally.holdings(), count_fds()};
}

/// Waits until the process holds no more than `before`: threads of the library close their
/// descriptors and end in the background. Lowers `before` to the new counts.
bool settles_at(const DriverWalk& walk, Holding& before) {
  const Holding most = before;
  return eventually([&] { return (before = holding(walk)).within(most); });
}

/// Makes a device current on the calling thread, as cudaSetDevice does.
class ThreadDevice {
 public:
  explicit ThreadDevice(int ordinal) {
    const Status ready = cuda_ready();
    require(ready.ok(), ready.ok() ? "" : ready.error().to_string());
    auto context = PrimaryContext::retain(ordinal);
    require(context.ok(), "no primary context");
    context_.emplace(std::move(context).value());
    require(cuda().ctx_push_current(context_->get()) == CUDA_SUCCESS, "cuCtxPushCurrent");
  }
  ~ThreadDevice() {
    CUcontext popped = nullptr;
    static_cast<void>(cuda().ctx_pop_current(&popped));
  }
  ThreadDevice(const ThreadDevice&) = delete;
  ThreadDevice& operator=(const ThreadDevice&) = delete;

  /// Returns what has changed on the thread; empty if nothing has.
  std::string changed() const {
    CUcontext current = nullptr;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    require(cuda().ctx_get_current(&current) == CUDA_SUCCESS, "cuCtxGetCurrent");
    require(cuda().thread_exchange_stream_capture_mode(&mode) == CUDA_SUCCESS,
            "cuThreadExchangeStreamCaptureMode");
    if (current != context_->get()) return "the thread is in another context";
    return mode != CU_STREAM_CAPTURE_MODE_GLOBAL ? "the thread has another capture mode" : "";
  }

 private:
  std::optional<PrimaryContext> context_;
};

/// One life of a communicator, in which `plan` can make calls of this rank fail.
struct Life {
  Outcome outcome;
  Phase hit_in = Phase::none;
  std::string refused;  // error text of destroy

  Life(TestRanks& test_ranks, const ncclUniqueId& id, FaultPlan* plan) {
    std::optional<ScopedCudaFaults> faults;
    if (plan != nullptr) faults.emplace(*plan);
    const auto end = [&](Phase phase) {
      if (plan != nullptr && plan->hit() && hit_in == Phase::none) hit_in = phase;
    };
    ncclComm_t comm = nullptr;
    outcome.note(ncclCommInitRank(&comm, kRanks, id, test_ranks.first()), "ncclCommInitRank");
    end(Phase::set_up);
    if (comm == nullptr) return;
    if (outcome.result == ncclSuccess) {
      ncclComm_t none = nullptr;
      outcome.note(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &none, nullptr), "ncclCommSplit");
      end(Phase::last);
    }
    if (ncclCommDestroy(comm) != ncclSuccess) refused = ncclGetLastError(nullptr);
    end(Phase::destroy);
  }
};

FaultPlan* make_plan(std::optional<FaultPlan>& plan, const DriverWalk& walk, long k) {
  plan.emplace();
  plan->fail_at = k;
  plan->status = kStatuses[static_cast<std::size_t>(walk.seed + k) % kStatuses.size()];
  return &*plan;
}

/// Runs one life with a fault, judged by all ranks. Appends what is wrong to `complaints`.
FaultResult fail_once(TestRanks& test_ranks, const ThreadDevice& device, const DriverWalk& walk,
                      int victim, long k, std::string& complaints) {
  const ncclUniqueId id = test_ranks.next_id();
  const bool mine = test_ranks.first() == victim;
  std::optional<FaultPlan> plan;
  const Life life(test_ranks, id, mine ? make_plan(plan, walk, k) : nullptr);
  test_ranks.word(kOutcome + static_cast<std::size_t>(test_ranks.first())) = life.outcome.word();
  if (mine) test_ranks.word(kHitIn) = static_cast<std::uint64_t>(life.hit_in);
  test_ranks.barrier();
  const FaultResult result = evaluate(test_ranks, victim);
  const std::string where =
      fmt::format("\nrank {}, call {}{}: ", victim, k,
                  mine && plan->hit() ? fmt::format(", {}", plan->failed.load()) : "");
  if (!result.agreed) complaints += where + life.outcome.text;
  if (!life.refused.empty()) complaints += where + life.refused;
  if (const std::string changed = device.changed(); !changed.empty()) complaints += where + changed;
  return result;
}

bool counts(const TestRanks& test_ranks, const DriverWalk& walk) {
  return walk.launch_mode == LaunchMode::processes || test_ranks.first() == 0;
}

/// Returns the rule violations that the driver model has found.
std::string violations(const DriverWalk& walk) {
  const auto& model = instruments(walk).model;
  std::string text;
  if (model == nullptr) return text;
  for (const std::string& violation : model->violations()) text += "\n" + violation;
  return text;
}

void live_well(TestRanks& test_ranks) {
  const Life life(test_ranks, test_ranks.next_id(), nullptr);
  require(life.outcome.result == ncclSuccess && life.refused.empty(),
          life.outcome.text + life.refused);
  test_ranks.barrier();
}

using HoldingsByRank = std::array<Holding, kRanks>;

/// Measures what the process of each rank holds after two communicators without failures.
HoldingsByRank hold_at_rest(const DriverWalk& walk) {
  const Shared<HoldingsByRank> held;
  check_all_ok(run_ranks(walk.launch_mode, kRanks, [&](TestRanks& test_ranks) {
    instruments(walk);
    const ThreadDevice device(test_ranks.first() % walk.devices);
    static_cast<void>(test_ranks.next_id());
    for (int i = 0; i < 2; ++i) live_well(test_ranks);
    std::this_thread::sleep_for(50ms);
    (*held)[static_cast<std::size_t>(test_ranks.first())] = holding(walk);
    test_ranks.barrier();
  }));
  return *held;
}

/// Runs one process's part of one step of walk_driver_calls().
void fail_at_first(TestRanks& test_ranks, const DriverWalk& walk, const Holding& at_rest,
                   int victim, long k) {
  instruments(walk);
  std::string complaints;
  const ThreadDevice device(test_ranks.first() % walk.devices);
  static_cast<void>(test_ranks.next_id());
  const FaultResult result = fail_once(test_ranks, device, walk, victim, k, complaints);
  const auto compare = [&](const char* when) {
    Holding most = at_rest;
    if (!counts(test_ranks, walk) || settles_at(walk, most)) return;
    complaints += fmt::format("\n{}: {} -> {}", when, at_rest.text(), holding(walk).text());
  };
  compare("after the error");
  test_ranks.barrier();
  live_well(test_ranks);
  compare("after the next communicator");
  test_ranks.barrier();
  complaints += violations(walk);
  require(complaints.empty(), complaints);
  // Reports to the test's own process.
  if (test_ranks.first() == 0) test_ranks.word(kOutcome) = result.harmless ? 0 : 1;
}

Variables variables() {
  return {{"ORIEL_BACKEND", "cuda"},
          {"ORIEL_TIMEOUT", "4s"},
          {"ORIEL_SCRATCH_SIZE", "1M"},
          {"ORIEL_SOCKET_IFNAME", "lo"}};
}

}  // namespace

std::string describe(const DriverWalk& walk) {
  return fmt::format("{} on {} {}", name_of(walk.launch_mode), walk.devices,
                     walk.on_model ? "devices of the model" : "GPUs");
}

void walk_driver_calls(const DriverWalk& walk) {
  INFO(describe(walk));
  const Environment environment(variables());
  const HoldingsByRank at_rest = hold_at_rest(walk);
  int agreed = 0, harmless = 0;
  int failures = 0;
  for (int victim = 0; victim < kRanks; ++victim) {
    long misses = 0;
    for (long k = 1 + walk.seed % walk.stride;
         misses * walk.stride < kMissesToEnd && k < kCallsMost && failures < kFailuresMost;
         k += walk.stride) {
      INFO("rank " << victim << ", call " << k);
      RankFixture fixture(walk.launch_mode, kRanks, [&](TestRanks& test_ranks) {
        const auto rank = static_cast<std::size_t>(test_ranks.first());
        fail_at_first(test_ranks, walk, at_rest[rank], victim, k);
      });
      for (const std::string& result : fixture.collect(60s)) {
        CHECK(result == "ok");
        failures += result != "ok" ? 1 : 0;
      }
      const bool hit = fixture.shared().words[kHitIn] != static_cast<std::uint64_t>(Phase::none);
      misses = hit ? 0 : misses + 1;
      if (hit) ++(fixture.shared().words[kOutcome] == 0 ? harmless : agreed);
    }
  }
  std::fprintf(stderr, "%s: %d errors on all ranks, %d without effect\n", describe(walk).c_str(),
               agreed, harmless);
}

}  // namespace oriel::test
