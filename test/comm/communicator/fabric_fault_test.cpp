// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <cstdio>
#include <string>
#include <string_view>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "comm/support/held.hpp"
#include "comm/support/network_faults.hpp"
#include "net/fabric/fabric_faults.hpp"
#include "net/fabric/fabric_pair.hpp"
#include "support/fabric_provider_name.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Makes each libfabric call with which a rank creates its fabric wire fail, one at a time (3.13).
/// All ranks must get the same error, which names that rank, and nothing may be left behind.
namespace oriel::test {
namespace {

const net::test::NeedsFabric needs_fabric;

constexpr int kFabricRanks = 2;
constexpr int kEachMost = 3;  // failing calls per function
constexpr std::array kFabricCalls = {"fi_getinfo", "fi_dupinfo",  "fi_fabric",  "fi_domain",
                                     "fi_av_open", "fi_cq_open",  "fi_control", "fi_endpoint",
                                     "fi_ep_bind", "fi_enable",   "fi_getname", "fi_mr_reg",
                                     "fi_recv",    "fi_av_insert"};

/// Selects the call that fails next in this process: the `left`-th call of function `call`.
struct Aim {
  std::atomic<const char*> call = nullptr;
  std::atomic<int> left = 0;
  std::atomic<bool> hit = false;

  void at(const char* name, int which) {
    hit = false;
    left = which;
    call = name;
  }
  long status_of(const char* name) {
    const char* const wanted = call;
    if (wanted == nullptr || std::string_view(wanted) != name || --left != 0) return 0;
    hit = true;
    return -FI_ENOMEM;
  }
};

struct Tally {
  int runs = 0;
  int errors = 0;
  std::string complaints;
};

/// Makes one call fail. Returns true if the victim made such a call.
bool fail_one(TestRanks& test_ranks, Aim& aim, int victim, const char* call, int which,
              Tally& tally) {
  const bool is_victim = test_ranks.first() == victim;
  const auto [seen, agreed, was_hit] = start_with_faults(
      test_ranks, victim, [&] { aim.at(is_victim ? call : nullptr, which); },
      [&] { aim.call = nullptr; }, [&] { return aim.hit.load(); });
  ++tally.runs;
  if (!seen.ok) ++tally.errors;
  // Any error must name libfabric, because only calls of libfabric were made to fail.
  const bool is_named = seen.ok || seen.text.find("libfabric") != std::string::npos;
  if (!agreed || !is_named || seen.ok == was_hit) {
    tally.complaints += fmt::format("\nrank {}, {} number {}: {}", victim, call, which,
                                    seen.ok ? "no error" : seen.text);
  }
  return was_hit;
}

void walk(TestRanks& test_ranks, std::size_t stride, std::size_t first) {
  net::test::FabricPlan plan;  // must outlive the last wire
  Aim aim;
  plan.fail = [&](const char* name) { return aim.status_of(name); };
  const net::ScopedFabricTable table(net::test::planned_fabric());
  const Held before = held_after_good_starts(test_ranks);
  Tally tally;
  for (std::size_t i = first; i < kFabricRanks * kFabricCalls.size(); i += stride) {
    const auto victim = static_cast<int>(i / kFabricCalls.size());
    const char* const call = kFabricCalls[i % kFabricCalls.size()];
    // Starts at the second fi_ep_bind: the process keeps an endpoint without addresses open
    // (FabricEndpoint::open_endpoint).
    const int first_of_call = std::string_view(call) == "fi_ep_bind" ? 2 : 1;
    for (int which = first_of_call; which <= kEachMost; ++which) {
      if (!fail_one(test_ranks, aim, victim, call, which, tally)) break;
    }
  }
  require(plan.open.empty(), fmt::format("{} of libfabric's objects are left", plan.open.size()));
  Held allowed = before;
  static_cast<void>(settled());
  allowed.fds += forgotten_connections();
  require_held(allowed, "after the walk");
  test_ranks.barrier();
  if (test_ranks.first() == 0) {
    std::fprintf(stderr, "%d errors on all ranks in %d runs\n", tally.errors, tally.runs);
  }
  require(tally.complaints.empty(), tally.complaints);
  require(tally.errors > 0, "some calls were needed");
}

}  // namespace

// ORIEL_TEST_STRIDE=1 tests every call.
TEST_CASE("any failed libfabric call while a communicator starts has one outcome on all ranks",
          "[req:3.13]") {
  const auto stride = static_cast<std::size_t>(number_from("ORIEL_TEST_STRIDE", 5));
  const std::uint64_t seed = test_seed();
  const Environment environment(Variables{{"ORIEL_TIMEOUT", "60s"},
                                          {"ORIEL_SOCKET_IFNAME", "lo"},
                                          {"ORIEL_FABRIC_PROVIDER", fabric_provider()},
                                          {"ORIEL_WIRE", "fabric"}});
  check_all_ok(run_ranks(
      LaunchMode::processes, kFabricRanks,
      [&](TestRanks& test_ranks) {
        const Environment node(
            Variables{{"ORIEL_HOSTID", test_ranks.first() == 0 ? "first" : "second"}});
        walk(test_ranks, stride, static_cast<std::size_t>(seed) % stride);
      },
      std::chrono::seconds(kSanitized ? 220 : 110)));
}

}  // namespace oriel::test
