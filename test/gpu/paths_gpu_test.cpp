// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include <catch2/catch.hpp>

#include "comm/support/path_ranks.hpp"
#include "gpu/gpu_ranks.hpp"
#include "gpu/world_ranks.hpp"
#include "net/support/nic_faults.hpp"

/// Tests GPUs whose NICs fail while kernels use them (3.14, row B5). The kernels continue on the
/// backup path without an error. Links with the library's modules, so that it can stop a NIC.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

const int kGpus = gpus();  // skips the program without a GPU
const bool kHasFabric = skip_without_fabric();

constexpr std::uint64_t kBytes = 100'001;
constexpr std::uint32_t kRounds = 400;

NetworkInside network_of(const WorldRank& rank) {
  return oriel::test::network_of(rank.comm);
}

bool is_on(const WorldRank& rank, int peer, int path) {
  const auto pace = network_of(rank).failover(peer)->pace();
  return pace.path == path && pace.is_settled;
}

void await_path(const WorldRank& rank, int peer, int path) {
  for (int i = 0; i < 2000 && !is_on(rank, peer, path); ++i) std::this_thread::sleep_for(10ms);
  require(is_on(rank, peer, path), "the queue goes by path " + std::to_string(path));
}

/// Runs the traffic kernel on all ranks, and calls a function while the kernel runs.
class Kernels {
 public:
  Kernels(TestRanks& test_ranks, WorldRank& rank, std::uint64_t part)
      : test_ranks_(test_ranks), rank_(rank) {
    job_.comm = rank.kernels.view();
    job_.window = rank.window.view();
    job_.part = part;
    job_.bytes = kBytes;
    job_.rounds = kRounds;
    job_.result = result_.get();
  }
  /// Calls `meanwhile` after NIC 0 has sent 60 requests of the kernel, or after 10 s. Fails if the
  /// kernel has ended by then.
  template <class Meanwhile>
  void run(const Meanwhile& meanwhile) {
    *result_.get() = WorldResult();
    test_ranks_.barrier();
    const auto before = requests();
    require_cuda(static_cast<cudaError_t>(launch_world_traffic(job_, rank_.gpu.stream())),
                 "launch");
    for (int i = 0; i < 20'000 && requests() < before + 60; ++i) std::this_thread::sleep_for(500us);
    require(cudaStreamQuery(rank_.gpu.stream()) == cudaErrorNotReady, "the kernel runs");
    meanwhile();
    rank_.gpu.wait(rank_.gpu.stream(), nullptr);
    rank_.check(*result_.get(), "the traffic");
    job_.earlier += kRounds;
    test_ranks_.barrier();
  }

 private:
  std::uint64_t requests() const { return net::test::traffic(network_of(rank_).nic(0)).requests; }
  TestRanks& test_ranks_;
  WorldRank& rank_;
  const Pinned<WorldResult> result_;
  WorldTraffic job_;
};

void fail_in_kernel(TestRanks& test_ranks, bool dies) {
  const std::uint64_t part = (kBytes + 511) / 512 * 512;
  WorldRank rank(test_ranks, (static_cast<std::uint64_t>(test_ranks.size()) + 2) * part);
  const int peer = 1 - test_ranks.first();
  Kernels kernels(test_ranks, rank, part);
  require(is_on(rank, peer, 0), "the first path");
  kernels.run([&] {
    if (test_ranks.first() != 1) return;
    net::test::stop_nic(network_of(rank).nic(0));
  });
  require(is_on(rank, peer, 1), "the backup");
  require(!rank.comm.async_error(), "no error");
  test_ranks.barrier();
  if (!dies) {
    if (test_ranks.first() == 1) net::test::resume_nic(network_of(rank).nic(0));
    await_path(rank, peer, 0);
    test_ranks.barrier();
    kernels.run([] {});
    require(is_on(rank, peer, 0), "the first path again");
  }
  test_ranks.barrier();
}

}  // namespace

TEST_CASE("a GPU's NIC dies, or stops, in the midst of a kernel, which ends on the backup",
          "[req:3.14][B5]") {
  const bool dies = GENERATE(true, false);
  const bool process = GENERATE(true, false);
  INFO((dies ? "it dies" : "it stops") << (process ? ", a process copies" : ""));
  check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    const Environment common(kTwoPaths);
    const Environment own(Variables{{"ORIEL_HOSTID", "node" + std::to_string(test_ranks.first())},
                                    {"ORIEL_NIC_PROCESS", process ? "1" : "0"}});
    fail_in_kernel(test_ranks, dies);
  }));
}

}  // namespace oriel::test
