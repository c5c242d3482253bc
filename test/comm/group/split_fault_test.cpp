// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <optional>
#include <string>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/support/held.hpp"
#include "support/fault.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Makes every stride-th system call of a rank in a split fail, one at a time.
namespace oriel::test {
namespace {

constexpr std::size_t kResult = 0;  // words of the shared state; results are by rank
constexpr std::size_t kHit = 8;

/// Splits a new communicator of two ranks while call `k` of rank `victim` fails. Returns true if
/// there was such a call.
bool split_with_fault(TestRanks& test_ranks, int victim, long k) {
  auto world = test_ranks.init();
  test_ranks.barrier();  // a fault ends the parent, which the other rank may still be starting
  const int rank = test_ranks.first();
  ncclComm_t made = nullptr;
  FaultPlan plan;
  plan.fail_at = k;
  plan.status = k % 2 == 0 ? ENOMEM : EMFILE;
  std::optional<ScopedSystemFaults> faults;
  if (rank == victim) faults.emplace(plan, Reach::thread);
  const ncclResult_t result = ncclCommSplit(world[0], 3, -rank, &made, nullptr);
  faults.reset();
  const std::string text = ncclGetLastError(nullptr);
  const std::string where = fmt::format("rank {}, call {} of rank {}: ", rank, k, victim);
  require((result == ncclSuccess) == (made != nullptr), where + "a handle is left");
  require(result == ncclSuccess || text.find("timed out waiting") == std::string::npos,
          where + text);
  test_ranks.word(kResult + static_cast<std::size_t>(rank)) = static_cast<std::uint64_t>(result);
  if (rank == victim) test_ranks.word(kHit) = plan.hit() ? 1 : 0;
  test_ranks.barrier();
  const bool other_failed = test_ranks.word(kResult + static_cast<std::size_t>(1 - rank)) != 0;
  // The other rank may have failed at the last message. Then this rank learns of it later.
  if (result == ncclSuccess && other_failed) {
    require(await_failure(made) != ncclSuccess, where + "only the other rank has failed");
  }
  const bool was_hit = test_ranks.word(kHit) != 0;
  test_ranks.barrier();
  if (made != nullptr) require(ncclCommDestroy(made), "ncclCommDestroy");
  test_ranks.destroy(world);
  return was_hit;
}

TEST_CASE("a split in which any system call fails has an error on both ranks, and leaves nothing",
          "[req:5.25][req:1.38]") {
  const long stride = kSanitized ? 37 : 5;
  const long first = 1 + static_cast<long>(test_seed() % static_cast<std::uint64_t>(stride));
  check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    static_cast<void>(split_with_fault(test_ranks, 0, 0));
    const Held before = settled();
    for (const int victim : {0, 1}) {
      long k = first;
      for (; split_with_fault(test_ranks, victim, k); k += stride) {
        require_held(before, fmt::format("after call {} of rank {} failed", k, victim));
        test_ranks.barrier();
      }
      require(k > first, fmt::format("no call of rank {} was hit", victim));
    }
  }));
}

}  // namespace
}  // namespace oriel::test
