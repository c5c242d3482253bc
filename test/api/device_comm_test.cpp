// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "oriel/device/barrier.hpp"
#include "oriel/device/group.hpp"

#include "../examples/03_own_kernel/own_kernel.hpp"
#include "api/all_modes.hpp"
#include "api/api_ranks.hpp"

/// Tests communicators for user-written kernels.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
using device::WaitOutcome;
using Barrier = device::LsaBarrier<device::Thread>;

// Polls until the monitor has reported an error; gives up after 3 s.
std::optional<Error> error_of(const Communicator& comm) {
  for (int i = 0; i < 300 && !comm.async_error(); ++i) std::this_thread::sleep_for(10ms);
  return comm.async_error();
}

TEST_CASE("a device communicator's view says who is where, and its barriers begin at zero",
          "[req:1.25]") {
  in_all_modes(3, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const auto kernels = must(comm.device_comm({.barrier_slots = 5}));
    const device::CommView& view = kernels.view();
    require(view.world_rank == test_ranks.first() && view.world_size == 3, "in the world");
    require(view.lsa_rank == test_ranks.first() && view.lsa_size == 3, "in the team");
    require(view.barrier_slots == 5 && view.wait.self == test_ranks.first(), "as asked for");
    for (int i = 0; i < 3; ++i) require(view.world_rank_of(i) == i, "the team's ranks");
    for (std::uint64_t at = 0; at < device::LsaBarrierLayout::bytes_needed(3, 5); ++at) {
      require(*view.control(view.lsa_rank, view.barrier_offset + at) == 0, "fresh flags");
    }
    test_ranks.barrier();
    // Runs slot + 1 barrier rounds on each slot.
    for (std::uint32_t slot = 0; slot < 5; ++slot) {
      for (std::uint32_t round = 0; round <= slot; ++round) {
        Barrier barrier({}, view, slot);
        require(barrier.sync() == WaitOutcome::ready, "the barrier");
      }
    }
    Barrier outside({}, view, 5);
    require(outside.sync() == WaitOutcome::aborted, "a slot that does not exist");
    test_ranks.barrier();
  });
}

TEST_CASE("a user's kernel, another one and the library's all-reduce do not disturb each other",
          "[req:1.25]") {
  in_all_modes(2, [](TestRanks& test_ranks) {
    constexpr std::uint64_t kCount = 777;
    constexpr int kRounds = 50;
    auto comm = join(test_ranks);
    const auto memory = must(comm.allocate(4 * 4096));
    auto* const base = static_cast<std::byte*>(memory.data());
    const MemoryRange ranges[] = {
        {base, 4096}, {base + 4096, 4096}, {base + 8192, 4096}, {base + 12288, 4096}};
    const auto windows = must(comm.register_windows(ranges));
    const auto first = must(comm.device_comm({.barrier_slots = 1}));
    const auto second = must(comm.device_comm({.barrier_slots = 2}));
    for (const int w : {0, 2}) {
      auto* const x = static_cast<float*>(windows[static_cast<std::size_t>(w)].data());
      for (std::uint64_t i = 0; i < kCount; ++i) {
        x[i] = static_cast<float>(i) * static_cast<float>(test_ranks.first() + w + 1);
      }
    }
    test_ranks.barrier();
    bool good[2] = {true, true};
    const auto run = [&](int which, const DeviceComm& kernels) {
      const auto at = static_cast<std::size_t>(2 * which);
      const FusedScaleAllReduce job{kernels.view(), windows[at].view(), windows[at + 1].view(),
                                    kCount, 2.0f};
      for (int round = 0; round < kRounds; ++round) {
        good[which] = good[which] && fused_scale_all_reduce(device::Thread{}, job, 0, 1);
      }
      const auto* const y = static_cast<const float*>(windows[at + 1].data());
      const float factor = 2.0f * static_cast<float>(2 * which + 1 + 2 * which + 2);
      for (std::uint64_t i = 0; i < kCount; ++i) {
        good[which] = good[which] && y[i] == factor * static_cast<float>(i);
      }
    };
    {
      std::jthread one([&] { run(0, first); });
      std::jthread other([&] { run(1, second); });
      for (int round = 0; round < kRounds; ++round) {
        float value = static_cast<float>(test_ranks.first() + round);
        must(comm.all_reduce({.input = &value, .output = &value, .count = 1}));
        require(value == static_cast<float>(2 * round + 1), "the library's sum");
      }
    }
    require(good[0] && good[1], "the kernels' results");
    test_ranks.barrier();
  });
}

