// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <optional>
#include <string>

#include <catch2/catch.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/communicator/rank_communicator.hpp"
#include "comm/group/comm_entry.hpp"
#include "comm/support/network_ranks.hpp"
#include "comm/support/on_model.hpp"
#include "net/support/nic_faults.hpp"
#include "support/cuda/fault_cuda.hpp"
#include "support/seed.hpp"

// GPU ranks of several nodes, on the model of the CUDA driver. The ranks' threads act for the
// kernels, in the model's memory.
namespace oriel::test {
namespace {

/// A file to which each NIC process that has copied appends a letter as it ends.
struct Witness {
  Witness() : fd(::memfd_create("witness", 0)) {}
  ~Witness() { ::close(fd); }
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  std::string path() const {
    return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd);
  }
  std::string text() const {
    char letters[4096] = {};
    const ssize_t count = ::pread(fd, letters, sizeof letters, 0);
    return std::string(letters, count > 0 ? static_cast<std::size_t>(count) : 0);
  }
  int fd;
};

/// Runs GPU ranks, and checks that their NICs' processes leave nothing behind.
void run_gpus(const Nodes& nodes, bool process, const Body& body) {
  const Witness witness;
  run_on_model(nodes, {{"ORIEL_TEST_NIC_WITNESS", witness.path()}}, process, body);
  const std::string witnessed = witness.text();
  CHECK(witnessed.find('!') == std::string::npos);
  CHECK(witnessed.size() >= static_cast<std::size_t>(process ? nodes.ranks() : 0));
  if (!process) CHECK(witnessed.empty());
}

}  // namespace

TEST_CASE("random puts, gets and signals between GPUs of several nodes move the right bytes",
          "[req:3.9][req:3.15]") {
  const std::uint64_t seed = test_seed();
  const bool process = GENERATE(false, true);
  INFO("seed " << seed);
  for (const Nodes& nodes : {Nodes{{1, 1}}, Nodes{{2, 1}}}) {
    run_gpus(nodes, process, [&](TestRanks& test_ranks) { Traffic(test_ranks, seed).run(25); });
  }
}

TEST_CASE("a put between windows of GPUs made before and after their network arrives",
          "[req:3.9]") {
  const bool process = GENERATE(false, true);
  run_gpus({{1, 1}}, process, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const int peer = 1 - test_ranks.first();
    auto memory = must(comm.allocate(1 << 20));
    auto before = must(comm.register_window(memory));
    {
      const auto kernels = must(comm.device_comm(kWorld));
      auto more = must(comm.allocate(1 << 20));
      auto after = must(comm.register_window(more));
      auto* const bytes = static_cast<std::uint8_t*>(memory.data());
      bytes[7] = static_cast<std::uint8_t>(40 + test_ranks.first());
      require(device::world_put_signal(kThread, kernels.view(), peer, after.view(), 100,
                                       before.view(), 7, 1, 2)
                  .outcome,
              "the put");
      require(device::wait_signal(kThread, kernels.view(), 2, 1, peer), "the signal");
      test::require(static_cast<std::uint8_t*>(more.data())[100] == 40 + peer, "the byte");
      device::WorldBarrier<device::Thread> barrier({}, kernels.view(), 0);
      require(barrier.sync(), "the barrier");
      const auto refused = device::world_put(kThread, kernels.view(), peer, after.view(), 1 << 20,
                                             before.view(), 0, 1);
      require_outcome(refused.outcome, device::WorldOutcome::out_of_range, "past the end");
      test_ranks.barrier();
    }
  });
}

TEST_CASE("when a call of the driver fails while queues of GPUs are made, both ranks know it",
          "[req:3.9]") {
  const bool process = GENERATE(false, true);
  run_gpus({{1, 1}}, process, [](TestRanks& test_ranks) {
    const CudaFaultHooks hooks;
    const bool is_victim = test_ranks.first() == 0;
    std::optional<Communicator> comm;
    int failures = 0;
    long misses = 0;
    for (long k = 1; misses < 2; k += 3) {
      if (!comm) comm.emplace(join(test_ranks));
      test_ranks.barrier();
      FaultPlan plan;
      plan.fail_at = k;
      plan.status = CUDA_ERROR_OUT_OF_MEMORY;
      bool good = false;
      std::string text;
      {
        std::optional<ScopedCudaFaults> faults;
        if (is_victim) faults.emplace(plan);
        auto kernels = comm->device_comm(kWorld);
        faults.reset();
        good = kernels.ok();
        if (!good) text = kernels.error().to_string();
        test_ranks.word(static_cast<std::size_t>(test_ranks.first())) = good ? 1 : 0;
        if (is_victim) test_ranks.word(2) = plan.hit() ? 1 : 0;
        test_ranks.barrier();
        test::require(test_ranks.word(0) == test_ranks.word(1),
                      "call " + std::to_string(k) + ": one rank has an error: " + text);
        if (good) {
          device::WorldBarrier<device::Thread> barrier({}, kernels->view(), 0);
          require(barrier.sync(), "the barrier");
        }
        test_ranks.barrier();
      }
      if (!good) test::require(text.find("rank 0") != std::string::npos, text);
      failures += good ? 0 : 1;
      misses = test_ranks.word(2) != 0 ? 0 : misses + 1;
      if (good) comm.reset();  // a kept communicator would reuse its network
      test_ranks.barrier();
    }
    test::require(failures > 5, "failures: " + std::to_string(failures));
  });
}

TEST_CASE("operations that kernels post after an abort reach no peer and are soon refused",
          "[req:3.6]") {
  run_gpus({{1, 1}}, false, [](TestRanks& test_ranks) { post_after_abort(test_ranks, false); });
}

TEST_CASE("a GPU's NIC that dies is named by all, though nothing is asked of it", "[req:3.19]") {
  const Environment timeout(kTimeout);
  run_gpus({{1, 1, 1}}, false, [](TestRanks& test_ranks) {
    constexpr int kDead = 1;
    Rank rank(test_ranks, 4096, kWorld);
    rank.sync("the first barrier");
    test_ranks.barrier();  // no rank is still in the first barrier
    if (test_ranks.first() == kDead) net::test::stop_nic(network_of(rank.comm).nic());
    wait_until_named(rank, kDead, kDead);
    test_ranks.barrier();
  });
}

}  // namespace oriel::test
