// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Reach, teams, NICs and paths of the composed machines.
#include <algorithm>
#include <random>
#include <set>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "topo/choice/nic_choice.hpp"
#include "topo/choice/paths.hpp"
#include "topo/choice/reach.hpp"
#include "topo/machine/machines.hpp"
#include "topo/model/distance.hpp"
#include "topo/xml/nccl_xml.hpp"

namespace oriel::topo {
namespace {

using Groups = std::vector<std::vector<int>>;

Groups teams_of(const Machine& machine) {
  return form_mutual_groups(static_cast<int>(machine.gpus.size()),
                            [&](int from, int to) { return may_map(machine, from, to); });
}

std::string distance_text(const Machine& machine, int gpu, int nic) {
  return std::string(
      name_of(route_between(machine, place_of(machine.gpus[static_cast<std::size_t>(gpu)]),
                            place_of(machine.nics[static_cast<std::size_t>(nic)]))
                  .distance));
}

}  // namespace

TEST_CASE("teams are what reaches each other, not what shares a host", "[req:2.3]") {
  CHECK(teams_of(hgx_8()) == Groups{{0, 1, 2, 3, 4, 5, 6, 7}});
  CHECK(teams_of(two_cliques()) == Groups{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(teams_of(workstation()) == Groups{{0, 1}});
  CHECK(teams_of(one_nic()) == Groups{{0, 1}, {2, 3}});
  CHECK(teams_of(mig()) == Groups{{0}, {1}, {2}});
  CHECK(teams_of(amd_full_mesh()) == Groups{{0, 1, 2, 3, 4, 5, 6, 7}});
  // Reach is not transitive in the ring: greedily in rank order, all members of a team reach it.
  CHECK(teams_of(amd_partial_mesh()) == Groups{{0, 1, 2}, {3, 4, 5}, {6, 7}});
  CHECK(teams_of(cpu_only()).empty());
  CHECK(teams_of(uneven()) == Groups{{0, 1}, {2}, {3}});
  CHECK(may_map(uneven(), 2, 1));
  CHECK_FALSE(may_map(uneven(), 1, 2));
}

TEST_CASE("a link from one GPU to another lets only the first map the second", "[H2]") {
  MachineBuilder build;
  const int root = build.host_bridge(-1);
  build.gpu(root, "0000:01:00.0");
  build.gpu(root, "0000:02:00.0");
  build.one_way(0, 1, true, 1);
  const Machine machine = canonical(std::move(build.machine));
  CHECK(reach_lists(machine) == Groups{{0}, {0, 1}});
  CHECK(teams_of(machine) == Groups{{0}, {1}});
}

TEST_CASE("links to a processor join no GPUs as links to a switch do", "[req:2.3][req:2.6]") {
  const auto gpu = [](const char* bus, const char* other, const char* processor, const char* kind) {
    return fmt::format(
        "<pci busid=\"{}\" class=\"0x030200\"><gpu sm=\"70\">"
        "<nvlink target=\"{}\" count=\"3\" tclass=\"0x030200\"/>"
        "<nvlink target=\"{}\" count=\"3\" tclass=\"{}\"/></gpu></pci>",
        bus, other, processor, kind);
  };
  // Two processors of POWER9 with two GPUs each, linked to each other and to their processor.
  const auto machine = [&](const char* kind) {
    const auto read = read_nccl_xml("<system><cpu numaid=\"0\" affinity=\"0000000f\">" +
                                    gpu("0004:04:00.0", "0004:05:00.0", "0004:00:00.0", kind) +
                                    gpu("0004:05:00.0", "0004:04:00.0", "0004:00:00.0", kind) +
                                    "</cpu><cpu numaid=\"8\" affinity=\"000000f0\">" +
                                    gpu("0035:03:00.0", "0035:04:00.0", "0035:00:00.0", kind) +
                                    gpu("0035:04:00.0", "0035:03:00.0", "0035:00:00.0", kind) +
                                    "</cpu></system>");
    REQUIRE((read.ok() ? "ok" : read.error().to_string()) == "ok");
    return *read;
  };
  const Machine power9 = machine("0x068001");
  CHECK(reach_lists(power9) == Groups{{0, 1}, {0, 1}, {2, 3}, {2, 3}});
  CHECK_FALSE(reach_is_known(power9, 0, 2));
  CHECK(teams_of(power9) == Groups{{0, 1}, {2, 3}});
  CHECK(path_between(power9, 0, 1).kind == PathKind::nvlink);
  CHECK(path_between(power9, 0, 2).kind == PathKind::host_memory);
  CHECK(teams_of(machine("0x068000")) == Groups{{0, 1, 2, 3}});
}

TEST_CASE("reach is what the links say", "[req:2.9]") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    MachineBuilder build;
    const int root = build.host_bridge(-1);
    const int count = 1 + static_cast<int>(random() % 9);
    for (int i = 0; i < count; ++i) {
      build.gpu(root, ("0000:0" + std::to_string(i) + ":00.0").c_str());
    }
    std::set<std::pair<int, int>> links;
    std::set<std::pair<int, int>> unknown;
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        if (from == to) continue;
        if (random() % 3 == 0) {
          unknown.emplace(from, to);
          continue;
        }
        if (random() % 3 == 0) {  // of which no source says more than how many links there are
          const int count_of_links = static_cast<int>(random() % 3);
          build.one_way(from, to, false, count_of_links);
          build.machine.pairs.back().maps = std::nullopt;
          if (count_of_links > 0) links.emplace(from, to);
          if (count_of_links == 0) unknown.emplace(from, to);
          continue;
        }
        const bool maps = random() % 2 == 0;
        build.one_way(from, to, maps, static_cast<int>(random() % 3));  // what is said counts more
        if (maps) links.emplace(from, to);
      }
    }
    const Machine machine = canonical(shuffled(build.machine, static_cast<unsigned>(random())));
    const auto reach = reach_lists(machine);
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        const auto& list = reach[static_cast<std::size_t>(to)];
        const bool listed = std::binary_search(list.begin(), list.end(), from);
        REQUIRE(listed == (from == to || links.contains({from, to})));
        REQUIRE(may_map(machine, from, to) == listed);
        REQUIRE(reach_is_known(machine, from, to) == !unknown.contains({from, to}));
      }
    }
    std::set<int> members;
    for (const auto& team : teams_of(machine)) {
      for (const int a : team) {
        REQUIRE(members.insert(a).second);
        for (const int b : team) REQUIRE(may_map(machine, a, b));
      }
    }
    REQUIRE(members.size() == machine.gpus.size());
  }
}

