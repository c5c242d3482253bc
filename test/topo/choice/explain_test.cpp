// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests the explanation of the path between two GPUs.
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "support/words.hpp"
#include "topo/choice/paths.hpp"
#include "topo/machine/fixture.hpp"
#include "topo/machine/machines.hpp"

namespace oriel::topo {

using test::has;

TEST_CASE("a path is explained in words, with what would be faster", "[req:2.8]") {
  CHECK(explain_path(hgx_8(), 0, 1) ==
        "GPU 0 (0000:12:00.0) reaches the memory of GPU 1 (0000:16:00.0) by NVLink, 478 GB/s one "
        "way. Both are linked to the same switches, with 18 and 18 links. No pair of this machine "
        "has "
        "a faster path. Atomics work over it natively.");
  CHECK(has(explain_path(two_cliques(), 0, 1), "4 links join the two directly."));
  CHECK(has(explain_path(two_cliques(), 0, 4), "The driver refuses"));
  CHECK(has(explain_path(two_cliques(), 0, 4), "crosses the link between processors"));
  CHECK(has(explain_path(workstation(), 0, 1), "an NVLink bridge would be faster still"));
  CHECK(has(explain_path(mig(), 0, 1), "Without MIG these would be one GPU."));
  CHECK(has(explain_path(amd_partial_mesh(), 0, 2), "the way has 2 hops"));
  CHECK(has(explain_path(amd_partial_mesh(), 0, 1), "by xGMI, "));
  Machine apart = workstation();
  for (Gpu& gpu : apart.gpus) gpu.vendor = GpuVendor::amd;
  CHECK(has(explain_path(apart, 0, 1), "No xGMI joins them"));
  CHECK(has(explain_path(apart, 0, 1), "an xGMI bridge would be faster still"));
  CHECK_FALSE(has(explain_path(amd_partial_mesh(), 0, 2), "fastest"));
  // The bandwidth of links between partitions of two different GPUs is unknown.
  const Machine parts = load_fixture("amd-partitions");
  CHECK(
      has(explain_path(parts, 0, 1), "by xGMI, 819 GB/s one way. 1 link joins the two directly."));
  CHECK(has(explain_path(parts, 0, 2),
            "of unknown bandwidth. 1 link joins the two directly. Whether"));
  CHECK(has(explain_path(uneven(), 1, 2), "The driver refuses"));
  CHECK(has(explain_path(uneven(), 2, 1), "by PCIe peer"));
  CHECK(has(explain_path(hgx_8(), 2, 2), "is one device"));
  Machine hgx = hgx_8();
  hgx.gpus[7].switch_links = 9;
  CHECK(has(explain_path(hgx, 0, 7), "GPU 0 and GPU 1 have a faster one, 478 GB/s one way."));
  CHECK_FALSE(has(explain_path(hgx, 0, 7), "No pair"));
  for (Gpu& gpu : hgx.gpus) gpu.link_gbps = 0;
  CHECK(has(explain_path(hgx, 7, 0), "GPU 0 and GPU 1 have a faster one, 18 links."));
  Machine cliques = two_cliques();  // one pair has fewer links than the others
  for (GpuPair& pair : cliques.pairs) {
    if (pair.from + pair.to == 1) pair.links = 1;
  }
  CHECK(has(explain_path(cliques, 0, 1),
            "1 link joins the two directly. GPU 0 and GPU 2 have a faster"));
  CHECK(has(explain_path(cliques, 2, 3), "No pair of this machine has a faster path."));
}

namespace {

/// Two GPUs below one switch, and a third at a root port of its own.
Machine three_on_pcie() {
  MachineBuilder build;
  const int root = build.host_bridge(build.numa(0, {0}));
  const int upper = build.bridge(build.bridge(root, "0000:01:00.0", 500), "0000:02:00.0", 500);
  build.gpu(build.bridge(upper, "0000:03:00.0", 500), "0000:04:00.0");
  build.gpu(build.bridge(upper, "0000:03:01.0", 500), "0000:05:00.0");
  build.gpu(build.bridge(root, "0000:01:01.0", 500), "0000:06:00.0");
  for (const auto& [a, b] : {std::pair(0, 1), {0, 2}, {1, 2}}) build.pair(a, b, true);
  for (PciNode& node : build.machine.pci) {
    if (node.kind == PciNode::Kind::host_bridge) continue;
    node.lanes = node.lanes_now = 16;
    node.link_now_gbps = 500;
  }
  return canonical(std::move(build.machine));
}

PciNode& node_with(Machine& machine, const char* address) {
  const int place = find_pci_node(machine, parse_pci_address(address).value());
  REQUIRE(place >= 0);
  return machine.pci[static_cast<std::size_t>(place)];
}

}  // namespace

TEST_CASE("a PCIe link that is slow or narrow for its two ends is named where it matters",
          "[req:2.8]") {
  const Machine sound = three_on_pcie();
  CHECK_FALSE(has(explain_path(sound, 0, 2), "lanes"));
  CHECK_FALSE(has(explain_path(sound, 0, 2), "Idle"));
  CHECK_FALSE(has(explain_path(sound, 0, 2), "narrow"));

  Machine narrow = sound;
  node_with(narrow, "0000:05:00.0").lanes_now = 8;  // both ends of a link report its width
  node_with(narrow, "0000:03:01.0").lanes_now = 8;
  CHECK(has(explain_path(narrow, 0, 1), "The PCIe link of GPU 1 uses 8 of its 16 lanes: "));
  CHECK(has(explain_path(narrow, 1, 0), "The PCIe link of GPU 1 uses 8 of its 16 lanes: "));
  CHECK_FALSE(has(explain_path(narrow, 0, 1), "switch 0000"));
  CHECK_FALSE(has(explain_path(narrow, 0, 2), "lanes"));

  Machine slow = sound;
  slow.gpus[0].pcie_now_gbps = 32;
  CHECK(has(explain_path(slow, 0, 2), "The PCIe link of GPU 0 carries 32 Gbit/s now, 500 at most"));
  CHECK_FALSE(has(explain_path(slow, 1, 2), "Idle"));

  Machine above = sound;
  node_with(above, "0000:02:00.0").lanes_now = 4;
  node_with(above, "0000:01:00.0").lanes_now = 4;
  CHECK(
      has(explain_path(above, 0, 2), "The PCIe link of the switch 0000:02:00.0 uses 4 of its 16"));
  CHECK_FALSE(has(explain_path(above, 0, 2), "0000:01:00.0"));
  CHECK_FALSE(has(explain_path(above, 0, 1), "lanes"));  // the route ends below the link

  Machine bottleneck = sound;
  node_with(bottleneck, "0000:02:00.0").link_gbps = 250;
  CHECK(
      has(explain_path(bottleneck, 0, 2), "narrowest link, 250 Gbit/s, where the GPUs have 500."));
  Machine unlike = sound;
  unlike.gpus[2].pcie_gbps = 125;
  CHECK(
      has(explain_path(unlike, 0, 2), "link of GPU 2 is the narrower one, 125 Gbit/s against 500"));

  Machine refused = narrow;  // data staged in host memory passes these links as well
  for (GpuPair& pair : refused.pairs) pair.maps = false;
  CHECK(has(explain_path(refused, 0, 1), "GPU 1 uses 8 of its 16 lanes"));
  Machine linked = narrow;  // data over NVLink does not
  for (GpuPair& pair : linked.pairs) pair.links = 4;
  CHECK_FALSE(has(explain_path(linked, 0, 1), "lanes"));
}

TEST_CASE("explain_path names unknown or one-way mapping, and a remedy where there is one",
          "[req:2.8]") {
  Machine unknown = three_on_pcie();
  unknown.pairs.clear();
  CHECK(has(explain_path(unknown, 0, 1), "by host memory at least, "));
  CHECK(has(explain_path(unknown, 0, 1), "or let CUDA see both (CUDA_VISIBLE_DEVICES)"));
  for (Gpu& gpu : unknown.gpus) gpu.vendor = GpuVendor::amd;
  CHECK(has(explain_path(unknown, 0, 1), "load AMD's compute driver"));
  CHECK_FALSE(has(explain_path(unknown, 0, 1), "CUDA_VISIBLE_DEVICES"));

  Machine parts = three_on_pcie();
  parts.gpus[1].mig_instance = 0;
  for (GpuPair& pair : parts.pairs) pair.maps = false;
  CHECK(
      has(explain_path(parts, 0, 1), "Without MIG the GPUs could, if the driver gives them peer"));

  Machine one_way = three_on_pcie();
  for (GpuPair& pair : one_way.pairs) pair.maps = pair.from != 0;
  for (const auto& [from, to] : {std::pair(0, 1), {1, 0}}) {
    CHECK(has(explain_path(one_way, from, to),
              "one way only: GPU 1 maps the memory of GPU 0, not the other way round"));
  }
  CHECK_FALSE(has(explain_path(one_way, 1, 2), "holds one way"));
}

}  // namespace oriel::topo
