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

/// What a test's ranks compute in, so that one body serves CPU and GPU ranks.
namespace oriel::test {

/// The buffers of one rank: an area of each kind of memory, all of the same size, and how a test
/// reaches them. Used by one thread at a time. Failures are exceptions.
class RankMemory {
 public:
  /// Kind 0 is memory of ncclMemAlloc; what the other kinds are is the venue's affair.
  static constexpr std::size_t kRegistrable = 0;

  virtual ~RankMemory() = default;

  /// Makes this rank's device the calling thread's: before the calls that ask for it.
  virtual void enter() {}
  virtual std::byte* area(std::size_t kind) = 0;
  /// Eight bytes that the rank's device can read.
  virtual std::byte* scalar() = 0;
  /// The stream of the rank's collectives.
  virtual cudaStream_t stream() const { return nullptr; }

  /// Copy to and from this rank's memory, in the order of its collectives; the copy has been made
  /// when the call returns.
  virtual void write(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual void read(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  /// Returns when the rank's collectives have ended. Fails if they do not within a deadline, or if
  /// `comm` has an asynchronous error.
  virtual void wait(ncclComm_t comm) = 0;
};

/// Where ranks live. `make` is called in the process that plays the rank.
struct Venue {
  std::vector<std::string> kinds;  ///< names of the kinds of memory, of which there are at least 2
  std::function<std::unique_ptr<RankMemory>(int rank, std::size_t area_bytes)> make;
};

/// Ranks on the CPU: windows and malloc.
Venue host_venue();

}  // namespace oriel::test
