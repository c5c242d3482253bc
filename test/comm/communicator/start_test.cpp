// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "support/ranks.hpp"
#include "support/sanitized.hpp"

/// Measures how long whole communicators take to start. Runs alone, because it checks times.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr std::size_t kManyRanks = 64;
constexpr std::size_t kCount = 1000;

// Indices of the words of SharedState, one per rank: times of the host's steady clock.
constexpr std::size_t kBegan = 0;
constexpr std::size_t kStarted = kManyRanks;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(steady_clock::now().time_since_epoch().count());
}

void start_and_add(TestRanks& test_ranks) {
  const int size = test_ranks.size();
  const auto rank = static_cast<std::size_t>(test_ranks.first());
  const ncclUniqueId id = test_ranks.next_id();
  test_ranks.barrier();
  test_ranks.word(kBegan + rank) = now_ns();
  ncclComm_t comm = nullptr;
  require(ncclCommInitRank(&comm, size, id, test_ranks.first()), "ncclCommInitRank");
  test_ranks.word(kStarted + rank) = now_ns();
  std::vector<std::int32_t> data(kCount);
  std::iota(data.begin(), data.end(), test_ranks.first());
  require(ncclAllReduce(data.data(), data.data(), kCount, ncclInt32, ncclSum, comm, nullptr),
          "ncclAllReduce");
  for (int i = 0; i < static_cast<int>(kCount); ++i) {
    const int sum = size * i + size * (size - 1) / 2;
    require(data[static_cast<std::size_t>(i)] == sum, "the sum");
  }
  require(ncclCommDestroy(comm), "ncclCommDestroy");
}

}  // namespace

TEST_CASE("64 communicators of one machine start within two seconds", "[req:1.11]") {
  const std::chrono::milliseconds most = kSanitized ? 20s : 2s;
  auto fastest = std::chrono::milliseconds::max();
  // Makes up to five attempts, because other processes may use the machine. FairTimer would not
  // count the time that ranks take from each other.
  for (int attempt = 0; attempt < 5 && fastest >= most; ++attempt) {
    RankFixture fixture(LaunchMode::processes, static_cast<int>(kManyRanks), start_and_add);
    check_all_ok(fixture.collect(60s));
    std::uint64_t began = ~std::uint64_t{0};
    std::uint64_t ended = 0;
    for (std::size_t rank = 0; rank < kManyRanks; ++rank) {
      began = std::min(began, fixture.shared().words[kBegan + rank].load());
      ended = std::max(ended, fixture.shared().words[kStarted + rank].load());
    }
    REQUIRE(ended > began);
    const auto spent = std::chrono::nanoseconds(ended - began);
    fastest = std::min(fastest, std::chrono::duration_cast<std::chrono::milliseconds>(spent));
  }
  WARN("64 processes, from the first call of init to the last return: " << fastest.count()
                                                                        << " ms");
  CHECK(fastest < most);
}

}  // namespace oriel::test
