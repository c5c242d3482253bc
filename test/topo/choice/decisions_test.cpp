// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests reach, routes and paths. The files named `expected` cover the fixtures.
#include <optional>
#include <utility>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "topo/choice/paths.hpp"
#include "topo/choice/reach.hpp"
#include "topo/machine/machines.hpp"
#include "topo/model/distance.hpp"
#include "topo/xml/nccl_text.hpp"

namespace oriel::topo {
namespace {

using Groups = std::vector<std::vector<int>>;

Groups teams_of(const Machine& machine) {
  return form_mutual_groups(static_cast<int>(machine.gpus.size()),
                            [&](int from, int to) { return may_map(machine, from, to); });
}

}  // namespace

TEST_CASE("a link from one GPU to another lets only the first map the second", "[H2]") {
  for (const auto& [from, to] : {std::pair(0, 1), {1, 0}}) {
    CAPTURE(from, to);
    MachineBuilder build{machine_of("?( g g )")};
    build.one_way(from, to, true, 1);
    const Machine machine = canonical(std::move(build.machine));
    CHECK(reach_lists(machine) == (from == 0 ? Groups{{0}, {0, 1}} : Groups{{0, 1}, {1}}));
    CHECK(teams_of(machine) == Groups{{0}, {1}});
  }
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
    const Machine read =
        nccl_machine("<system><cpu numaid=\"0\" affinity=\"0000000f\">" +
                     gpu("0004:04:00.0", "0004:05:00.0", "0004:00:00.0", kind) +
                     gpu("0004:05:00.0", "0004:04:00.0", "0004:00:00.0", kind) +
                     "</cpu><cpu numaid=\"8\" affinity=\"000000f0\">" +
                     gpu("0035:03:00.0", "0035:04:00.0", "0035:00:00.0", kind) +
                     gpu("0035:04:00.0", "0035:03:00.0", "0035:00:00.0", kind) + "</cpu></system>");
    return read;
  };
  const Machine power9 = machine("0x068001");
  CHECK(reach_lists(power9) == Groups{{0, 1}, {0, 1}, {2, 3}, {2, 3}});
  CHECK_FALSE(reach_is_known(power9, 0, 2));
  CHECK(teams_of(power9) == Groups{{0, 1}, {2, 3}});
  CHECK(path_between(power9, 0, 1).kind == PathKind::nvlink);
  CHECK(path_between(power9, 0, 2).kind == PathKind::host_memory);
  CHECK(teams_of(machine("0x068000")) == Groups{{0, 1, 2, 3}});
}

TEST_CASE("reach is what is said of a pair, else what its links say, else not known", "[req:2.9]") {
  struct Row {
    std::optional<bool> maps;
    int links;
    bool reaches;
    bool known;
  };
  for (const Row& row : {Row{true, 0, true, true},
                         {true, 2, true, true},
                         {false, 0, false, true},
                         {false, 2, false, true},
                         {std::nullopt, 2, true, true},
                         {std::nullopt, 0, false, false}}) {
    CAPTURE(row.maps.value_or(false), row.links);
    MachineBuilder build{machine_of("?( g ) ?( g )")};
    build.one_way(0, 1, false, row.links);
    build.machine.pairs.back().maps = row.maps;
    const Machine machine = canonical(std::move(build.machine));
    CHECK(may_map(machine, 0, 1) == row.reaches);
    CHECK(reach_is_known(machine, 0, 1) == row.known);
    CHECK(reach_lists(machine) == Groups{{0}, row.reaches ? std::vector{0, 1} : std::vector{1}});
    CHECK_FALSE(reach_is_known(machine, 1, 0));  // no source reports the other direction
  }
}

TEST_CASE("a route over PCI counts bridges, and is as wide as its narrowest link", "[req:2.5]") {
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

TEST_CASE("without a tree of PCI buses hops over them are not known", "[req:2.6]") {
  Machine machine = workstation();
  CHECK(path_between(machine, 0, 1).hops == 4);
  machine.gpus[1].node = -1;
  CHECK(path_between(machine, 0, 1).hops == 0);
  CHECK(path_between(machine, 0, 1).kind == PathKind::pcie_peer);
}

}  // namespace oriel::topo
