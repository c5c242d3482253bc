// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "oriel/error.hpp"

#include "base/deadline.hpp"

namespace oriel::perf {

/// A barrier of the ranks of one host, in memory inherited over fork(). Ranks start a timed loop
/// together without using the library under test. Create the barrier before forking.
class SharedBarrier {
 public:
  static Result<SharedBarrier> create(int ranks);
  SharedBarrier() = default;  ///< without ranks: wait() returns at once
  SharedBarrier(SharedBarrier&& other) noexcept;
  SharedBarrier& operator=(SharedBarrier&& other) noexcept;
  ~SharedBarrier();

  /// Blocks until all ranks have arrived: spins, then yields. Fails after the deadline.
  Status wait(Deadline deadline) const;

 private:
  struct Words {
    std::atomic<std::uint32_t> arrived;
    std::atomic<std::uint32_t> generation;
    std::uint32_t ranks;
  };
  Words* words_ = nullptr;
};

}  // namespace oriel::perf
