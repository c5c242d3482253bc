// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests the lines of oriel-topo's picture, and how its outputs present GPUs and processors.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "support/words.hpp"
#include "topo/machine/machines.hpp"
#include "topo/xml/xml_reader.hpp"
#include "topology/summary.hpp"
#include "topology/svg_routes.hpp"

using namespace oriel;
using namespace oriel::tools;

namespace {

using test::has;

constexpr const char* kThreePlaces = "n( g ) n( g ) n( g )";

/// Returns three GPUs of a team: the first pair with `first` links, both pairs with the third
/// `second`.
topo::Machine three_gpus(int first, int second) {
  topo::MachineBuilder build{topo::machine_of(kThreePlaces)};
  for (const auto& [a, b, links] : {std::tuple(0, 1, first), {0, 2, second}, {1, 2, second}}) {
    build.pair(a, b, true, links);
  }
  return topo::canonical(std::move(build.machine));
}

/// A vertical piece of a route, in tracks: -1 is above all tracks, 1000 below.
struct Upright {
  double x;
  int from;
  int to;
};

constexpr int kTop = -1;
constexpr int kBottom = 1000;

std::vector<Upright> uprights_of(const Route& route, bool tracks_downward) {
  std::vector<Upright> pieces;
  if (route.track < 0) return {{route.left(), kTop, kBottom}};
  // Above the GPUs, track 0 is the lowest; all tracks are reached from below.
  for (const double x : route.upper) pieces.push_back({x, kTop, route.track});
  for (const double x : route.lower) {
    pieces.push_back(tracks_downward ? Upright{x, route.track, kBottom}
                                     : Upright{x, kTop, route.track});
  }
  return pieces;
}

bool run_along_each_other(const Route& a, const Route& b, bool tracks_downward) {
  if (a.track >= 0 && a.track == b.track && a.left() <= b.right() && b.left() <= a.right())
    return true;
  for (const Upright& one : uprights_of(a, tracks_downward)) {
    for (const Upright& other : uprights_of(b, tracks_downward)) {
      if (std::abs(one.x - other.x) < 1 && one.from <= other.to && other.from <= one.to)
        return true;
    }
  }
  return false;
}

template <typename Item>
int lines_along_each_other(const std::vector<Item>& items, bool tracks_downward) {
  int count = 0;
  for (std::size_t a = 0; a < items.size(); ++a) {
    for (std::size_t b = a + 1; b < items.size(); ++b) {
      if (run_along_each_other(items[a].route, items[b].route, tracks_downward)) ++count;
    }
  }
  return count;
}

void check_ways(const topo::Machine& machine) {
  const Summary summary = summarise(machine);
  const Layout layout = lay_out(summary, 50);
  std::vector<Link> links = links_to_draw(summary);
  std::vector<Wire> wires = wires_to_draw(summary);
  const int above = find_ways(layout, links);
  const int between = find_ways(summary, layout, wires);
  CHECK(lines_along_each_other(links, false) == 0);
  CHECK(lines_along_each_other(wires, true) == 0);
  for (const Link& link : links) {
    CHECK(link.route.track < above);
    for (const auto& [gpu, x] :
         {std::pair(link.from, link.route.lower[0]), std::pair(link.to, link.route.lower[1])}) {
      const Box& box = layout.gpus[static_cast<std::size_t>(gpu)];
      CHECK((x > box.x && x < box.right() && std::abs(x - box.centre()) > 5));
    }
  }
  std::vector<Box> devices = layout.gpus;
  devices.insert(devices.end(), layout.nics.begin(), layout.nics.end());
  for (std::size_t a = 0; a < devices.size(); ++a) {
    for (std::size_t b = a + 1; b < devices.size(); ++b) {
      const bool apart = devices[a].right() < devices[b].x || devices[b].right() < devices[a].x ||
                         devices[a].bottom() < devices[b].y || devices[b].bottom() < devices[a].y;
      CHECK(apart);
    }
  }
  std::size_t choices = 0;
  for (const Wire& wire : wires) {
    CHECK(wire.route.track < between);
    choices += wire.route.upper.size();
  }
  std::size_t expected = 0;
  for (const topo::NicChoice& choice : summary.nics) {
    expected += (choice.primary >= 0 ? 1U : 0U) + (choice.backup >= 0 ? 1U : 0U);
  }
  CHECK(choices == expected);
  CHECK(topo::parse_xml(svg_of(summary)).ok());
}

}  // namespace

