// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include <catch2/catch.hpp>

#include "comm/communicator/collective_sums.hpp"
#include "comm/support/direct_copies.hpp"
#include "comm/support/network_ranks.hpp"
#include "comm/support/path_ranks.hpp"
#include "net/support/nic_faults.hpp"
#include "support/fabric_provider_name.hpp"
#include "support/sanitized.hpp"

/// Windows deregistered after a collective, although answers to requests from these windows were
/// lost (3.10 F4, 3.16).
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kCount = 8 * 1024;  // f32 elements of each rank
/// Rank 1 executes requests, but its answers are lost. Both ranks still get their results, and
/// deregister.
void deregister_unanswered(Variables settings) {
  settings.push_back({"ORIEL_COLLECTIVE_TIMEOUT", kSanitized ? "18s" : "9s"});
  run_on_nodes({{1, 1}}, settings, [&](TestRanks& test_ranks) {
    Rank rank(test_ranks, 4096, kWorld);
    collect(rank.comm, 100);
    auto memory = must(rank.comm.allocate(4 * kCount * sizeof(float)));
    auto* const values = static_cast<float*>(memory.data());
    {
      std::optional<Window> window(must(rank.comm.register_window(memory)));
      std::fill(values, values + kCount, static_cast<float>(test_ranks.first() + 1));
      test_ranks.barrier();
      std::this_thread::sleep_for(100ms);  // earlier requests are answered by then
      const std::uint64_t repeated = net::test::traffic(network_of(rank).nic()).retransmitted;
      if (test_ranks.first() == 1) {
        net::test::NicFaults faults;
        faults.lost_responses = {{0, 1, ~std::uint64_t{0}}};
        net::test::set_faults(network_of(rank).nic(), std::move(faults));
      }
      test_ranks.barrier();
      must(rank.comm.all_gather({.input = values, .output = values + kCount, .count = kCount}));
      test_ranks.barrier();  // the call has ended on both ranks
      const auto begin = std::chrono::steady_clock::now();
      window.reset();
      require(std::chrono::steady_clock::now() - begin < 2s, "that nobody waits for answers");
      test_ranks.barrier();
      // Waits for a retransmission or, with two paths, for the switch to the second path.
      const auto* const failover = network_of(rank).failover(1 - test_ranks.first());
      const auto is_repeated = [&] {
        return failover != nullptr
                   ? net::test::fabric_messages(network_of(rank).nic(1)) > 0
                   : net::test::traffic(network_of(rank).nic()).retransmitted > repeated;
      };
      if (test_ranks.first() == 0) require(eventually(is_repeated), "something that had no answer");
      test_ranks.barrier();
      if (test_ranks.first() == 1) net::test::set_faults(network_of(rank).nic(), {});
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      require(values[kCount + i] == 1 && values[2 * kCount + i] == 2, "the result");
    }
    collect(rank.comm, 100);
    rank.sync("a barrier");
    require_no_error(rank.comm);
    test_ranks.barrier();
  });
}

/// Rank 1 deregisters a window to which rank 0 goes on writing. The error must name rank 1.
void write_to_deregistered(const Variables& settings) {
  run_on_nodes({{1, 1, 1}}, settings, [&](TestRanks& test_ranks) {
    Rank rank(test_ranks, 4096, kWorld);
    auto memory = must(rank.comm.allocate(4096));
    std::optional<Window> window(must(rank.comm.register_window(memory)));
    const auto put = [&] {
      const auto view = window->view();
      return device::world_put(device::Thread(), rank.view(), 1, view, 0, view, 64, 64).outcome;
    };
    if (test_ranks.first() == 0) {
      require(put(), "a put");
      require(device::world_flush(device::Thread(), rank.view()), "its end");
    }
    test_ranks.barrier();
    if (test_ranks.first() == 1) window.reset();
    test_ranks.barrier();
    if (test_ranks.first() == 0) require(put(), "another one is posted");
    const Error error = require_named(rank.comm, 1);
    require(error.to_string().find("deregistered") != std::string::npos, error.to_string());
    test_ranks.barrier();
  });
}

/// Generates the transports: shared-memory rings, libfabric, and two paths.
Variables next_wire(std::optional<WithDirectCopies>& copies) {
  switch (GENERATE(0, 1, 2)) {
    case 0:
      copies.emplace(false);
      return {};
    case 1:
      skip_without_fabric();
      return {{"ORIEL_FABRIC_PROVIDER", fabric_provider()},
              {"ORIEL_SOCKET_IFNAME", "lo"},
              {"ORIEL_WIRE", "fabric"}};
    default:
      return kTwoPaths;
  }
}

}  // namespace

TEST_CASE("a window is deregistered while answers are lost, and nobody waits for them",
          "[req:3.16][F4]") {
  std::optional<WithDirectCopies> copies;
  Variables settings = next_wire(copies);
  settings.push_back({"ORIEL_CHUNK", "4096"});
  deregister_unanswered(settings);
}

TEST_CASE("a rank that deregisters a window still in use is named by all ranks", "[req:3.19]") {
  std::optional<WithDirectCopies> copies;
  write_to_deregistered(next_wire(copies));
}

}  // namespace oriel::test
