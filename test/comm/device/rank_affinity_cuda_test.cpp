// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nccl.h"

#include "comm/support/model_gpu.hpp"
#include "support/numa_machine.hpp"
#include "support/numa_system.hpp"
#include "support/process_state.hpp"
#include "topo/choice/placement.hpp"

// Threads and pinned memory of GPU ranks, on the model of the CUDA driver. Device 0 is at NUMA node
// 0 with processors 0-3, device 1 at node 1 with processors 4-7.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
using Numbers = std::vector<int>;

/// Records the memory policy in force at each allocation of pinned memory.
class PinnedAllocations {
 public:
  explicit PinnedAllocations(const NumaSystem& system) : table_(make_table(system)) {}
  const std::vector<NumaSystem::Policy>& policies() const { return policies_; }

 private:
  CudaTable make_table(const NumaSystem& system) {
    self() = this;
    system_ = &system;
    below_ = cuda();
    CudaTable table = below_;
    table.mem_host_alloc = [](void** out, std::size_t bytes, unsigned flags) {
      {
        const std::lock_guard lock(self()->system_->mutex);
        self()->policies_.push_back(self()->system_->policy);
      }
      return self()->fails ? CUDA_ERROR_OUT_OF_MEMORY
                           : self()->below_.mem_host_alloc(out, bytes, flags);
    };
    return table;
  }
  static PinnedAllocations*& self() {
    static PinnedAllocations* object = nullptr;
    return object;
  }

  const NumaSystem* system_ = nullptr;
  CudaTable below_{};
  std::vector<NumaSystem::Policy> policies_;

 public:
  bool fails = false;

 private:
  CudaTable table_;
  ScopedCudaTable scoped_{table_};
};

Variables variables() {
  return {{"ORIEL_BACKEND", "cuda"}, {"ORIEL_SOCKET_IFNAME", "lo"}, {"ORIEL_SCRATCH_SIZE", "1M"}};
}

pid_t own_thread() {
  return static_cast<pid_t>(::syscall(SYS_gettid));
}

void await_move(const NumaSystem& system, const Numbers& cpus) {
  const auto is_moved = [&] {
    const auto placements = system.seen_placements();
    return std::any_of(placements.begin(), placements.end(),
                       [&](const auto& placement) { return placement.cpus == cpus; });
  };
  require(eventually(is_moved), "no thread has been moved near the GPUs");
}

void require_own_thread_stays(const NumaSystem& system) {
  for (const auto& placement : system.seen_placements()) {
    require(placement.thread != own_thread(), "the user's thread has been moved");
  }
}

/// Returns the threads of this process, with the processors on which the kernel lets them run.
std::map<pid_t, std::string> threads_of_this_process() {
  std::map<pid_t, std::string> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(entry.path() / "status");  // empty if the thread has ended
    constexpr std::string_view kCpus = "Cpus_allowed_list:\t";
    for (std::string line; std::getline(status, line);) {
      if (line.rfind(kCpus, 0) != 0) continue;
      threads[std::stoi(entry.path().filename())] = line.substr(kCpus.size());
    }
  }
  return threads;
}

Numbers cpus_of(int rank) {
  return rank == 0 ? Numbers{0, 1, 2, 3} : Numbers{4, 5, 6, 7};
}

}  // namespace

TEST_CASE("the monitor of a GPU rank runs, and its notices lie, near its GPU", "[req:2.5]") {
  const Environment environment(variables());
  for (const bool fails : {false, true}) {
    INFO((fails ? "pinned memory cannot be had" : "all goes well"));
    check_all_ok(run_ranks(LaunchMode::processes, 2, [fails](TestRanks& test_ranks) {
      const int rank = test_ranks.first();
      const FakeCuda& model = model_with_current_device(FakeCuda::Options{.devices = 2}, rank);
      const NumaMachine machine;
      const NumaSystem system;
      PinnedAllocations pinned(system);
      pinned.fails = fails && rank == 1;
      ncclComm_t comm = nullptr;
      const ncclResult_t started = ncclCommInitRank(&comm, 2, test_ranks.next_id(), rank);
      require((started == ncclSuccess) == !fails, ncclGetLastError(nullptr));
      require(pinned.policies().size() == 1, "pinned memory");
      require(pinned.policies()[0] == NumaSystem::Policy{MPOL_PREFERRED, {rank}}, "its node");
      // The policy is restored even after a failure.
      require(system.policy == NumaSystem::Policy{MPOL_DEFAULT, {}}, "the policy is put back");
      if (!fails) {
        await_move(system, cpus_of(rank));
        require(ncclCommDestroy(comm), "ncclCommDestroy");
      }
      require_own_thread_stays(system);
      for (const std::string& violation : model.violations()) require(false, violation);
    }));
  }
}