TEST_CASE("no line of the picture runs along another, no device overlaps one", "[req:2.8]") {
  for (const auto& [name, machine] : topo::all_machines()) {
    INFO(name);
    check_ways(machine);
  }
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 40; ++round) check_ways(topo::random_machine(random));
}

TEST_CASE("the bar of two GPUs, where there is little room, counts their links", "[req:2.8]") {
  struct Row {
    int links;
    int hops;
    topo::GpuVendor vendor;
    bool switches;
    const char* bar;
  };
  using topo::GpuVendor;
  for (const Row& row : {
           Row{18, 0, GpuVendor::nvidia, true, ">team 0: 18 NVLinks, 450 GB/s<"},
           Row{4, 0, GpuVendor::nvidia, false, ">team 0: 4 NVLinks, 100 GB/s<"},
           Row{1, 0, GpuVendor::nvidia, false, ">team 0: 1 NVLink, 25 GB/s<"},
           Row{1, 0, GpuVendor::amd, false, ">team 0: 1 xGMI link, 25 GB/s<"},
           Row{3, 0, GpuVendor::amd, false, ">team 0: 3 xGMI links, 75 GB/s<"},
           // Joined only through other GPUs, like two GPUs of a partly hidden ring.
           Row{0, 2, GpuVendor::amd, false, ">team 0: xGMI links, 25 GB/s<"},
       }) {
    INFO(row.bar);
    topo::MachineBuilder build{topo::machine_of("n( g g )")};
    build.pair(0, 1, true, row.switches ? 0 : row.links);
    for (topo::GpuPair& pair : build.machine.pairs) pair.hops = row.hops;
    for (topo::Gpu& gpu : build.machine.gpus) {
      gpu.vendor = row.vendor;
      gpu.link_gbps = 200;
      gpu.switch_links = row.switches ? row.links : 0;
    }
    CHECK(has(svg_of(summarise(topo::canonical(std::move(build.machine)))), row.bar));
  }
}

TEST_CASE("links between teams are drawn, and who maps whose memory from another team",
          "[req:2.8]") {
  // A ring of 8: teams of 3, 3 and 2.
  const Summary ring = summarise(topo::amd_partial_mesh());
  int direct = 0;
  int between = 0;
  int mapped = 0;
  for (const Link& link : links_to_draw(ring)) {
    const bool together = ring.team[static_cast<std::size_t>(link.from)] ==
                          ring.team[static_cast<std::size_t>(link.to)];
    if (link.links > 0) ++direct;
    if (link.links > 0 && !together) ++between;
    if (link.links == 0) {
      ++mapped;
      CHECK_FALSE(together);
    }
  }
  CHECK(between == 3);
  // The bar shows the link of GPU 6 and 7, because all pairs of their team are joined alike.
  CHECK(direct == 7);
  CHECK(mapped == 6);
  const std::string picture = svg_of(ring);
  CHECK(has(picture, "direct links of two GPUs<"));
  CHECK(has(picture, "between teams: memory that can be mapped"));
  CHECK_FALSE(has(picture, "one way only"));

  // A one-way mapping has an arrow to the GPU whose memory is mapped.
  topo::MachineBuilder build{topo::machine_of(kThreePlaces)};
  build.one_way(0, 1, false);
  build.one_way(1, 0, true);
  build.pair(1, 2, false);
  const Summary uneven = summarise(topo::canonical(std::move(build.machine)));
  const std::vector<Link> arrows = links_to_draw(uneven);
  REQUIRE(arrows.size() == 1);
  CHECK(arrows[0].one_way);
  CHECK(arrows[0].from == 1);
  CHECK(arrows[0].to == 0);
  const std::string drawn = svg_of(uneven);
  CHECK(topo::parse_xml(drawn).ok());
  const Layout layout = lay_out(uneven, 50);
  const std::string tip = "<polygon points=\"";
  REQUIRE(has(drawn, tip));
  const double x = std::stod(drawn.substr(drawn.find(tip) + tip.size()));
  CHECK((x > layout.gpus[0].x && x < layout.gpus[0].right()));
  CHECK(has(drawn, "one way only, the GPU that it points to is mapped by the other<"));

  CHECK(links_to_draw(summarise(topo::two_cliques())).empty());
  CHECK(links_to_draw(summarise(topo::hgx_8())).empty());
  CHECK_FALSE(has(svg_of(summarise(topo::hgx_8())), "direct links"));
}

TEST_CASE("a picture says that it does not know who maps whom, where no source does", "[req:2.8]") {
  constexpr const char* kWords = "not drawn: what no source says, whether some GPUs map each other";
  topo::Machine machine = topo::workstation();
  CHECK_FALSE(has(svg_of(summarise(machine)), kWords));
  machine.pairs.clear();
  CHECK(has(svg_of(summarise(machine)), kWords));
  machine.gpus.clear();
  CHECK_FALSE(has(svg_of(summarise(machine)), kWords));
}

