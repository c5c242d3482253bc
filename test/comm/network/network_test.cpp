// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <dlfcn.h>

#include "comm/support/direct_copies.hpp"
#include "comm/support/foreign_key.hpp"
#include "comm/support/network_ranks.hpp"
#include "support/seed.hpp"

/// Ranks of several nodes that reach each other's windows through queues (3.9, 3.15).
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
using device::Thread;
using device::world_flush;
using device::world_get;
using device::world_put;
using device::world_put_signal;
using device::world_signal;
using device::world_wait;
using device::WorldOutcome;
using WorldBarrier = device::WorldBarrier<Thread>;

}  // namespace

TEST_CASE("random puts, gets and signals between nodes, with and without wire, byte by byte",
          "[req:3.9][req:3.15]") {
  const std::uint64_t seed = test_seed();
  const WithDirectCopies copies(GENERATE(false, true));
  for (const Nodes& nodes : {Nodes{{1, 1}}, Nodes{{2, 3}}, Nodes{{1, 2, 1}}, Nodes{{1, 1, 1, 1}}}) {
    run_on_nodes(nodes, {}, [&](TestRanks& test_ranks) { Traffic(test_ranks, seed).run(60); });
  }
}

TEST_CASE("within one node the same kernels go by loads and stores, and nothing is made",
          "[req:3.15]") {
  for (const LaunchMode launch_mode : {LaunchMode::processes, LaunchMode::threads}) {
    check_all_ok(run_ranks(launch_mode, 3, [](TestRanks& test_ranks) {
      Traffic(test_ranks, 5).run(60);
      auto comm = join(test_ranks);
      const auto kernels = must(comm.device_comm(kWorld));
      test::require(kernels.view().network == nullptr, "no network");
      test_ranks.barrier();
    }));
  }
}

TEST_CASE("a peer that sees the signal sees the bytes", "[req:3.15]") {
  run_on_nodes({{1, 1}}, {}, [](TestRanks& test_ranks) {
    constexpr std::size_t kBytes = 300'000;
    Rank rank(test_ranks, 2 * kBytes, kWorld);
    const auto view = rank.window.view();
    const int peer = 1 - test_ranks.first();
    rank.sync("the first barrier");
    for (std::uint64_t round = 1; round <= 20; ++round) {
      for (std::size_t i = 0; i < kBytes; i += 997) {
        *rank.at(kBytes + i) = pattern(test_ranks.first(), round, i);
      }
      require(
          world_put_signal(kThread, rank.view(), peer, view, 0, view, kBytes, kBytes, 3).outcome,
          "the put");
      require(device::wait_signal(kThread, rank.view(), 3, round, peer), "the signal");
      for (std::size_t i = 0; i < kBytes; i += 997) {
        test::require(*rank.at(i) == pattern(peer, round, i), "the bytes before the signal");
      }
      // The peer has read the bytes that this rank overwrites next, and this rank's source is free.
      require(world_flush(kThread, rank.view()), "the flush");
      require(world_signal(kThread, rank.view(), peer, 4).outcome, "the answer");
      require(device::wait_signal(kThread, rank.view(), 4, round, peer), "the peer's answer");
    }
    rank.sync("the last barrier");
  });
}