TEST_CASE("with GPUs of two nodes in one process, the monitor runs near both", "[req:2.5]") {
  const Environment environment(variables());
  check_all_ok(run_ranks(LaunchMode::processes, 1, [](TestRanks& test_ranks) {
    model_with_current_device(FakeCuda::Options{.devices = 2}, 0);
    const NumaMachine machine;
    NumaSystem system;
    system.cpus.push_back(8);  // at neither node
    ncclComm_t first = nullptr, second = nullptr;
    require(ncclCommInitRank(&first, 1, test_ranks.next_id(), 0), "the first");
    await_move(system, cpus_of(0));
    auto context = PrimaryContext::retain(1);
    require(context.ok(), "no second context");
    require(cuda().ctx_push_current(context->get()) == CUDA_SUCCESS, "cuCtxPushCurrent");
    require(ncclCommInitRank(&second, 1, test_ranks.next_id(), 0), "the second");
    await_move(system, {0, 1, 2, 3, 4, 5, 6, 7});
    require(ncclCommDestroy(first), "ncclCommDestroy");
    await_move(system, cpus_of(1));
    require(ncclCommDestroy(second), "ncclCommDestroy");
    require_own_thread_stays(system);
    CUcontext popped = nullptr;
    require(cuda().ctx_pop_current(&popped) == CUDA_SUCCESS, "cuCtxPopCurrent");
  }));
}

TEST_CASE("the threads of a GPU rank's network run near its GPU, and nowhere else", "[req:2.5]") {
  const auto cpus = topo::cpus_of_this_thread();
  if (!cpus || cpus->size() < 2) {
    WARN("skipped: one processor");
    return;
  }
  const Numbers near = {cpus->front(), cpus->back()};
  const Environment environment(variables());
  check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    const int rank = test_ranks.first();
    const std::string own_cpu = std::to_string(near[static_cast<std::size_t>(rank)]);
    const Environment own(
        Variables{{"ORIEL_HOSTID", rank == 0 ? "a" : "b"}, {"ORIEL_NIC_PROCESS", "0"}});
    FakeCuda& model = model_with_current_device(FakeCuda::Options{.devices = 2}, rank);
    const std::jthread engine([&model](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        if (model.run_streams(2) == 0) std::this_thread::sleep_for(100us);
      }
    });
    const NumaMachine machine(std::to_string(near[0]), std::to_string(near[1]));
    const auto before = threads_of_this_process();
    std::vector<ncclComm_t> comms = test_ranks.init();
    // Threads of the library are the monitor, the NIC's thread and others. Threads that only serve
    // the bootstrap end with it.
    const auto all_are_near = [&] {
      int ours = 0;
      for (const auto& [thread, allowed] : threads_of_this_process()) {
        if (before.count(thread) != 0) continue;
        if (allowed != own_cpu) return false;
        ++ours;
      }
      return ours >= 2;
    };
    require(eventually(all_are_near), "a thread of the network runs elsewhere");
    require(threads_of_this_process().at(own_thread()) == before.at(own_thread()),
            "the user's thread has been moved");
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("background threads run on CPUs near the GPU", "[req:2.5]") {
  const Environment environment(variables());
  check_all_ok(run_ranks(LaunchMode::processes, 1, [](TestRanks& test_ranks) {
    model_with_current_device(FakeCuda::Options{.devices = 2}, 0);
    const NumaMachine machine;
    const NumaSystem system;
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    const ncclResult_t started = ncclCommInitRankConfig(&comm, 1, test_ranks.next_id(), 0, &config);
    require(started == ncclInProgress, "init");
    require(eventually([&] { return state_of(comm) != ncclInProgress; }), "init goes on");
    require(state_of(comm), "init");
    // Two threads: one runs init, one is the monitor.
    require(eventually([&] { return system.seen_placements().size() == 2; }), "two threads");
    const auto placements = system.seen_placements();
    require(placements[0].thread != placements[1].thread, "two threads");
    for (const auto& placement : placements) require(placement.cpus == cpus_of(0), "the GPU's");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    require_own_thread_stays(system);
  }));
}

TEST_CASE("a GPU rank starts where nothing may be moved, and on settings that forbid it",
          "[req:2.5]") {
  const Environment environment(variables());
  for (const char* affinity : {"1", "0"}) {
    const Environment switched(Variables{{"ORIEL_CPU_AFFINITY", affinity}});
    check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
      const int rank = test_ranks.first();
      model_with_current_device(FakeCuda::Options{.devices = 2}, rank);
      const NumaMachine machine;
      NumaSystem system;
      system.cpu_status = EINVAL;
      system.memory_status = EPERM;
      std::vector<ncclComm_t> comms = test_ranks.init();
      std::this_thread::sleep_for(50ms);
      test_ranks.destroy(comms);
      const bool asked = affinity[0] == '1';
      require(system.seen_placements().empty() == !asked, "threads");
      require(system.policies.empty() == !asked, "memory");
    }));
  }
}

}  // namespace oriel::test
