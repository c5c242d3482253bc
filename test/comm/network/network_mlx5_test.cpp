// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "comm/support/adapter_ranks.hpp"
#include "comm/support/foreign_key.hpp"
#include "comm/support/network_faults.hpp"
#include "comm/support/network_ranks.hpp"
#include "net/support/nic_faults.hpp"
#include "support/seed.hpp"

/// Ranks of several nodes whose queues are executed by mlx5 adapters (3.11, 3.15). Runs on the
/// model of verbs, and so proves nothing about hardware.
namespace oriel::test {
using namespace std::chrono_literals;

TEST_CASE("random puts, gets and signals of CPU ranks through adapters move the right bytes",
          "[req:3.11][req:3.15]") {
  const std::uint64_t seed = test_seed();
  const bool rung_by_processor = GENERATE(false, true);
  for (const std::vector<int>& nodes : {std::vector{0, 1}, std::vector{0, 0, 1, 1}}) {
    run_on_adapters(nodes, {.rung_by_processor = rung_by_processor}, {},
                    [&](TestRanks& test_ranks, Adapter&) { Traffic(test_ranks, seed).run(30); });
  }
}

TEST_CASE("windows have keys of the adapter as long as they are registered",
          "[req:3.11][req:3.15]") {
  run_on_adapters({0, 1}, {}, {}, [](TestRanks& test_ranks, Adapter& adapter) {
    const int peer = 1 - test_ranks.first();
    auto comm = join(test_ranks);
    const auto memory = must(comm.allocate(2 * 4096));
    auto* const base = static_cast<std::uint8_t*>(memory.data());
    test_ranks.barrier();
    const std::size_t before = adapter.verbs.live("region");
    test_ranks.barrier();
    auto window = must(comm.register_window(MemoryRange{base, 4096}));
    test_ranks.barrier();
    require(adapter.verbs.live("region") == before + 1, "a region of its own");
    test_ranks.barrier();
    const auto kernels = must(comm.device_comm(kWorld));
    require(kernels.view().wait.doorbell == nullptr, "nobody rings for what an adapter writes");
    auto later = must(comm.register_window(MemoryRange{base + 4096, 4096}));
    base[4096 + 10] = static_cast<std::uint8_t>(50 + peer);
    const auto put = [&] {
      return device::world_put_signal(kThread, kernels.view(), peer, window.view(), 20,
                                      later.view(), 10, 1, 3)
          .outcome;
    };
    require(put(), "the put");
    require(device::wait_signal(kThread, kernels.view(), 3, 1, peer), "the signal");
    adapter.sync();
    require(base[20] == 50 + test_ranks.first(), "what the peer has put");
    require(device::world_flush(kThread, kernels.view()), "the flush");
    test_ranks.barrier();
    must(later.close());
    must(window.close());
    require_outcome(put(), device::WorldOutcome::no_window, "a put to a window that was closed");
    test_ranks.barrier();
    // The remaining region belongs to the device communicator's window.
    require(adapter.verbs.live("region") == before + 1, "those of both windows have gone");
    test_ranks.barrier();
  });
}

TEST_CASE("a WQE that a peer's adapter refuses is named with opcode and syndrome", "[req:3.11]") {
  run_on_adapters({0, 1}, {}, {},
                  // Changes the key, because each adapter of the model has one protection domain.
                  [](TestRanks& test_ranks, Adapter&) { write_by_changed_key(test_ranks, 1); });
}

TEST_CASE("an adapter's queue refuses what is posted after an abort", "[req:3.6][req:3.11]") {
  run_on_adapters({0, 1}, {}, {},
                  [](TestRanks& test_ranks, Adapter&) { post_after_abort(test_ranks, true); });
}

TEST_CASE("an adapter that dies is named by a rank that asks nothing of it",
          "[req:3.11][req:3.19]") {
  run_on_adapters(
      {0, 1}, {.answer_timeout = 50ms}, {}, [](TestRanks& test_ranks, Adapter& adapter) {
        Rank rank(test_ranks, 4096, kWorld);
        rank.sync("the first barrier");
        test_ranks.barrier();  // no rank is still in the first barrier
        if (test_ranks.first() == 1) net::test::stop_nic(adapter.nic());
        test_ranks.barrier();
        // Only rank 0 waits: rank 1, whose adapter is dead, would name rank 0.
        if (test_ranks.first() == 0) {
          require_outcome(device::wait_signal(kThread, rank.view(), 0, 1, 1),
                          device::WorldOutcome::aborted, "the wait");
        }
        const auto error = error_of(rank.comm);
        require(error && error->origin_rank() == 1, error ? error->to_string() : "no error");
        require_words(error->to_string(), {"rank 0 to rank 1", "did not answer",
                                           "asked whether it is there", "mlx5_0 port 1"});
        test_ranks.barrier();
      });
}

TEST_CASE("any failed verbs call while a communicator starts has the same outcome on all ranks",
          "[req:3.11]") {
  run_on_adapters({0, 1}, {}, {}, [](TestRanks& test_ranks, Adapter& adapter) {
    std::string complaints;
    int errors = 0;
    for (int victim = 0; victim < 2; ++victim) {
      const bool is_victim = test_ranks.first() == victim;
      for (long k = 1;; ++k) {
        const auto [seen, agreed, was_hit] = start_with_faults(
            test_ranks, victim,
            [&] {
              adapter.verbs.counted = 0;
              adapter.verbs.failed.clear();
              adapter.verbs.fail_at = is_victim ? k : 0;
            },
            [&] { adapter.verbs.fail_at = 0; }, [&] { return !adapter.verbs.failed.empty(); });
        const std::string failed = adapter.verbs.failed;
        // Harmless failures: the registers can be mapped in another way, and a failed ibv_dereg_mr
        // leaves nothing behind.
        const bool is_harmless = failed == "mlx5dv_devx_alloc_uar" || failed == "ibv_dereg_mr";
        if (!agreed || (is_victim && seen.ok == !failed.empty() && !is_harmless)) {
          complaints += fmt::format("\nrank {}, call {} {}: {}", victim, k, failed, seen.text);
        }
        errors += seen.ok ? 0 : 1;
        if (adapter.verbs.live() != 0) complaints += fmt::format("\n{} left", k);
        test_ranks.barrier();
        if (!was_hit) break;
      }
    }
    require(complaints.empty(), complaints);
    require(errors > 30, fmt::format("{} errors", errors));
  });
}

TEST_CASE("different NICs of two ranks, or an adapter with backups, are an error on all ranks",
          "[req:3.11]") {
  run_on_adapters({0, 1}, {}, {}, [](TestRanks& test_ranks, Adapter&) {
    const Environment own(Variables{{"ORIEL_NIC", test_ranks.first() == 0 ? "mlx5" : "soft"}});
    must_fail(try_to_join(test_ranks), ErrorCode::invalid_usage,
              {"ORIEL_NIC", "mlx5 on rank 0, soft on rank 1"});
    test_ranks.barrier();
  });
  run_on_adapters({0, 1}, {}, {{"ORIEL_PATHS", "lo,lo"}}, [](TestRanks& test_ranks, Adapter&) {
    must_fail(try_to_join(test_ranks), ErrorCode::invalid_usage,
              {"ORIEL_PATHS names 2 interfaces", "ORIEL_NIC=mlx5"});
    test_ranks.barrier();
  });
}

TEST_CASE("ORIEL_DOORBELL selects who rings; an impossible choice is an error on all ranks",
          "[req:3.11][A3]") {
  run_on_adapters({0, 1}, {}, {{"ORIEL_DOORBELL", "cpu"}},
                  [&](TestRanks& test_ranks, Adapter&) { Traffic(test_ranks, 5).run(10); });
  run_on_adapters({0, 1}, {.rung_by_processor = true}, {},
                  [](TestRanks& test_ranks, Adapter& adapter) {
                    const Environment own(
                        Variables{{"ORIEL_DOORBELL", test_ranks.first() == 0 ? "gpu" : "auto"}});
                    const Seen seen = live(test_ranks);
                    require(!seen.ok && seen.origin == 0, seen.text);
                    require_words(seen.text, {"ORIEL_DOORBELL=gpu", "doorbell register of mlx5_0"});
                    require(adapter.verbs.live() == 0, "nothing is left");
                    test_ranks.barrier();
                  });
}

namespace {

/// Runs two nodes, the first without a working adapter. Checks the error text on both.
void run_without(bool library, const std::vector<std::string>& words) {
  const Environment environment(Variables{{"ORIEL_BACKEND", "host"},
                                          {"ORIEL_SOCKET_IFNAME", "lo"},
                                          {"ORIEL_CPU_AFFINITY", "0"},
                                          {"ORIEL_NIC", "mlx5"}});
  check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    const int me = test_ranks.first();
    const std::string name = "mlx5_" + std::to_string(me);
    const topo::TemporaryTree files;
    files.file("/machine.xml", machine_with(me == 0 && library ? "" : name));
    const Environment own(
        Variables{{"ORIEL_HOSTID", name}, {"ORIEL_TOPO_FILE", files.root() + "/machine.xml"}});
    net::test::FakeVerbs verbs;
    verbs.adapters = {net::test::FakeVerbs::adapter(name)};
    if (me == 0) verbs.library.missing = "there is no such library";
    const net::ScopedVerbsLibrary scoped(verbs.library);
    const Seen seen = live(test_ranks);
    require(!seen.ok && seen.origin == 0, seen.text);
    require_words(seen.text, words);
    require(verbs.live() == 0 && verbs.violations.empty(), "nothing is left");
    require(me == 0 || verbs.counted > 0, "the other one had an adapter");
    test_ranks.barrier();
  }));
}

}  // namespace

TEST_CASE("a rank without libraries or without an adapter is named on all", "[req:3.11]") {
  run_without(false, {"mlx5_0 cannot be opened", "no such library", "libibverbs1"});
  run_without(true, {"ORIEL_NIC=mlx5", "no RDMA port that is active"});
}

}  // namespace oriel::test
