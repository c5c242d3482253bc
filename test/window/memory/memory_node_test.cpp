// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests from which NUMA node host memory is requested.
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <linux/mempolicy.h>
#include <sys/mman.h>

#include "support/numa_machine.hpp"
#include "support/numa_system.hpp"
#include "topo/choice/placement.hpp"
#include "window/memory/memory_host.hpp"
#include "window/memory/memory_promises.hpp"

namespace oriel::window {
namespace {

using test::NumaSystem;
using Numbers = std::vector<int>;

/// Counts the preferences set before memory is first touched, on top of a NumaSystem.
class AdviceLog {
 public:
  explicit AdviceLog(const NumaSystem& system) : table_(make_table(system)), scoped_(table_) {}
  static int preferences_before_first_touch;

 private:
  static SystemTable make_table(const NumaSystem& system) {
    preferences_before_first_touch = -1;
    of() = &system;
    SystemTable table = sys();
    table.madvise = [](void* at, std::size_t bytes, int advice) {
      const bool touches = advice == 23;  // MADV_POPULATE_WRITE
      if (touches && preferences_before_first_touch < 0) {
        preferences_before_first_touch = static_cast<int>(of()->preferences.size());
      }
      return real_system_table().madvise(at, bytes, advice);
    };
    return table;
  }
  static const NumaSystem*& of() {
    static const NumaSystem* system = nullptr;
    return system;
  }
  SystemTable table_;
  ScopedSystemTable scoped_;
};
int AdviceLog::preferences_before_first_touch = -1;

}  // namespace

TEST_CASE("a rank's host memory prefers the NUMA node of its processors, before first touch",
          "[req:2.5]") {
  const test::NumaMachine machine;
  NumaSystem system;
  const AdviceLog advice(system);
  struct Expected {
    Numbers cpus;
    Numbers nodes;
  };
  for (const Expected& row : {Expected{{4, 5}, {1}}, Expected{{3}, {0}}, Expected{{3, 4}, {}}}) {
    for (const auto& [bytes, backing] :
         {std::pair{std::size_t{100}, Backing::ready}, std::pair{5 * kMiB, Backing::ready},
          std::pair{5 * kMiB, Backing::on_demand}}) {
      CAPTURE(row.cpus, bytes);
      system.cpus = row.cpus;
      system.preferences.clear();
      void* const base = allocate(host_memory(), bytes, backing);
      REQUIRE(system.preferences.size() == row.nodes.size());
      if (!row.nodes.empty()) {
        const NumaSystem::Preference& asked = system.preferences.front();
        CHECK(asked.at == base);
        CHECK(asked.bytes == (bytes == 100 ? 4096 : 6 * kMiB));
        CHECK(asked.mode == MPOL_PREFERRED);
        CHECK(asked.nodes == row.nodes);
      }
      CHECK(host_memory().free(base).ok());
    }
  }
  CHECK(AdviceLog::preferences_before_first_touch == 1);
}

TEST_CASE("windows of peers, and second mappings, keep the policy that their owner gave",
          "[req:2.5]") {
  const test::NumaMachine machine;
  NumaSystem system;
  system.cpus = {4};
  check_imports(host_memory());
  CHECK(system.preferences.size() == 1);
}

TEST_CASE("a system that refuses to prefer a node gives memory all the same", "[req:2.5]") {
  const test::NumaMachine machine;
  const auto before = test::process_state();
  NumaSystem system;
  system.cpus = {4};
  SECTION("a filter of calls") {
    system.memory_status = EPERM;
  }
  SECTION("a node that is none") {
    system.memory_status = EINVAL;
  }
  SECTION("and does not even answer") {
    system.asking_status = EPERM;
  }
  char* const base = allocate(host_memory(), 3 * kMiB);
  base[0] = 1;
  CHECK(host_memory().free(base).ok());
  CHECK(test::process_state() == before);
}

TEST_CASE("this kernel takes the node, and reports it for the window's pages and all mappings",
          "[req:2.5]") {
  const auto nodes = topo::memory_nodes_of_this_thread();
  const auto cpus = topo::cpus_of_this_thread();
  if (!nodes || nodes->front() != 0 || !cpus || topo::has_memory_policy()) {
    WARN("skipped: this kernel does not tell of memory nodes, or has no node 0 for this process");
    return;
  }
  // All processors at node 0, and a second node. The replaced call allows both nodes for memory,
  // because the real mask may lack the second.
  const test::NumaMachine machine("0-" + std::to_string(cpus->back()), "");
  SystemTable table = real_system_table();
  table.get_mempolicy = [](int* mode, unsigned long* mask, unsigned long bits, void* at,
                           unsigned long flags) {
    const int status = real_system_table().get_mempolicy(mode, mask, bits, at, flags);
    if (status == 0 && flags == MPOL_F_MEMS_ALLOWED) mask[0] |= 3;
    return status;
  };
  const ScopedSystemTable scoped(table);
  char* const base = allocate(host_memory(), 4 * kMiB);
  for (std::size_t at = 0; at < 4 * kMiB; at += 4096) base[at] = 1;
  int mode = -1;
  unsigned long mask[64] = {};
  REQUIRE(sys().get_mempolicy(&mode, mask, 4096, base, MPOL_F_ADDR) == 0);
  CHECK(mode == MPOL_PREFERRED);
  CHECK(mask[0] == 1);
  const auto own = segments_of(host_memory(), base, 1).at(0).allocation;
  const OwnedFd fd = std::get<OwnedFd>(exported(host_memory(), *own));
  void* const peer = ::mmap(nullptr, 4 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  REQUIRE(peer != MAP_FAILED);
  mode = -1;
  CHECK(sys().get_mempolicy(&mode, mask, 4096, peer, MPOL_F_ADDR) == 0);
  CHECK(mode == MPOL_PREFERRED);
  ::munmap(peer, 4 * kMiB);
  int node = -1;
  CHECK(sys().get_mempolicy(&node, nullptr, 0, base + 3 * kMiB, MPOL_F_NODE | MPOL_F_ADDR) == 0);
  CHECK(node == 0);
  CHECK(host_memory().free(base).ok());
}

}  // namespace oriel::window
