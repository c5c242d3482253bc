// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "nccl.h"

#include "support/ranks.hpp"

/// Results that ranks see during a communicator's life in which one call of one rank fails, and a
/// check that the ranks agree.
namespace oriel::test {

/// Indices of the words of SharedState.
inline constexpr std::size_t kHitIn = 0;
inline constexpr std::size_t kOutcome = 1;  // one word for each rank

inline long number_from(const char* variable, long otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtol(text, nullptr, 0) : otherwise;
}

/// Result that one rank saw in one run: the first error, or success.
struct Outcome {
  ncclResult_t result = ncclSuccess;
  int blamed = -1;
  std::string text = "ok";

  void note(ncclResult_t returned, const char* call) {
    if (result != ncclSuccess || returned == ncclSuccess) return;
    result = returned;
    const std::string said = ncclGetLastError(nullptr);
    // The text "system error (communicator): rank 2: ..." starts with the origin of the error.
    // Other ranks may be named later in the text.
    const auto kind = said.find("): ");
    const bool named = kind != std::string::npos &&
                       std::sscanf(said.c_str() + kind + 3, "rank %d: ", &blamed) == 1;
    if (!named) blamed = -1;
    text = fmt::format("{} returned {}: {}", call, static_cast<int>(returned), said);
  }
  std::uint64_t word() const {
    return static_cast<std::uint64_t>(result) << 32 | static_cast<std::uint32_t>(blamed);
  }
};

/// Phase of a communicator's life in which the injected fault struck.
enum class Phase : std::uint64_t { none, set_up, last, destroy };

/// Result of one run, computed identically by all ranks.
struct FaultResult {
  bool hit = false;
  bool agreed = false;
  bool harmless = false;
};

/// Judges one run. Call it after every process has put its outcome in the shared state, and the
/// victim the phase in which it was hit.
inline FaultResult evaluate(TestRanks& test_ranks, int victim) {
  FaultResult result;
  const auto hit_in = static_cast<Phase>(test_ranks.word(kHitIn).load());
  result.hit = hit_in != Phase::none;
  const auto blames = [&](std::uint64_t outcome) {
    return static_cast<int>(static_cast<std::uint32_t>(outcome)) == victim;
  };
  const auto fine = [](std::uint64_t outcome) { return outcome >> 32 == ncclSuccess; };
  const std::uint64_t first = test_ranks.word(kOutcome);
  result.agreed = result.harmless = true;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(test_ranks.size()); ++rank) {
    const std::uint64_t outcome = test_ranks.word(kOutcome + rank);
    result.harmless = result.harmless && fine(outcome);
    // A failure at the very end of the last collective call has no later call that could report it.
    const bool reported = hit_in == Phase::last || outcome == first;
    result.agreed = result.agreed && reported && (fine(outcome) || blames(outcome));
  }
  // A failure during destroy must stay invisible to all ranks.
  if (hit_in == Phase::destroy) result.agreed = result.harmless;
  return result;
}

}  // namespace oriel::test
