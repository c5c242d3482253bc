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

/// What ranks see of a communicator's life in which one call of one of them fails, and whether they
/// agree on it.
namespace oriel::test {

/// Words of the board.
inline constexpr std::size_t kHitIn = 0;
inline constexpr std::size_t kOutcome = 1;  // by rank

inline long number_from(const char* variable, long otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtol(text, nullptr, 0) : otherwise;
}

/// What one rank saw of one run: the first error, or success.
struct Outcome {
  ncclResult_t result = ncclSuccess;
  int blamed = -1;
  std::string text = "ok";

  void note(ncclResult_t returned, const char* call) {
    if (result != ncclSuccess || returned == ncclSuccess) return;
    result = returned;
    const std::string said = ncclGetLastError(nullptr);
    // "system error (communicator): rank 2: ..." has the origin of the error; other ranks may be
    // named behind it.
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

/// Where in a communicator's life a call was made to fail.
enum class Phase : std::uint64_t { none, set_up, last, destroy };

/// What all players know of one run.
struct Verdict {
  bool hit = false;
  bool agreed = false;
  bool harmless = false;
};

/// After every player has put its outcome on the board, and the victim where it was hit.
inline Verdict judge(Players& players, int victim) {
  Verdict verdict;
  const auto hit_in = static_cast<Phase>(players.word(kHitIn).load());
  verdict.hit = hit_in != Phase::none;
  const auto blames = [&](std::uint64_t outcome) {
    return static_cast<int>(static_cast<std::uint32_t>(outcome)) == victim;
  };
  const auto fine = [](std::uint64_t outcome) { return outcome >> 32 == ncclSuccess; };
  const std::uint64_t first = players.word(kOutcome);
  verdict.agreed = verdict.harmless = true;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(players.size()); ++rank) {
    const std::uint64_t outcome = players.word(kOutcome + rank);
    verdict.harmless = verdict.harmless && fine(outcome);
    // The last call of all has no next one that could tell what failed at its very end.
    const bool told = hit_in == Phase::last || outcome == first;
    verdict.agreed = verdict.agreed && told && (fine(outcome) || blames(outcome));
  }
  // What fails on a rank's way out concerns nobody.
  if (hit_in == Phase::destroy) verdict.agreed = verdict.harmless;
  return verdict;
}

}  // namespace oriel::test