TEST_CASE("a wait for a rank that itself waits blames the rank that the other waits for",
          "[req:1.12]") {
  const Environment environment(Variables{{"ORIEL_COLLECTIVE_TIMEOUT", "1200ms"}});
  in_all_modes(3, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const auto kernels = must(comm.device_comm({}));
    const int rank = test_ranks.first();
    test_ranks.barrier();
    // Rank 2 starts to wait for rank 0 before rank 0 starts to wait for rank 1. Hence rank 2 times
    // out first.
    if (rank == 1) return test_ranks.barrier();
    if (rank == 0) std::this_thread::sleep_for(200ms);
    const auto never = [] { return false; };
    const WaitOutcome waited = device::wait_until(never, kernels.view().wait, {rank == 2 ? 0 : 1});
    require(waited != WaitOutcome::ready, "the wait");
    const auto error = error_of(comm);
    require(error.has_value() && error->origin_rank() == 1,
            error ? error->to_string() : "there is no error");
    test_ranks.barrier();
  });
}

TEST_CASE("ranks that ask for different device communicators get the same error", "[req:1.25]") {
  in_all_modes(2, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const auto rank = static_cast<std::uint32_t>(test_ranks.first());
    must_fail(comm.device_comm({.barrier_slots = 4 + rank}), ErrorCode::invalid_usage,
              {"barrier_slots", "4", "5"});
    must_fail(comm.device_comm({.barrier_slots = rank}), ErrorCode::invalid_argument,
              {"rank 0", "barrier_slots is 0", "65536"});
    must_fail(comm.device_comm({.barrier_slots = 65537}), ErrorCode::invalid_argument, {"65537"});
    // Rank 1 passes the version of older headers.
    constexpr std::uint32_t old_version = device::kDeviceVersion - 1;
    must_fail(comm.device_comm({.device_version = device::kDeviceVersion - rank}),
              ErrorCode::invalid_usage,
              {"rank 1", fmt::format("version {} of Oriel's device headers", old_version),
               fmt::format("this library with {}", device::kDeviceVersion)});
    const auto kernels = must(comm.device_comm({.barrier_slots = 65536}));
    Barrier barrier({}, kernels.view(), 65535);
    require(barrier.sync() == WaitOutcome::ready, "the last slot");
    test_ranks.barrier();
  });
}

TEST_CASE("a user's kernel ends when a peer dies, and the communicator names it", "[req:1.12]") {
  RankFixture fixture(LaunchMode::processes, 3, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const auto kernels = must(comm.device_comm());
    test_ranks.word(0) += 1;
    if (test_ranks.first() == 1) std::this_thread::sleep_for(60s);
    Barrier barrier({}, kernels.view(), 0);
    require(barrier.sync() == WaitOutcome::aborted, "the wait of a dead rank's peer");
    const auto error = error_of(comm);
    require(error && error->origin_rank() == 1, error ? error->to_string() : "no error");
    must_fail(comm.device_comm(), error->code(), {"rank 1"});
  });
  REQUIRE(fixture.wait_for_word(0, 3, 30s));
  std::this_thread::sleep_for(100ms);
  const auto killed = std::chrono::steady_clock::now();
  fixture.kill(1, SIGKILL);
  const auto results = fixture.collect(30s);
  CHECK(std::chrono::steady_clock::now() - killed < 5s);
  CHECK(results[0] == "ok");
  CHECK(results[2] == "ok");
}

TEST_CASE("a user's kernel gives up after ORIEL_COLLECTIVE_TIMEOUT, which names the culprit",
          "[req:1.12]") {
  Environment environment(Variables{{"ORIEL_COLLECTIVE_TIMEOUT", "500ms"}});
  in_all_modes(2, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const auto kernels = must(comm.device_comm());
    if (test_ranks.first() == 0) {
      Barrier barrier({}, kernels.view(), 3);
      require(barrier.sync() == WaitOutcome::timed_out, "the wait");
      require(barrier.sync() == WaitOutcome::timed_out, "a session that has ended");
    }
    const auto error = error_of(comm);
    require(error && error->origin_rank() == 1, error ? error->to_string() : "no error");
    test_ranks.barrier();
  });
}

TEST_CASE("abort() ends the waits of a user's kernel on both ranks", "[req:1.12]") {
  in_all_modes(2, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const auto kernels = must(comm.device_comm());
    // Rank 0 waits on one slot and rank 1 on another, so neither wait can succeed.
    WaitOutcome outcome = WaitOutcome::ready;
    std::jthread waiter([&] {
      Barrier barrier({}, kernels.view(), static_cast<std::uint32_t>(test_ranks.first()));
      outcome = barrier.sync();
    });
    std::this_thread::sleep_for(200ms);
    if (test_ranks.first() == 0) comm.abort();
    waiter.join();
    require(outcome == WaitOutcome::aborted, "the wait");
    require(error_of(comm).has_value(), "the asynchronous error");
    test_ranks.barrier();
  });
}