TEST_CASE("after a world barrier a rank sees all puts to it, whichever rank made them",
          "[req:3.15]") {
  // Runs without and with direct copies. Through the ring, a put takes longer than a barrier.
  const WithDirectCopies copies(GENERATE(false, true));
  run_on_nodes({{2, 1, 1}}, {}, [](TestRanks& test_ranks) {
    constexpr std::size_t kBytes = 512 * 1024;
    Rank rank(test_ranks, 2 * kBytes, kWorld);
    const auto view = rank.window.view();
    const int me = test_ranks.first(), size = test_ranks.size();
    // Selects a rank that learns of this rank's arrival only through another rank. Its barrier
    // could end before so many bytes have arrived.
    const int third = (me + 3) % size, source = (me + 1) % size;
    for (std::uint64_t round = 1; round <= 20; ++round) {
      std::fill_n(rank.at(0), kBytes, pattern(me, round, 0));
      require(world_put(kThread, rank.view(), third, view, kBytes, view, 0, kBytes).outcome,
              "a put");
      rank.sync("the barrier");
      test::require(*rank.at(kBytes) == pattern(source, round, 0), "the first byte");
      test::require(*rank.at(2 * kBytes - 1) == pattern(source, round, 0), "the last byte");
      rank.sync("the second barrier");
    }
    // Other slots are separate barriers.
    for (std::uint32_t slot = 1; slot < 4; ++slot) {
      for (std::uint32_t round = 0; round < slot; ++round) {
        WorldBarrier barrier(kThread, rank.view(), slot);
        require(barrier.sync(), "a barrier of another slot");
      }
    }
    WorldBarrier outside(kThread, rank.view(), 4);
    require_outcome(outside.sync(), WorldOutcome::out_of_range, "a slot that does not exist");
    rank.sync("the last barrier");
  });
}

TEST_CASE("a rank that only computes is reached all the same", "[req:3.15]") {
  run_on_nodes({{1, 1}}, {}, [](TestRanks& test_ranks) {
    Rank rank(test_ranks, 4096, kWorld);
    const auto view = rank.window.view();
    rank.sync("the first barrier");
    if (test_ranks.first() == 0) {
      *rank.at(96) = 77;
      require(world_wait(kThread, rank.view(),
                         world_put(kThread, rank.view(), 1, view, 96, view, 96, 8)),
              "a put to a rank that does not wait");
      test_ranks.word(0) = 1;
    } else {
      // Waits in the shared state only, so that this thread does nothing for its NIC.
      test_ranks.await(0);
      // Loads atomically, because no tool sees the order established by the shared state. The NIC
      // has stored the word atomically.
      const auto* const word = reinterpret_cast<const std::uint64_t*>(rank.at(96));
      test::require(__atomic_load_n(word, __ATOMIC_ACQUIRE) == 77, "what was put");
    }
    test_ranks.barrier();
  });
}

TEST_CASE("puts to windows of any age arrive, and to a deregistered window are refused",
          "[req:3.15]") {
  run_on_nodes({{1, 2}}, {}, [](TestRanks& test_ranks) {
    const int me = test_ranks.first(), peer = me == 0 ? 1 : 0;
    auto comm = join(test_ranks);
    const auto memory = must(comm.allocate(5 * 4096));
    auto* const base = static_cast<std::uint8_t*>(memory.data());
    const auto range = [&](std::size_t i) { return MemoryRange{base + i * 4096, 4096}; };
    auto first = must(comm.register_window(range(0)));
    auto gone = must(comm.register_window(range(1)));
    auto both = must(comm.register_windows(std::vector{range(2), range(3)}));
    if (me == 1) must(gone.close());  // other ranks still have the window, and do not use it
    const auto kernels = must(comm.device_comm(kWorld));
    const auto later = must(comm.register_window(range(4)));
    test_ranks.barrier();
    const auto put = [&](const Window& to, std::uint8_t value) {
      base[4096 * 4 + 10] = value;
      return world_wait(
          kThread, kernels.view(),
          world_put(kThread, kernels.view(), peer, to.view(), 20, later.view(), 10, 1));
    };
    if (me != 2) {
      require(put(first, 1), "a window by itself");
      require(put(both[0], 2), "one of two");
      require(put(both[1], 3), "the other one");
      require(put(later, 4), "one from afterwards");
      require_outcome(me == 1 ? put(gone, 5) : WorldOutcome::no_window, WorldOutcome::no_window,
                      "a window that this rank has closed");
    }
    WorldBarrier arrived(kThread, kernels.view(), 1);
    require(arrived.sync(), "the barrier behind the puts");
    if (me != 2) {
      const std::uint8_t expected[] = {1, 0, 2, 3, 4};
      for (std::size_t i = 0; i < 5; ++i) {
        test::require(base[i * 4096 + 20] == expected[i], "window " + std::to_string(i));
      }
    }
    test_ranks.barrier();
    must(both[0].close());
    if (me == 0) {
      require_outcome(put(both[0], 9), WorldOutcome::no_window, "a window that was closed here");
    }
    // A second device communicator shares the network.
    const auto second = must(comm.device_comm(kWorld));
    test::require(second.view().network == kernels.view().network, "one network");
    WorldBarrier barrier(kThread, second.view(), 0);
    require(barrier.sync(), "its barrier");
    test_ranks.barrier();
  });
}

