// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>

#include <catch2/catch.hpp>

#include "comm/support/network_ranks.hpp"
#include "comm/support/on_model.hpp"
#include "comm/support/test_hosts.hpp"
#include "support/fabric_provider_name.hpp"

// GPU ranks on separate hosts, which are network namespaces, over libfabric's tcp provider (3.19).
// On the model of the CUDA driver, the ranks' threads act for the kernels.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

const Variables kGpuOnHost = {{"ORIEL_BACKEND", "cuda"},
                              {"ORIEL_NIC_PROCESS", "0"},
                              {"ORIEL_FABRIC_PROVIDER", fabric_provider()},
                              {"ORIEL_SOCKET_IFNAME", "net0"}};

}  // namespace

TEST_CASE("a host whose link goes down while GPUs wait for it is named by all others",
          "[req:3.19]") {
  constexpr int kCut = 2, kRanks = 3;
  const TestHosts hosts(kRanks);
  RankFixture fixture(LaunchMode::processes, kRanks, [&](TestRanks& test_ranks) {
    hosts.enter(test_ranks.first());
    const Environment environment(kGpuOnHost), timeout(kTimeout);
    const OnModel on_model(kRanks, test_ranks.first());
    Rank rank(test_ranks, 4096, kWorld);
    rank.sync("the first barrier");
    test_ranks.barrier();  // no rank is still in the first barrier
    test::require(network_of(rank.comm).fabric() != nullptr, "a fabric wire");
    ++test_ranks.word(0);
    // The host that is cut off names itself, because it receives nothing from any rank.
    wait_until_named(rank, test_ranks.first() != kCut ? kCut : 0, kCut);
    test_ranks.barrier();  // the end of a process is visible to all ranks
  });
  REQUIRE(fixture.wait_for_word(0, kRanks, 30s));
  hosts.cut(kCut);
  check_all_ok(fixture.collect(40s));
}

}  // namespace oriel::test