TEST_CASE("with several nodes a device communicator's LSA team has its own node's ranks only",
          "[req:1.14]") {
  check_all_ok(run_ranks(LaunchMode::processes, 4, [](TestRanks& test_ranks) {
    // Nodes {0, 2} and {1, 3}.
    const Environment environment(
        Variables{{"ORIEL_HOSTID", test_ranks.first() % 2 == 0 ? "even" : "odd"}});
    auto comm = join(test_ranks);
    const int odd = test_ranks.first() % 2;
    require(comm.lsa_team() == std::vector<int>{odd, odd + 2}, "the team");
    const auto kernels = must(comm.device_comm({.barrier_slots = 1}));
    const device::CommView& view = kernels.view();
    require(view.world_size == 4 && view.lsa_size == 2, "the sizes");
    require(view.lsa_rank == test_ranks.first() / 2, "the place");
    require(view.world_rank_of(0) == odd && view.world_rank_of(1) == odd + 2, "the ranks");
    Barrier barrier({}, view, 0);
    require(barrier.sync() == WaitOutcome::ready, "the barrier");
    const auto memory = must(comm.allocate(4096));
    const auto window = must(comm.register_window(memory));
    require(window.view().world_peer(1 - odd, 0, 4) == nullptr, "a rank out of reach");
    require(window.view().world_peer(odd + 2, 0, 4) != nullptr, "a rank within reach");
    test_ranks.barrier();
  }));
}

TEST_CASE("barriers work in teams of 16 and 17 ranks, whose tables differ in size", "[req:1.14]") {
  constexpr int kFirst = 16, kRanks = 33;
  check_all_ok(run_ranks(LaunchMode::processes, kRanks, [](TestRanks& test_ranks) {
    const int begin = test_ranks.first() < kFirst ? 0 : kFirst;
    const Environment environment(Variables{{"ORIEL_HOSTID", begin == 0 ? "first" : "second"}});
    auto comm = join(test_ranks);
    const auto kernels = must(comm.device_comm({.barrier_slots = 2}));
    const device::CommView& view = kernels.view();
    require(view.lsa_size == (begin == 0 ? kFirst : kRanks - kFirst), "the size of the team");
    for (int i = 0; i < view.lsa_size; ++i) {
      require(view.world_rank_of(i) == begin + i, "the team's ranks");
    }
    for (std::uint32_t slot = 0; slot < 2; ++slot) {
      Barrier barrier({}, view, slot);
      for (int round = 0; round < 3; ++round) {
        require(barrier.sync() == WaitOutcome::ready, "the barrier");
      }
    }
    test_ranks.barrier();
  }));
}

TEST_CASE("fifteen ranks on nodes of seven and eight register windows in their teams",
          "[req:1.14]") {
  constexpr int kFirst = 7, kRanks = 15;
  check_all_ok(run_ranks(LaunchMode::processes, kRanks, [](TestRanks& test_ranks) {
    const int rank = test_ranks.first();
    const int begin = rank < kFirst ? 0 : kFirst;
    const int end = rank < kFirst ? kFirst : kRanks;
    const Environment environment(Variables{{"ORIEL_HOSTID", rank < kFirst ? "seven" : "eight"}});
    auto comm = join(test_ranks);
    std::vector<int> team;
    for (int one = begin; one < end; ++one) team.push_back(one);
    require(comm.lsa_team() == team, "the team");
    const auto kernels = must(comm.device_comm());
    require(kernels.view().world_size == kRanks, "the size of the world");
    require(kernels.view().lsa_size == end - begin, "the size of the team");
    require(kernels.view().lsa_rank == rank - begin, "the place in the team");
    const auto memory = must(comm.allocate(4096));
    const auto window = must(comm.register_window(memory));
    auto* const own = static_cast<std::atomic<int>*>(window.view().world_peer(rank, 0, 4));
    require(own != nullptr, "its own memory");
    own->store(100 + rank);
    test_ranks.barrier();
    for (int peer = 0; peer < kRanks; ++peer) {
      auto* const there = static_cast<std::atomic<int>*>(window.view().world_peer(peer, 0, 4));
      const bool within = peer >= begin && peer < end;
      require((there != nullptr) == within, "within reach are those of the node");
      require(!within || there->load() == 100 + peer, "what the peer has stored");
    }
    test_ranks.barrier();
  }));
}

}  // namespace
}  // namespace oriel::test