TEST_CASE("impossible operations between nodes are refused with a reason and write nothing",
          "[req:3.23]") {
  run_on_nodes({{1, 1}}, {}, [](TestRanks& test_ranks) {
    const int me = test_ranks.first(), peer = 1 - me;
    Rank rank(test_ranks, 8192, kWorld);
    const auto view = rank.window.view();
    const auto outcome = [&](int to, const device::WindowView& there, std::uint64_t at,
                             const device::WindowView& here, std::uint64_t from,
                             std::uint64_t bytes) {
      const auto put = world_put(kThread, rank.view(), to, there, at, here, from, bytes);
      const auto get = world_get(kThread, rank.view(), to, there, at, here, from, bytes);
      test::require(put.outcome == get.outcome, "puts and gets alike");
      require(world_flush(kThread, rank.view()), "the flush");
      return put.outcome;
    };
    for (const int nobody : {-1, 2, 1 << 30}) {
      require_outcome(outcome(nobody, view, 0, view, 0, 8), WorldOutcome::no_peer, "the peer");
      require_outcome(world_signal(kThread, rank.view(), nobody, 0).outcome, WorldOutcome::no_peer,
                      "the peer of a signal");
      require_outcome(world_flush(kThread, rank.view(), nobody), WorldOutcome::no_peer, "a flush");
    }
    constexpr std::uint64_t kHuge = ~std::uint64_t{0};
    for (const int to : {me, peer}) {
      require_outcome(outcome(to, view, 8185, view, 0, 8), WorldOutcome::out_of_range, "there");
      require_outcome(outcome(to, view, 0, view, 8185, 8), WorldOutcome::out_of_range, "here");
      require_outcome(outcome(to, view, kHuge, view, 0, 8), WorldOutcome::out_of_range, "far");
      require_outcome(outcome(to, view, 8, view, 0, kHuge), WorldOutcome::out_of_range, "much");
      require_outcome(outcome(to, {}, 0, view, 0, 8), WorldOutcome::no_window, "an empty view");
      require_outcome(outcome(to, view, 0, {}, 0, 8), WorldOutcome::no_window, "an empty source");
      require_outcome(world_signal(kThread, rank.view(), to, 16).outcome,
                      WorldOutcome::out_of_range, "a signal");
    }
    require_outcome(outcome(peer, view, 8192 - 8, view, 0, 8), WorldOutcome::done, "the last word");
    require_outcome(device::wait_signal(kThread, rank.view(), 16, 0), WorldOutcome::out_of_range,
                    "a wait for a signal");
    require_outcome(device::wait_counter(kThread, rank.view(), 2), WorldOutcome::out_of_range,
                    "a counter");

    // A window of another communicator, with and without queues of that communicator.
    auto other = join(test_ranks);
    const auto memory = must(other.allocate(8192));
    const auto foreign = must(other.register_window(memory));
    require_outcome(outcome(peer, foreign.view(), 0, view, 0, 8), WorldOutcome::no_window,
                    "a window of another communicator");
    const auto others = must(other.device_comm(kWorld));
    require_outcome(outcome(peer, foreign.view(), 0, view, 0, 8), WorldOutcome::no_window,
                    "one that has keys");
    require_outcome(outcome(peer, view, 0, foreign.view(), 0, 8), WorldOutcome::no_window,
                    "a source of another communicator");

    // A device communicator without `world` has no path to other nodes.
    const auto local = must(rank.comm.device_comm({.barrier_slots = 1, .signals = 1}));
    require_outcome(world_signal(kThread, local.view(), peer, 0).outcome, WorldOutcome::no_path,
                    "a rank of another node");
    require(world_signal(kThread, local.view(), me, 0).outcome, "a rank of this node");
    WorldBarrier none(kThread, local.view(), 0);
    require_outcome(none.sync(), WorldOutcome::out_of_range, "a barrier without world");
    rank.sync("the barrier");
    test::require(!rank.comm.async_error(), "nothing has failed");
    for (std::size_t i = 0; i < 8192; ++i) test::require(*rank.at(i) == 0, "nothing was written");
    test_ranks.barrier();
  });
}

