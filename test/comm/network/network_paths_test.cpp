// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "comm/communicator/collective_sums.hpp"
#include "comm/support/foreign_key.hpp"
#include "comm/support/network_ranks.hpp"
#include "comm/support/path_ranks.hpp"
#include "support/seed.hpp"

/// Ranks that reach each other by two paths, of which the first fails (3.14). Both paths use the
/// loopback, because the tests make NICs fail, not links.
namespace oriel::test {
namespace {

void run_by_paths(const Nodes& nodes, const Variables& settings, const Body& body) {
  skip_without_fabric();
  run_on_nodes(nodes, settings, body);
}

}  // namespace

TEST_CASE("ranks with a backup path use the first one as long as it works", "[req:3.14]") {
  run_by_paths({{2, 1}}, with_timeout(), use_first_path);
}

TEST_CASE("near ranks, whose memory cannot fail apart, have no backup", "[req:3.14]") {
  Variables settings = kTwoPaths;
  settings.push_back({"ORIEL_WIRE", "auto"});
  run_by_paths({{1, 1}}, settings, [&](TestRanks& test_ranks) {
    Traffic traffic(test_ranks, 1);
    traffic.run(5);
    require(network_of(traffic.rank()).failover(1 - test_ranks.first()) == nullptr, "one path");
    test_ranks.barrier();
  });
}

TEST_CASE("a WQE that is refused is named by its operation with two paths too",
          "[req:3.6][req:3.14][req:3.23]") {
  run_by_paths({{1, 1}}, with_timeout(), write_by_foreign_key);
}

TEST_CASE("WQEs that fail on a path are done once, by the other, which is left again",
          "[req:3.14][F3]") {
  const std::uint64_t seed = test_seed();
  run_by_paths({{1, 1, 1}}, with_timeout(), [&](TestRanks& test_ranks) {
    leave_failed_path(test_ranks, seed, 8, [](Rank& rank) { collect(rank.comm, 3000); });
  });
}

TEST_CASE("collectives go on by the backup when a NIC stops or dies, and windows as well",
          "[req:3.14][F6]") {
  const std::uint64_t seed = test_seed();
  run_by_paths({{1, 2, 1}}, kTwoPaths, [&](TestRanks& test_ranks) {
    lose_first_nics(test_ranks, seed, [](Rank& rank) {
      for (const std::size_t count : {1U, 2000U, 40'000U}) collect(rank.comm, count);
    });
  });
}

TEST_CASE("operations completed on a path whose responses are lost are not repeated",
          "[req:3.14][F4]") {
  const std::uint64_t seed = test_seed();
  run_by_paths({{1, 1}}, kTwoPaths, [&](TestRanks& test_ranks) { lose_answers(test_ranks, seed); });
}

TEST_CASE("a rank whose NICs both die is named by all others", "[req:3.14][F7]") {
  run_by_paths({{1, 1, 1}}, kTwoPaths, [](TestRanks& test_ranks) {
    lose_both_nics(test_ranks, [](Rank& rank) { reduce_until_it_fails(rank.comm, 1000); });
  });
}

TEST_CASE("a rank that gets no answer from any peer, and reports it first, names itself",
          "[req:3.19]") {
  Variables settings = kTwoPaths;
  settings.push_back({"ORIEL_PATHS", "lo"});  // test_comm_path_hosts covers backups
  run_by_paths({{1, 1, 1}}, settings, [&](TestRanks& test_ranks) {
    constexpr int kCutOff = 1;
    Rank rank(test_ranks, 4096, kWorld);
    rank.sync("the first barrier");
    test_ranks.barrier();  // no rank is still in the first barrier
    // Stops the other NICs, which to rank 1 looks like being cut off. The other ranks request
    // nothing.
    if (test_ranks.first() != kCutOff) net::test::stop_nic(network_of(rank).nic());
    test_ranks.barrier();
    if (test_ranks.first() == kCutOff) {
      require(device::world_signal(kThread, rank.view(), 0, 0).outcome, "a signal");
    }
    require_silent(rank.comm, kCutOff);
    test_ranks.barrier();
  });
}

TEST_CASE("a queue with a backup path refuses what is posted after an abort", "[req:3.6]") {
  run_by_paths({{1, 1}}, with_timeout(),
               [&](TestRanks& test_ranks) { post_after_abort(test_ranks, true); });
}

TEST_CASE("ORIEL_PATHS that differ, or ask for what is not there, are refused by name",
          "[req:3.23]") {
  run_by_paths({{1, 1}}, kTwoPaths, [](TestRanks& test_ranks) {
    const auto attempt = [&](const std::string& of_first, const std::string& of_second) {
      const Environment own(
          Variables{{"ORIEL_PATHS", test_ranks.first() == 0 ? of_first : of_second}});
      auto comm = try_to_join(test_ranks);
      test_ranks.barrier();
      return comm;
    };
    const auto alike = attempt("lo,lo", "lo");
    must_fail(alike, ErrorCode::invalid_usage,
              {"ORIEL_PATHS", "names 2 interfaces on rank 0, names 1 interface on rank 1"});
    test::require(alike.error().origin_rank() == 1, alike.error().to_string());
    must_fail(attempt("auto", ""), ErrorCode::invalid_usage,
              {"ORIEL_PATHS", "is auto on rank 0, names no interface on rank 1"});
    auto joined = attempt("lo,lo", "lo,none7");
    const auto none = must(std::move(joined)).device_comm(kWorld);
    must_fail(none, ErrorCode::invalid_usage, {"ORIEL_PATHS names none7", "rank 1"});
    test::require(none.error().origin_rank() == 1, none.error().to_string());
  });
}

}  // namespace oriel::test
