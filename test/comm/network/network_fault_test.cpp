// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "comm/support/held.hpp"
#include "comm/support/network_faults.hpp"
#include "net/fabric/wire_fabric.hpp"
#include "support/fabric_provider_name.hpp"
#include "support/fault.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Makes every stride-th system call of a rank fail, one at a time, while the rank creates its
/// queues to ranks of other nodes (3.15). All ranks must have the same outcome, and nothing of
/// Oriel's may be left behind.
namespace oriel::test {
namespace {

constexpr int kRanks = 3;  // on nodes of one and two ranks
constexpr int kMissesToEnd = 3;
constexpr long kCallsMost = 2000;
constexpr std::array kStatuses = {ENOMEM, EMFILE, ENFILE, EPERM, EIO, ENOBUFS};

void walk(TestRanks& test_ranks, long stride, long first, bool by_fabric) {
  const Held before = held_after_good_starts(test_ranks);
  std::string complaints;
  int failures = 0, harmless = 0;
  for (int victim = 0; victim < kRanks; ++victim) {
    int misses = 0;
    for (long k = first; misses < kMissesToEnd && k < kCallsMost; k += stride) {
      FaultPlan plan;
      plan.fail_at = k;
      plan.status = kStatuses[static_cast<std::size_t>(k) % kStatuses.size()];
      std::optional<ScopedSystemFaults> faults;
      const auto [seen, agreed, was_hit] = start_with_faults(
          test_ranks, victim,
          [&] {
            if (test_ranks.first() == victim) faults.emplace(plan, Reach::process);
          },
          [&] { faults.reset(); }, [&] { return plan.hit(); });
      misses = was_hit ? 0 : misses + 1;
      ++(seen.ok ? harmless : failures);
      if (agreed) continue;
      complaints += fmt::format("\nrank {}, call {} {}: {}", victim, k,
                                plan.hit() ? plan.failed.load() : "", seen.text);
    }
    Held allowed = before;
    if (by_fabric) {
      static_cast<void>(settled());
      allowed.fds += forgotten_connections();
    }
    require_held(allowed, fmt::format("after the walk over rank {}", victim));
    test_ranks.barrier();
  }
  if (test_ranks.first() == 0) {
    std::fprintf(stderr, "%d errors on all ranks, %d without effect\n", failures, harmless);
  }
  require(complaints.empty(), complaints);
  require(failures > 0, "some calls were needed");
}

void walk_with(const Variables& settings, long stride, bool by_fabric) {
  const std::uint64_t seed = test_seed();
  const Environment common(Variables{{"ORIEL_TIMEOUT", "20s"}, {"ORIEL_SOCKET_IFNAME", "lo"}});
  const Environment environment(settings);
  check_all_ok(run_ranks(
      LaunchMode::processes, kRanks,
      [&](TestRanks& test_ranks) {
        const Environment node(
            Variables{{"ORIEL_HOSTID", test_ranks.first() == 0 ? "first" : "second"}});
        walk(test_ranks, stride, 1 + static_cast<long>(seed) % stride, by_fabric);
      },
      std::chrono::seconds(kSanitized ? 220 : 110)));
}

}  // namespace

// ORIEL_TEST_STRIDE=1 tests every call.
TEST_CASE("any failed system call while queues start has one outcome on all ranks", "[req:3.15]") {
  walk_with({}, number_from("ORIEL_TEST_STRIDE", kSanitized ? 23 : 5), false);
}

TEST_CASE("any failed system call while queues with backups start has one outcome on all ranks",
          "[req:3.14]") {
  const auto wire =
      net::WireFabric::create({.provider = fabric_provider(), .socket = {.ifname = "lo"}});
  if (!wire.ok()) {
    WARN("no fabric: " << wire.error().to_string());
    return;
  }
  walk_with({{"ORIEL_FABRIC_PROVIDER", fabric_provider()},
             {"ORIEL_WIRE", "fabric"},
             {"ORIEL_PATHS", "lo,lo"}},
            number_from("ORIEL_TEST_STRIDE", kSanitized ? 97 : 31), true);
}

}  // namespace oriel::test