TEST_CASE("a window of another communicator is refused within one node too", "[req:3.23]") {
  check_all_ok(run_ranks(LaunchMode::processes, 3, [](TestRanks& test_ranks) {
    const int me = test_ranks.first();
    Rank rank(test_ranks, 4096, kWorld);
    // Another communicator with as many ranks, in another order.
    auto other = join_as(test_ranks, me == 0 ? 0 : 3 - me);
    const auto memory = must(other.allocate(4096));
    const auto foreign = must(other.register_window(memory));
    const auto own = rank.window.view();
    for (int peer = 0; peer < 3; ++peer) {
      for (const auto& [there, here] :
           {std::pair(foreign.view(), own), std::pair(own, foreign.view())}) {
        require_outcome(world_put(kThread, rank.view(), peer, there, 0, here, 0, 8).outcome,
                        WorldOutcome::no_window, "a put");
        require_outcome(world_get(kThread, rank.view(), peer, there, 0, here, 0, 8).outcome,
                        WorldOutcome::no_window, "a get");
        const auto both =
            device::world_put_signal(kThread, rank.view(), peer, there, 0, here, 0, 8, 0, 1);
        require_outcome(both.outcome, WorldOutcome::no_window, "a put with a signal");
      }
    }
    rank.sync("the barrier");
    test::require(device::read_signal(rank.view(), 0) == 0, "no signal");
    test_ranks.barrier();
  }));
}

TEST_CASE("a key of another communicator is refused by the peer's NIC and named", "[req:3.23]") {
  run_on_nodes({{1, 1}}, {}, write_by_foreign_key);
}

TEST_CASE("a peer that dies in the middle ends the others' waits, and is named", "[req:3.19]") {
  const Nodes nodes{{1, 2}};
  RankFixture fixture(LaunchMode::processes, 3, [&](TestRanks& test_ranks) {
    const Environment environment(on_node(nodes, test_ranks.first()));
    Rank rank(test_ranks, 1 << 20, kWorld);
    const auto view = rank.window.view();
    rank.sync("the first barrier");
    test_ranks.word(0) += 1;
    if (test_ranks.first() == 1) std::this_thread::sleep_for(60s);
    WorldOutcome outcome = WorldOutcome::done;
    if (test_ranks.first() == 0) {
      // Puts until the peer's NIC stops answering.
      while (outcome == WorldOutcome::done) {
        outcome = world_wait(kThread, rank.view(),
                             world_put(kThread, rank.view(), 1, view, 0, view, 0, 1 << 20));
      }
    } else {
      WorldBarrier barrier(kThread, rank.view(), 0);
      outcome = barrier.sync();
    }
    require_outcome(outcome, WorldOutcome::aborted, "a wait for a dead rank");
    const Error error = require_named(rank.comm, 1);
    must_fail(rank.comm.device_comm(kWorld), error.code(), {"rank 1"});
  });
  REQUIRE(fixture.wait_for_word(0, 3, 30s));
  std::this_thread::sleep_for(50ms);
  fixture.kill(1, SIGKILL);
  const auto results = fixture.collect(30s);
  CHECK(results[0] == "ok");
  CHECK(results[2] == "ok");
}

