// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "gpu/world_gpu.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "api/api_ranks.hpp"
#include "gpu/gpu_ranks.hpp"
#include "gpu/world_ranks.hpp"

/// Tests GPUs that pose as several nodes: kernels access each other's windows through software NICs
/// (3.9, 3.15). "[figures]" prints times (3.21).
namespace oriel::test {
namespace {

const int kGpus = gpus();  // skips the program without a GPU

/// Runs ranks as processes, of which each `per_node` in a row form a node.
void run_in_nodes(int ranks, int per_node, bool direct, const Body& body) {
  INFO(ranks << " ranks, " << per_node << " a node, " << (direct ? "direct copy" : "memfd ring"));
  check_all_ok(run_ranks(LaunchMode::processes, ranks, [&](TestRanks& test_ranks) {
    const Environment environment(
        Variables{{"ORIEL_HOSTID", "node" + std::to_string(test_ranks.first() / per_node)},
                  {"NCCL_P2P_DISABLE", direct ? "0" : "1"},
                  {"ORIEL_COLLECTIVE_TIMEOUT", "20"}});
    body(test_ranks);
  }));
}

void exchange(TestRanks& test_ranks, std::uint64_t bytes, std::uint32_t rounds) {
  const std::uint64_t part = (bytes + 511) / 512 * 512;
  const auto parts = static_cast<std::uint64_t>(test_ranks.size()) + 2;
  WorldRank rank(test_ranks, parts * part);
  const Pinned<WorldResult> result;
  WorldTraffic job;
  job.comm = rank.kernels.view();
  job.window = rank.window.view();
  job.part = part;
  job.bytes = bytes;
  job.rounds = rounds;
  job.result = result.get();
  test_ranks.barrier();
  require_cuda(static_cast<cudaError_t>(launch_world_traffic(job, rank.gpu.stream())), "launch");
  rank.gpu.wait(rank.gpu.stream(), nullptr);
  rank.check(*result.get(), "the traffic");
  test_ranks.barrier();
}

void ping(TestRanks& test_ranks, std::uint64_t bytes, std::uint32_t rounds, const char* path) {
  WorldRank rank(test_ranks, std::max<std::uint64_t>(2 * bytes, 4096));
  const Pinned<WorldResult> result;
  const Pinned<std::uint64_t> cycles(rounds);
  WorldPing job;
  job.comm = rank.kernels.view();
  job.window = rank.window.view();
  job.bytes = bytes;
  job.rounds = rounds;
  job.cycles = cycles.get();
  job.result = result.get();
  test_ranks.barrier();
  require_cuda(static_cast<cudaError_t>(launch_world_ping(job, rank.gpu.stream())), "launch");
  rank.gpu.wait(rank.gpu.stream(), nullptr);
  rank.check(*result.get(), "the game");
  if (test_ranks.first() == 0) {
    std::vector<std::uint64_t> all(cycles.get(), cycles.get() + rounds);
    std::sort(all.begin(), all.end());
    const double ns =
        static_cast<double>(result->nanoseconds) / static_cast<double>(result->cycles);
    std::printf("world_put_signal of %llu bytes, %s: half a round trip %.2f us, least %.2f\n",
                static_cast<unsigned long long>(bytes), path,
                static_cast<double>(all[rounds / 2]) * ns / 2e3,
                static_cast<double>(all[0]) * ns / 2e3);
    std::fflush(stdout);
  }
  test_ranks.barrier();
}

/// Runs a kernel that waits for a signal of rank 0 and sends nothing, while rank 0 is stopped.
void wait_for_still_rank(TestRanks& test_ranks) {
  using namespace std::chrono_literals;
  using std::chrono::steady_clock;
  WorldRank rank(test_ranks, 4096);
  const Pinned<WorldResult> result;
  const Pinned<std::uint64_t> cycles(1);
  test_ranks.barrier();
  if (test_ranks.first() == 0) {
    test_ranks.word(0) = static_cast<std::uint64_t>(getpid());
    std::raise(SIGSTOP);  // stops all threads, the NIC's too
    test_ranks.barrier();
    return;
  }
  while (test_ranks.word(0) == 0) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(100ms);
  WorldPing job;
  job.comm = rank.kernels.view();
  job.window = rank.window.view();
  job.bytes = 8;
  job.rounds = 1;
  job.cycles = cycles.get();
  job.result = result.get();
  const auto begin = steady_clock::now();
  require_cuda(static_cast<cudaError_t>(launch_world_ping(job, rank.gpu.stream())), "launch");
  const bool ended = rank.gpu.done(rank.gpu.stream());
  const std::chrono::duration<double> seconds = steady_clock::now() - begin;
  const auto error = rank.comm.async_error();
  kill(static_cast<pid_t>(test_ranks.word(0).load()), SIGCONT);
  require(ended, "the kernel has ended");
  require(static_cast<device::WorldOutcome>(result->outcome) == device::WorldOutcome::aborted,
          "the wait was ended from outside");
  // The error comes from the timeout of rank 0 as a peer, not from that of this rank's wait.
  require(error && error->origin_rank() == 0 && error->code() == ErrorCode::remote,
          error ? error->to_string() : "no error");
  std::printf("put of nothing: a silent rank was named after %.1f s\n", seconds.count());
  std::fflush(stdout);
  test_ranks.barrier();
}

}  // namespace

TEST_CASE("a stopped rank that a kernel waits for is named after the peer timeout", "[req:3.19]") {
  const bool direct = GENERATE(true, false);
  if (!direct && kGpus < 2) return;  // to save time
  run_in_nodes(2, 1, direct, wait_for_still_rank);
}

TEST_CASE("kernels of GPUs on several nodes put, signal, get and meet, byte by byte",
          "[req:3.9][req:3.15]") {
  const bool direct = GENERATE(true, false);
  for (const std::uint64_t bytes :
       {std::uint64_t{8}, std::uint64_t{3001}, std::uint64_t{2} << 20}) {
    const std::uint32_t rounds = kGpus < 2 ? 4 : 20;  // fewer if ranks share a GPU
    run_in_nodes(2, 1, direct, [&](TestRanks& test_ranks) { exchange(test_ranks, bytes, rounds); });
  }
  const bool shared = kGpus < 4;
  const std::uint32_t rounds = shared ? 3 : 20;
  for (const int per_node : {2, 1}) {
    if (shared && direct != (per_node == 2)) continue;  // to save time
    run_in_nodes(4, per_node, direct,
                 [&](TestRanks& test_ranks) { exchange(test_ranks, 100'001, rounds); });
  }
}

TEST_CASE("prints the time from a world_put_signal of 8 bytes until its signal is visible",
          "[req:3.21][.][figures]") {
  for (const bool direct : {true, false}) {
    run_in_nodes(2, 1, direct, [&](TestRanks& test_ranks) {
      ping(test_ranks, 8, kGpus < 2 ? 200 : 2000, direct ? "direct copy" : "memfd ring");
    });
  }
}

}  // namespace oriel::test
