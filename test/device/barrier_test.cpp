// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "device/bodies.hpp"
#include "device/device_ranks.hpp"

namespace oriel::test {
namespace {

using device::LsaBarrier;
using device::LsaBarrierLayout;
using device::Order;
using device::Thread;
using device::WaitOutcome;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t kRounds = 80;  // a sanitizer makes each many times slower
#else
constexpr std::uint32_t kRounds = 400;
#endif

// Sets the state of a team that has passed `epoch` barriers already.
void set_epoch(LsaMemory& memory, int ranks, std::uint32_t epoch) {
  const LsaMemory::Mapping mapping(memory);
  for (int rank = 0; rank < ranks; ++rank) {
    const device::CommView comm = make_comm(mapping.base(), rank, ranks);
    for (std::uint32_t slot = 0; slot < ControlLayout::kBarrierSlots; ++slot) {
      auto* words = reinterpret_cast<std::uint32_t*>(
          comm.control(rank, comm.barrier_offset + slot * LsaBarrierLayout::slot_bytes(ranks)));
      words[0] = epoch;
      for (int peer = 0; peer < ranks; ++peer) words[16 + peer] = epoch;
    }
  }
}

TEST_CASE("slots of the barrier share no cache line", "[req:1.22]") {
  CHECK(LsaBarrierLayout::bytes_needed(1, 1) == 128);
  CHECK(LsaBarrierLayout::bytes_needed(16, 4) == 512);
  CHECK(LsaBarrierLayout::bytes_needed(17, 4) == 768);
  static_assert(LsaBarrierLayout::bytes_needed(8, 64) == 8192);
}

TEST_CASE("the LSA barrier orders memory among ranks, also where its epoch wraps", "[req:1.22]") {
  const auto kind = GENERATE(RankKind::threads, RankKind::processes);
  const int ranks = GENERATE(1, 2, 3, 5, 8);
  const std::uint32_t epoch = GENERATE(0u, 0u - kRounds / 2, 0x80000000u - kRounds / 2);
  CAPTURE(static_cast<int>(kind), ranks, epoch);
  LsaMemory memory(ranks, ControlLayout::kBytes);
  set_epoch(memory, ranks, epoch);
  CHECK(run_ranks(kind, memory, ranks, [](const device::CommView& comm) {
    return barrier_rounds(Thread{}, comm, 1, kRounds);
  }));
}

TEST_CASE("an LSA barrier of a warp or CTA ends only after every rank has arrived", "[req:1.22]") {
  const auto kind = GENERATE(RankKind::threads, RankKind::processes);
  LsaMemory memory(3, ControlLayout::kBytes);
  CHECK(run_ranks(kind, memory, 3, [](const device::CommView& comm) {
    return barrier_rounds(device::Warp{}, comm, 0, kRounds) &&
           barrier_rounds(device::Cta{}, comm, 0, kRounds);
  }));
}

TEST_CASE("slots of the LSA barrier are independent", "[req:1.22]") {
  constexpr int kRanks = 2;
  LsaMemory memory(kRanks, ControlLayout::kBytes);
  CHECK(run_ranks(RankKind::threads, memory, kRanks, [](const device::CommView& comm) {
    bool good[2] = {};
    std::thread other([&] { good[1] = barrier_rounds(Thread{}, comm, 3, 700); });
    good[0] = barrier_rounds(Thread{}, comm, 0, 300);
    other.join();
    return good[0] && good[1];
  }));
}

TEST_CASE("an LSA barrier ends when the communicator is aborted", "[req:1.22]") {
  LsaMemory memory(2, ControlLayout::kBytes);
  const LsaMemory::Mapping mapping(memory);
  const device::CommView comm = make_comm(mapping.base(), 0, 2);
  auto* abort_word = const_cast<std::uint32_t*>(comm.wait.abort);
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    device::Memory::store<Order::release>(abort_word, 1u);
    device::ring(*comm.wait.doorbell);
  });
  LsaBarrier<Thread> barrier(Thread{}, comm, 0);
  CHECK(barrier.sync() == WaitOutcome::aborted);
  aborter.join();

  // Nothing is published after an abort, whatever the caller does.
  const auto* inbox = reinterpret_cast<std::uint32_t*>(comm.control(1, comm.barrier_offset + 64));
  CHECK(inbox[0] == 1);
  barrier.arrive();
  CHECK(inbox[0] == 1);
  CHECK(barrier.wait() == WaitOutcome::aborted);
}

TEST_CASE("an LSA barrier that times out names the rank that did not come", "[req:1.12]") {
  LsaMemory memory(4, ControlLayout::kBytes);
  const bool good = run_ranks(RankKind::threads, memory, 4, [](const device::CommView& view) {
    if (view.lsa_rank == 2) return true;  // stays away
    device::CommView comm = view;
    const std::int32_t world_ranks[] = {10, 11, 12, 13};
    comm.lsa_world_ranks = world_ranks;
    comm.wait.timeout_ns = 100'000'000;
    LsaBarrier<Thread> barrier(Thread{}, comm, 0);
    if (barrier.sync() != WaitOutcome::timed_out) return false;
    return device::stalled_rank(comm.wait.stall->gave_up) == 12;
  });
  CHECK(good);
}

TEST_CASE("a barrier slot out of range is refused and touches nothing", "[req:1.22]") {
  LsaMemory memory(2, ControlLayout::kBytes);
  const LsaMemory::Mapping mapping(memory);
  const device::CommView comm = make_comm(mapping.base(), 0, 2);
  LsaBarrier<Thread> barrier(Thread{}, comm, ControlLayout::kBarrierSlots);
  CHECK(barrier.sync() == WaitOutcome::aborted);
  for (int rank = 0; rank < 2; ++rank) {
    const char* bytes = comm.control(rank, 0);
    for (std::size_t i = 0; i < ControlLayout::kBytes; ++i) {
      if (bytes[i] != 0) FAIL("byte " << i << " of rank " << rank << " was written");
    }
  }
}

}  // namespace
}  // namespace oriel::test
