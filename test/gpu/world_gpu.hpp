// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/world_barrier.hpp"

/// Kernels that communicate with ranks of other nodes. Each launcher returns a cudaError_t as int
/// and does not synchronise; `stream` is a cudaStream_t. Pointers in jobs must be valid on the GPU.
namespace oriel::test {

struct WorldResult {
  std::uint32_t outcome = 99;  ///< a WorldOutcome
  std::uint32_t step = 0;      ///< round after the last one that was started
  std::uint64_t wrong = 0;     ///< wrong bytes and signals
  std::uint64_t nanoseconds = 0;
  std::uint64_t cycles = 0;
};

/// Job of all ranks. In each round every rank puts `bytes` bytes with a signal to every rank,
/// itself included. It waits for the signals, checks each byte, and enters a barrier. In the end it
/// gets its bytes back from every rank, and checks that each rank has signalled once a round.
///
/// A window has parts of `part` bytes: one for each rank, one to send from, and one to read into.
struct WorldTraffic {
  device::CommView comm;
  device::WindowView window;
  std::uint64_t part = 0;
  std::uint64_t bytes = 0;
  std::uint32_t rounds = 0;
  std::uint32_t earlier = 0;  ///< rounds of earlier kernels
  WorldResult* result = nullptr;
};

/// Job of ranks 0 and 1: ping-pong by puts with signals.
struct WorldPing {
  device::CommView comm;
  device::WindowView window;  ///< at least 2 * bytes long
  std::uint64_t bytes = 0;
  std::uint32_t rounds = 0;
  std::uint64_t* cycles = nullptr;  ///< clock cycles of each round trip
  WorldResult* result = nullptr;
};

int load_world_kernels();
int launch_world_traffic(const WorldTraffic& job, void* stream);
int launch_world_ping(const WorldPing& job, void* stream);

}  // namespace oriel::test