TEST_CASE("networks that the monitor polls while calls stall can be destroyed, no data race",
          "[req:1.12][D11]") {
  run_on_nodes({{1, 1}}, {}, [](TestRanks& test_ranks) {
    // Makes so many communicators that the monitor ticks while one is destroyed.
    std::vector<Communicator> comms;
    for (int i = 0; i < 60; ++i) comms.push_back(join(test_ranks));
    // Sleeps so long that each monitor tick checks which rank is late. The thread sanitizer detects
    // races.
    if (test_ranks.first() == 1) std::this_thread::sleep_for(1300ms);
    for (Communicator& comm : comms) {
      float value = 1;
      const Status done = comm.all_reduce({.input = &value, .output = &value, .count = 1});
      test::require(done.ok() && value == 2, "the sum");
    }
  });
}

TEST_CASE("a wait for a signal that nobody sends ends by abort and by the timeout", "[req:3.6]") {
  run_on_nodes({{1, 1}}, {}, [](TestRanks& test_ranks) {
    Rank rank(test_ranks, 4096, kWorld);
    WorldOutcome outcome = WorldOutcome::done;
    std::jthread waiter(
        [&] { outcome = device::wait_signal(kThread, rank.view(), 0, 1, 1 - test_ranks.first()); });
    std::this_thread::sleep_for(50ms);
    if (test_ranks.first() == 0) rank.comm.abort();
    waiter.join();
    require_outcome(outcome, WorldOutcome::aborted, "the wait");
    require_outcome(world_flush(kThread, rank.view()), WorldOutcome::done, "nothing was posted");
    test_ranks.barrier();
  });
  run_on_nodes({{1, 1}}, {{"ORIEL_COLLECTIVE_TIMEOUT", "300ms"}}, [](TestRanks& test_ranks) {
    Rank rank(test_ranks, 4096, kWorld);
    test_ranks.barrier();
    if (test_ranks.first() == 0) {
      require_outcome(device::wait_signal(kThread, rank.view(), 0, 1, 1), WorldOutcome::timed_out,
                      "the wait");
    }
    static_cast<void>(require_named(rank.comm, 1));
    test_ranks.barrier();
  });
}

TEST_CASE("operations posted after an abort are refused and reach no peer", "[req:3.6]") {
  run_on_nodes({{1, 1}}, {}, [](TestRanks& test_ranks) { post_after_abort(test_ranks, true); });
}

TEST_CASE("ranks that ask for different networks get the same error", "[req:3.15]") {
  run_on_nodes({{1, 1}}, {}, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    const auto mine = static_cast<std::uint32_t>(test_ranks.first());
    must_fail(comm.device_comm({.world = test_ranks.first() == 0}), ErrorCode::invalid_usage,
              {"world"});
    must_fail(comm.device_comm({.world = true, .signals = 1 + mine}), ErrorCode::invalid_usage,
              {"signals", "1", "2"});
    must_fail(comm.device_comm({.world = true, .signals = 65537}), ErrorCode::invalid_argument,
              {"signals is 65537"});
    must_fail(comm.device_comm({.world = true, .counters = 4097}), ErrorCode::invalid_argument,
              {"counters is 4097"});
    const auto kernels = must(comm.device_comm(kWorld));
    WorldBarrier barrier(kThread, kernels.view(), 0);
    require(barrier.sync(), "a barrier after all that");
    test_ranks.barrier();
  });
}

TEST_CASE("libfabric is loaded before other ranks wait for one that starts", "[req:3.13]") {
  // Loading takes seconds on a busy machine. In this test, rank 1 never joins.
  const auto load = [](int flags) { return ::dlopen("libfabric.so.1", RTLD_NOW | flags); };
  REQUIRE(load(RTLD_NOLOAD) == nullptr);
  for (const char* const wire : {"auto", "fabric"}) {
    check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
      const Environment environment({{"ORIEL_WIRE", wire}, {"ORIEL_TIMEOUT", "100ms"}});
      if (test_ranks.first() == 1) return;
      must_fail(try_to_join(test_ranks), ErrorCode::timeout, {});
      const bool is_loaded = load(RTLD_NOLOAD) != nullptr;
      const bool is_there = load(0) != nullptr;
      test::require(is_loaded == (is_there && std::string(wire) == "fabric"), wire);
    }));
  }
}

}  // namespace oriel::test
