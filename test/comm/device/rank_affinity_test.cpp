// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <linux/mempolicy.h>

#include "nccl.h"

#include "support/numa_machine.hpp"
#include "support/numa_system.hpp"
#include "support/ranks.hpp"
#include "topo/choice/placement.hpp"
#include "topo/sources/temporary_tree.hpp"

// CPU ranks bound to processors of one or both of two NUMA nodes, as by taskset.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
using Numbers = std::vector<int>;

constexpr std::size_t kBytes = std::size_t{4} << 20;

/// NCCL topology of two NUMA nodes with processors 0-3 and 4-7.
constexpr const char* kTwoNodes = R"(<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64"/>
  <cpu numaid="1" affinity="000000f0" arch="x86_64"/>
</system>
)";

/// Processors of a rank, and the memory nodes that the rank must request.
struct Place {
  Numbers cpus;
  Numbers nodes;
};

void require_nodes(const NumaSystem& system, const Place& place, std::size_t least) {
  require(system.preferences.size() >= least || place.nodes.empty(),
          fmt::format("{} preferences", system.preferences.size()));
  for (const NumaSystem::Preference& asked : system.preferences) {
    require(asked.mode == MPOL_PREFERRED, "preferred, not strict");
    require(asked.nodes == place.nodes, "another node");
  }
  require(place.nodes.empty() == system.preferences.empty(), "asked for a node, or not");
}

/// Runs the life of a communicator whose ranks are in these places, with one window each.
void live_in(LaunchMode launch_mode, const std::vector<Place>& places, int status) {
  const topo::TemporaryTree files;
  files.file("/machine.xml", kTwoNodes);
  const Environment environment(Variables{{"ORIEL_BACKEND", "host"},
                                          {"ORIEL_SOCKET_IFNAME", "lo"},
                                          {"ORIEL_TOPO_FILE", files.root() + "/machine.xml"}});
  const auto size = static_cast<int>(places.size());
  check_all_ok(run_ranks(launch_mode, size, [&](TestRanks& test_ranks) {
    const Place& place = places[static_cast<std::size_t>(test_ranks.first())];
    NumaSystem system;
    system.cpus = place.cpus;
    system.memory_status = status;
    {
      std::vector<ncclComm_t> comms = test_ranks.init();
      const std::size_t of_comm = system.preferences.size();
      require_nodes(system, place, 1);  // the scratch memory
      std::vector<Buffer> buffers;
      std::vector<void*> pointers;
      for (std::size_t i = 0; i < comms.size(); ++i) {
        buffers.emplace_back(kBytes);
        pointers.push_back(buffers.back().at());
      }
      require_nodes(system, place, of_comm + comms.size());
      const std::size_t before = system.preferences.size();
      const auto windows = test_ranks.register_windows(comms, pointers, kBytes);
      require(system.preferences.size() == before, "mapping windows asks for nothing");
      for (std::size_t i = 0; i < comms.size(); ++i) {
        require(ncclCommWindowDeregister(comms[i], windows[i]), "ncclCommWindowDeregister");
      }
      test_ranks.destroy(comms);
    }
    require(system.policies.empty(), "no thread's policy changes");
    // The ranks' threads are already at the right place.
    require(system.seen_placements().empty(), "no thread moves");
  }));
}

}  // namespace

TEST_CASE("windows of CPU ranks prefer the NUMA node that the rank is bound to", "[req:2.5]") {
  const std::vector<Place> places = {{{0, 1}, {0}}, {{4, 7}, {1}}, {{3, 4}, {}}, {{6}, {1}}};
  live_in(LaunchMode::processes, places, 0);
}

TEST_CASE("ranks that the kernel keeps on processors of two nodes prefer one each", "[req:2.5]") {
  const auto cpus = topo::cpus_of_this_thread();
  if (!cpus || cpus->size() < 2) {
    WARN("skipped: one processor");
    return;
  }
  const Numbers ends = {cpus->front(), cpus->back()};
  const Environment environment(
      Variables{{"ORIEL_BACKEND", "host"}, {"ORIEL_SOCKET_IFNAME", "lo"}});
  for (const LaunchMode launch_mode : {LaunchMode::processes, LaunchMode::threads}) {
    INFO(name_of(launch_mode));
    // Binds the thread before the library sees it, as taskset does.
    check_all_ok(run_ranks(launch_mode, 2, [&](TestRanks& test_ranks) {
      const int node = test_ranks.first();
      topo::run_this_thread_on({ends[static_cast<std::size_t>(node)]});
      test_ranks.barrier();
      // Makes one machine for each process; if ranks are threads, rank 0 makes it.
      std::optional<NumaMachine> machine;
      std::optional<NumaSystem> own;
      const bool makes = launch_mode == LaunchMode::processes || node == 0;
      static NumaSystem* system = nullptr;
      if (makes) {
        machine.emplace(std::to_string(ends[0]), std::to_string(ends[1]));
        system = &own.emplace();
        system->real_cpus = true;
      }
      test_ranks.barrier();
      std::vector<ncclComm_t> comms = test_ranks.init();
      const Buffer buffer(kBytes);
      int found = 0;
      {
        const std::lock_guard lock(system->mutex);
        for (const NumaSystem::Preference& asked : system->preferences) {
          if (asked.at == buffer.at()) found = asked.nodes == Numbers{node} ? 1 : -1;
        }
      }
      require(found == 1, "the rank's node");
      test_ranks.destroy(comms);
      test_ranks.barrier();
    }));
  }
}

TEST_CASE("several ranks of one thread prefer the node of its processors", "[req:2.5]") {
  live_in(LaunchMode::group, {{{5, 6}, {1}}, {{5, 6}, {1}}}, 0);
}

TEST_CASE("ranks start where a container refuses to prefer a node", "[req:2.5]") {
  live_in(LaunchMode::processes, {{{0}, {0}}, {{4}, {1}}}, EPERM);
}

TEST_CASE("ORIEL_CPU_AFFINITY=0 leaves memory and threads alone", "[req:2.5]") {
  const Environment off(Variables{{"ORIEL_CPU_AFFINITY", "0"}});
  live_in(LaunchMode::processes, {{{0}, {}}, {{4}, {}}}, 0);
}

}  // namespace oriel::test
