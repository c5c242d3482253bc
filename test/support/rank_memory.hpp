// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nccl.h"

/// Memory that a test's ranks compute in, so that one body serves CPU and GPU ranks.
namespace oriel::test {

/// Buffers of one rank: one area of each kind of memory, all of the same size, and access for the
/// test. Used by one thread at a time. Failures are exceptions.
class RankMemory {
 public:
  /// Kind 0 is memory of ncclMemAlloc; the factory chooses the other kinds.
  static constexpr std::size_t kRegistrable = 0;

  virtual ~RankMemory() = default;

  /// Makes this rank's device current for the calling thread. Call it before calls that need a
  /// current device.
  virtual void enter() {}
  virtual std::byte* area(std::size_t kind) = 0;
  /// Returns eight bytes that the rank's device can read.
  virtual std::byte* scalar() = 0;
  /// Returns the stream of the rank's collectives.
  virtual cudaStream_t stream() const { return nullptr; }

  /// Copies to or from this rank's memory, ordered after its earlier collectives. The copy is
  /// complete when the call returns.
  virtual void write(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void read(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  /// Waits for the rank's collectives to end. Fails if they do not within a deadline, or if `comm`
  /// has an asynchronous error.
  virtual void wait(ncclComm_t comm) = 0;
};

/// Makes the memory of ranks. `make` is called in the process of the rank.
struct MemoryFactory {
  std::vector<std::string> kinds;  ///< names of the kinds of memory, at least 2
  std::function<std::unique_ptr<RankMemory>(int rank, std::size_t area_bytes)> make;
};

/// Returns the factory of ranks on the CPU, whose memory is of ncclMemAlloc or malloc.
MemoryFactory host_memory_factory();

}  // namespace oriel::test
