// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/world_barrier.hpp"

/// Kernels that reach ranks of other nodes. Each launcher returns a cudaError_t as int and does not
/// synchronise; `stream` is a cudaStream_t. What they point to the kernel can reach.
namespace oriel::test {

struct WorldResult {
  std::uint32_t outcome = 99;  ///< a WorldOutcome
  std::uint32_t step = 0;      ///< at which it went wrong
  std::uint64_t wrong = 0;     ///< bytes
  std::uint64_t nanoseconds = 0;
  std::uint64_t cycles = 0;
};

/// All ranks: each round every rank puts `bytes` with a signal to every other, waits for theirs,
/// checks each byte, and meets the others in a barrier; in the end each reads them back, and sees
/// whether each has signalled once a round. A window has a part for each rank, one that is sent,
/// and one that is read into, of `part` bytes each.
struct WorldTraffic {
  device::CommView comm;
  device::WindowView window;
  std::uint64_t part = 0;
  std::uint64_t bytes = 0;
  std::uint32_t rounds = 0;
  std::uint32_t earlier = 0;  ///< rounds of kernels before this one
  WorldResult* result = nullptr;
};

/// Ranks 0 and 1: puts with signals go to and fro.
struct WorldPing {
  device::CommView comm;
  device::WindowView window;  ///< of twice as many bytes at least
  std::uint64_t bytes = 0;
  std::uint32_t rounds = 0;
  std::uint64_t* cycles = nullptr;  ///< of each round trip
  WorldResult* result = nullptr;
};

int load_world_kernels();
int launch_world_traffic(const WorldTraffic& job, void* stream);
int launch_world_ping(const WorldPing& job, void* stream);

}  // namespace oriel::test
