// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "comm/support/adapter_players.hpp"
#include "comm/support/foreign_key.hpp"
#include "comm/support/network_faults.hpp"
#include "comm/support/network_players.hpp"
#include "support/seed.hpp"

/// Ranks of several nodes whose queues are executed by mlx5 adapters (3.11, 3.15). Runs on the
/// model of verbs, and so proves nothing about hardware.
namespace oriel::test {
using namespace std::chrono_literals;

TEST_CASE("random puts, gets and signals by queues of adapters, byte by byte",
          "[req:3.11][req:3.15]") {
  const std::uint64_t seed = test_seed();
  const bool rung_by_processor = GENERATE(false, true);
  for (const std::vector<int>& nodes : {std::vector{0, 1}, std::vector{0, 0, 1, 1}}) {
    play_on_adapters(nodes, {.rung_by_processor = rung_by_processor}, {},
                     [&](Players& players, Adapter&) { Traffic(players, seed).run(30); });
  }
}

TEST_CASE("windows have keys of the adapter as long as they are registered",
          "[req:3.11][req:3.15]") {
  play_on_adapters({0, 1}, {}, {}, [](Players& players, Adapter& adapter) {
    const int peer = 1 - players.first();
    auto comm = join(players);
    const auto memory = must(comm.allocate(2 * 4096));
    auto* const base = static_cast<std::uint8_t*>(memory.data());
    players.barrier();
    const std::size_t before = adapter.verbs.live("region");
    players.barrier();
    auto window = must(comm.register_window(MemoryRange{base, 4096}));
    players.barrier();
    require(adapter.verbs.live("region") == before + 1, "a region of its own");
    players.barrier();
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
    require(base[20] == 50 + players.first(), "what the peer has put");
    require(device::world_flush(kThread, kernels.view()), "the flush");
    players.barrier();
    must(later.close());
    must(window.close());
    require_outcome(put(), device::WorldOutcome::no_window, "a put to a window that was closed");
    players.barrier();
    // The remaining region belongs to the device communicator's window.
    require(adapter.verbs.live("region") == before + 1, "those of both windows have gone");
    players.barrier();
  });
}

TEST_CASE("an entry that a peer's adapter refuses is named with opcode and syndrome",
          "[req:3.11]") {
  play_on_adapters({0, 1}, {}, {},
                   // Changes the key, because each adapter of the model has one protection domain.
                   [](Players& players, Adapter&) { write_by_changed_key(players, 1); });
}

TEST_CASE("an adapter's queue refuses what is posted after an abort", "[req:3.6][req:3.11]") {
  play_on_adapters({0, 1}, {}, {},
                   [](Players& players, Adapter&) { post_after_abort(players, true); });
}

TEST_CASE("an adapter that dies is named by a rank that asks nothing of it",
          "[req:3.11][req:3.19]") {
  play_on_adapters({0, 1}, {.answer_timeout = 50ms}, {}, [](Players& players, Adapter& adapter) {
    Rank rank(players, 4096, kWorld);
    rank.sync("the first barrier");
    players.barrier();  // no rank is still in the first barrier
    if (players.first() == 1) adapter.nic().stop();
    players.barrier();
    // Only rank 0 waits: rank 1, whose adapter is dead, would name rank 0.
    if (players.first() == 0) {
      require_outcome(device::wait_signal(kThread, rank.view(), 0, 1, 1),
                      device::WorldOutcome::aborted, "the wait");
    }
    const auto error = error_of(rank.comm);
    require(error && error->origin_rank() == 1, error ? error->to_string() : "no error");
    require_words(error->to_string(), {"rank 0 to rank 1", "did not answer",
                                       "asked whether it is there", "mlx5_0 port 1"});
    players.barrier();
  });
}

TEST_CASE("whichever call of verbs fails while a communicator starts, all ranks agree",
          "[req:3.11]") {
  play_on_adapters({0, 1}, {}, {}, [](Players& players, Adapter& adapter) {
    std::string complaints;
    int errors = 0;
    for (int victim = 0; victim < 2; ++victim) {
      const bool is_victim = players.first() == victim;
      for (long k = 1;; ++k) {
        const auto [seen, agreed, was_hit] = start_with_faults(
            players, victim,
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
        players.barrier();
        if (!was_hit) break;
      }
    }
    require(complaints.empty(), complaints);
    require(errors > 30, fmt::format("{} errors", errors));
  });
}

TEST_CASE("ranks that choose different NICs, or an adapter and backups, are told so",
          "[req:3.11]") {
  play_on_adapters({0, 1}, {}, {}, [](Players& players, Adapter&) {
    const Environment own(Variables{{"ORIEL_NIC", players.first() == 0 ? "mlx5" : "soft"}});
    must_fail(try_to_join(players), ErrorCode::invalid_usage,
              {"ORIEL_NIC", "mlx5 on rank 0, soft on rank 1"});
    players.barrier();
  });
  play_on_adapters({0, 1}, {}, {{"ORIEL_PATHS", "lo,lo"}}, [](Players& players, Adapter&) {
    must_fail(try_to_join(players), ErrorCode::invalid_usage,
              {"ORIEL_PATHS names 2 interfaces", "ORIEL_NIC=mlx5"});
    players.barrier();
  });
}

TEST_CASE("who rings is the user's choice, and an error of all where it cannot be",
          "[req:3.11][A3]") {
  play_on_adapters({0, 1}, {}, {{"ORIEL_DOORBELL", "cpu"}},
                   [&](Players& players, Adapter&) { Traffic(players, 5).run(10); });
  play_on_adapters({0, 1}, {.rung_by_processor = true}, {}, [](Players& players, Adapter& adapter) {
    const Environment own(Variables{{"ORIEL_DOORBELL", players.first() == 0 ? "gpu" : "auto"}});
    const Seen seen = live(players);
    require(!seen.ok && seen.origin == 0, seen.text);
    require_words(seen.text, {"ORIEL_DOORBELL=gpu", "doorbell register of mlx5_0"});
    require(adapter.verbs.live() == 0, "nothing is left");
    players.barrier();
  });
}

namespace {

/// Plays two nodes, the first without a working adapter. Checks the error text on both.
void play_without(bool library, const std::vector<std::string>& words) {
  const Environment environment(Variables{{"ORIEL_BACKEND", "host"},
                                          {"ORIEL_SOCKET_IFNAME", "lo"},
                                          {"ORIEL_CPU_AFFINITY", "0"},
                                          {"ORIEL_NIC", "mlx5"}});
  check_all_ok(play(Cast::processes, 2, [&](Players& players) {
    const int me = players.first();
    const std::string name = "mlx5_" + std::to_string(me);
    const topo::TemporaryTree files;
    files.file("/machine.xml", machine_with(me == 0 && library ? "" : name));
    const Environment own(
        Variables{{"ORIEL_HOSTID", name}, {"ORIEL_TOPO_FILE", files.root() + "/machine.xml"}});
    net::test::FakeVerbs verbs;
    verbs.adapters = {net::test::FakeVerbs::adapter(name)};
    if (me == 0) verbs.library.missing = "there is no such library";
    const net::ScopedVerbsLibrary scoped(verbs.library);
    const Seen seen = live(players);
    require(!seen.ok && seen.origin == 0, seen.text);
    require_words(seen.text, words);
    require(verbs.live() == 0 && verbs.violations.empty(), "nothing is left");
    require(me == 0 || verbs.counted > 0, "the other one had an adapter");
    players.barrier();
  }));
}

}  // namespace

TEST_CASE("a rank without libraries or without an adapter is named on all", "[req:3.11]") {
  play_without(false, {"mlx5_0 cannot be opened", "no such library", "libibverbs1"});
  play_without(true, {"ORIEL_NIC=mlx5", "no RDMA port that is active"});
}

}  // namespace oriel::test