TEST_CASE("the numbers of links are those of all pairs, not of the first", "[req:2.8]") {
  CHECK(has(svg_of(summarise(three_gpus(4, 4))), "links all to all, 4 a pair"));
  CHECK(has(svg_of(summarise(three_gpus(1, 4))), "links all to all, 1 to 4 a pair"));
  CHECK(has(svg_of(summarise(three_gpus(4, 1))), "links all to all, 1 to 4 a pair"));
  // If links are drawn individually and their numbers differ, each has its number.
  const auto cut = [](int first, int second) {
    topo::Machine machine = three_gpus(first, second);
    for (topo::GpuPair& pair : machine.pairs) {
      if (pair.from + pair.to == 3) pair.links = 0;  // the pair 1 and 2
    }
    return svg_of(summarise(machine));
  };
  CHECK(has(cut(3, 2), "direct links of two GPUs, with their number"));
  CHECK(has(cut(3, 2), ">3</text>"));
  CHECK(has(cut(3, 2), ">2</text>"));
  CHECK(has(cut(3, 3), "direct links of two GPUs<"));
  topo::Machine switches = topo::hgx_8();
  switches.gpus[5].switch_links = 16;
  CHECK(has(svg_of(summarise(switches)), "NVLink through switches, 16 to 18 links a GPU"));
}

TEST_CASE("a bandwidth that is known of only some pairs is not shown as that of all", "[req:2.8]") {
  topo::Machine machine = topo::two_cliques();
  CHECK(has(svg_of(summarise(machine)), "team 0: links all to all, 4 a pair, 100 GB/s one way<"));
  for (topo::Gpu& gpu : machine.gpus) gpu.link_gbps = gpu.pcie_gbps = 0;
  CHECK(has(svg_of(summarise(machine)), "team 0: links all to all, 4 a pair<"));
  machine.gpus[0].link_gbps = 200;
  CHECK(has(svg_of(summarise(machine)), "4 a pair, 100 GB/s one way where known<"));
}

TEST_CASE("very many links are not drawn one by one", "[req:2.8]") {
  topo::MachineBuilder build;
  build.numa(0, {0});
  const int root = build.host_bridge(0);
  for (int i = 0; i < 60; ++i) build.gpu(root, fmt::format("{:04x}:01:00.0", i).c_str());
  for (int a = 0; a < 60; ++a) {
    for (int b = a + 1; b < 60; ++b) {
      if ((a + b) % 3 != 0) build.pair(a, b, true, 1);
    }
  }
  const Summary summary = summarise(topo::canonical(std::move(build.machine)));
  CHECK(links_to_draw(summary).empty());
  CHECK(topo::parse_xml(svg_of(summary)).ok());
}

TEST_CASE("GPUs are called hidden only where CUDA was asked", "[req:2.8]") {
  topo::Machine machine = topo::uneven();
  const auto greys = [](const topo::Machine& one) {
    return has(svg_of(summarise(one)), "not visible");
  };
  CHECK(greys(machine));
  CHECK(has(table_of(summarise(machine)), "not visible to CUDA"));
  for (topo::Gpu& gpu : machine.gpus) gpu.ordinal = -1;  // like hwloc's files
  machine.sources.clear();
  CHECK_FALSE(greys(machine));
  CHECK_FALSE(has(table_of(summarise(machine)), "not visible to CUDA"));
  machine.sources.push_back({"CUDA", topo::SourceReport::Outcome::absent, "no driver"});
  CHECK(greys(machine));
}

TEST_CASE("sets of processors are cut to the width that is asked for, and else not at all",
          "[req:2.8]") {
  topo::Machine machine = topo::workstation();
  std::vector<int>& cpus = machine.numa[0].cpus;
  cpus.clear();
  for (int cpu = 0; cpu < 200; cpu += 2) cpus.push_back(cpu);
  const Summary summary = summarise(machine);
  const std::string all = ranges_text(cpus);
  REQUIRE(all.size() > 300);
  CHECK(has(table_of(summary, 0), all + "\n"));
  CHECK(has(table_of(summary, 500), all + "\n"));
  const std::string narrow = table_of(summary, 100);
  const std::string matrix = narrow.substr(0, narrow.find("\nGPU0  0000:"));
  CHECK_FALSE(has(matrix, all));
  CHECK(has(matrix, all.substr(0, 80)));
}
