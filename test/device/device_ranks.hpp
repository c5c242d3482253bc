// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "device/bodies.hpp"
#include "device/lsa_memory.hpp"

namespace oriel::test {

/// Selects how the ranks of a test run: as threads of this process, or as forked processes.
enum class RankKind { threads, processes };

/// Returns the CommView of `rank` over control memory mapped at `base`. ControlLayout gives the
/// offsets of the doorbell, the barrier slots and the tests' other data.
inline device::CommView make_comm(char* base, int rank, int ranks) {
  device::CommView comm;
  comm.world_rank = comm.lsa_rank = rank;
  comm.world_size = comm.lsa_size = ranks;
  comm.control_base = base;
  comm.control_stride_4g = LsaMemory::kStride4g;
  comm.barrier_slots = ControlLayout::kBarrierSlots;
  comm.barrier_offset = ControlLayout::kBarrier;
  comm.doorbell_offset = ControlLayout::kDoorbell;
  comm.wait.self = rank;
  comm.wait.timeout_ns = 60'000'000'000;  // a test that hangs fails
  comm.wait.abort = reinterpret_cast<std::uint32_t*>(comm.control(rank, ControlLayout::kAbort));
  comm.wait.stall =
      reinterpret_cast<device::StallRecord*>(comm.control(rank, ControlLayout::kStall));
  comm.wait.doorbell =
      reinterpret_cast<device::Doorbell*>(comm.control(rank, ControlLayout::kDoorbell));
  return comm;
}

/// Runs body(comm) -> bool on each of `ranks` ranks. Returns true if all have returned true. Waits
/// for forked ranks one after another. Kills each after 90 s of this wait.
template <class Body>
bool run_ranks(RankKind kind, LsaMemory& memory, int ranks, const Body& body) {
  if (kind == RankKind::threads) {
    const LsaMemory::Mapping mapping(memory);
    std::atomic<int> good{0};
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { good += body(make_comm(mapping.base(), rank, ranks)); });
    }
    for (std::thread& thread : threads) thread.join();
    return good == ranks;
  }
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      const LsaMemory::Mapping mapping(memory);
      _exit(body(make_comm(mapping.base(), rank, ranks)) ? 0 : 1);
    }
    children.push_back(child);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(90);
    while (child > 0 && waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) kill(child, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    good = good && child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return good;
}

}  // namespace oriel::test