TEST_CASE("distances have nvidia-smi's names", "[req:2.5]") {
  const Machine hgx = hgx_8();
  CHECK(distance_text(hgx, 0, 0) == "PIX");
  CHECK(distance_text(hgx, 0, 1) == "PIX");
  CHECK(distance_text(hgx, 0, 2) == "NODE");
  CHECK(distance_text(hgx, 0, 4) == "SYS");
  const Machine small = one_nic();
  CHECK(distance_text(small, 0, 0) == "PHB");
  CHECK(distance_text(small, 2, 0) == "SYS");

  MachineBuilder build;
  const int root = build.host_bridge(-1);
  const int up = build.bridge(root, "0000:01:00.0", 500);
  const int left = build.bridge(up, "0000:02:00.0", 250);
  build.gpu(left, "0000:03:00.0");
  const int right = build.bridge(up, "0000:02:01.0", 250);
  const int second = build.bridge(right, "0000:04:00.0", 100);
  build.nic(build.bridge(second, "0000:05:00.0", 200), "0000:06:00.0", "mlx5_0");
  const Route route = route_between(build.machine, place_of(build.machine.gpus[0]),
                                    place_of(build.machine.nics[0]));
  CHECK(route.distance == Distance::switches);
  CHECK(route.bridges == 5);
  CHECK(route.link_gbps == 100);
}

TEST_CASE("the path of each pair of GPUs", "[req:2.6]") {
  const auto path = [](const Machine& machine, int from, int to) {
    const Path one = path_between(machine, from, to);
    return std::string(name_of(one.kind)) + " " + std::to_string(one.hops) + " " +
           std::to_string(static_cast<int>(one.gbps)) + " " + std::string(name_of(one.distance));
  };
  CHECK(path(hgx_8(), 3, 3) == "same device 0 0 X");
  CHECK(path(hgx_8(), 0, 1) == "NVLink 2 3824 PIX");
  CHECK(path(hgx_8(), 0, 7) == "NVLink 2 3824 SYS");
  CHECK(path(two_cliques(), 0, 3) == "NVLink 1 800 PHB");
  CHECK(path(two_cliques(), 0, 4) == "host memory 2 250 SYS");
  CHECK(path(workstation(), 0, 1) == "PCIe peer 4 125 PHB");
  CHECK(path(mig(), 0, 1) == "host memory 2 504 X");
  CHECK(path(amd_full_mesh(), 0, 7) == "NVLink 1 512 SYS");
  CHECK(path(amd_partial_mesh(), 0, 1) == "NVLink 1 400 NODE");
  CHECK(path(amd_partial_mesh(), 0, 2) == "NVLink 2 400 NODE");
  CHECK(path(amd_partial_mesh(), 0, 4) == "host memory 2 250 NODE");
}

TEST_CASE("without a tree of PCI buses hops over them are not known", "[req:2.6]") {
  Machine machine = workstation();
  CHECK(path_between(machine, 0, 1).hops == 4);
  machine.gpus[1].node = -1;
  CHECK(path_between(machine, 0, 1).hops == 0);
  CHECK(path_between(machine, 0, 1).kind == PathKind::pcie_peer);
}

TEST_CASE("what is decided does not depend on the order of the lists", "[req:2.9]") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  for (const auto& [name, machine] : all_machines()) {
    for (unsigned round = 0; round < 20; ++round) {
      INFO(name << ", round " << round);
      const Machine other = canonical(shuffled(machine, seed + round));
      REQUIRE(choose_nics(other) == choose_nics(machine));
      REQUIRE(choose_nics_of_numa_nodes(other) == choose_nics_of_numa_nodes(machine));
      REQUIRE(all_paths(other) == all_paths(machine));
      REQUIRE(reach_lists(other) == reach_lists(machine));
    }
  }
}

}  // namespace oriel::topo
