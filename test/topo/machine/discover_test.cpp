// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/machine/discover.hpp"

#include <algorithm>

#include <catch2/catch.hpp>

#include "support/words.hpp"
#include "topo/choice/nic_choice.hpp"
#include "topo/choice/paths.hpp"
#include "topo/choice/reach.hpp"
#include "topo/machine/fixture.hpp"
#include "topo/machine/machines.hpp"
#include "topo/sources/fake_nvml.hpp"
#include "topo/sources/hwloc_reader.hpp"
#include "topo/sources/sys_tree.hpp"
#include "topo/sources/temporary_tree.hpp"
#include "topo/xml/nccl_text.hpp"

namespace oriel::topo {
namespace {

using test::has;

using Outcome = SourceReport::Outcome;

/// Returns true if hwloc is installed; otherwise warns that the test is skipped.
bool have_hwloc() {
  if (hwloc_library().missing.empty()) return true;
  WARN("skipped: " << hwloc_library().missing);
  return false;
}

const SourceReport& report_of(const Machine& machine, const std::string& source) {
  const auto found =
      std::find_if(machine.sources.begin(), machine.sources.end(),
                   [&](const SourceReport& one) { return one.source.starts_with(source); });
  REQUIRE(found != machine.sources.end());
  return *found;
}

/// Backs `model_distances`, the model's answer about the distances between NUMA nodes.
std::vector<hwloc_obj> distance_objects;
std::vector<hwloc_obj_t> distance_places;
std::vector<hwloc_uint64_t> distance_values;
hwloc_distances_s model_distances{};

HwlocList list_with_distances(const std::vector<unsigned>& nodes,
                              std::vector<hwloc_uint64_t> values) {
  distance_objects.assign(nodes.size(), hwloc_obj{});
  distance_places.clear();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    distance_objects[i].os_index = nodes[i];
    distance_places.push_back(&distance_objects[i]);
  }
  distance_values = std::move(values);
  model_distances.nbobjs = static_cast<unsigned>(nodes.size());
  model_distances.objs = distance_places.data();
  model_distances.values = distance_values.data();
  HwlocLibrary library = hwloc_library();
  library.table.hwloc_distances_get_by_type = [](hwloc_topology_t, hwloc_obj_type_t,
                                                 unsigned* count, hwloc_distances_s** found,
                                                 unsigned long, unsigned long) {
    *count = 1;
    *found = &model_distances;
    return 0;
  };
  library.table.hwloc_distances_release = [](hwloc_topology_t, hwloc_distances_s*) {};
  return read_hwloc(library, fixture_text("hgx-8", "hwloc.xml"));
}

/// Runs discovery on the files of a tree, and on a description in hwloc's format if it is given.
Machine found_in(const std::string& root, const NvmlLibrary& nvml,
                 const std::string& hwloc_xml = "", const HwlocLibrary& hwloc = hwloc_library()) {
  const auto found = discover({.root = root, .hwloc_xml = hwloc_xml}, hwloc, nvml);
  REQUIRE((found.ok() ? "ok" : found.error().to_string()) == "ok");
  return *found;
}

}  // namespace

TEST_CASE("malformed distances of hwloc are ignored, and do not count as nearest", "[req:2.1]") {
  if (!have_hwloc()) return;
  const HwlocList whole = list_with_distances({1, 0}, {10, 21, 32, 11});
  REQUIRE(whole.numa.size() == 2);
  CHECK(whole.numa[0].distances == std::vector<int>{11, 32});
  CHECK(whole.numa[1].distances == std::vector<int>{21, 10});
  for (const HwlocList& odd :
       {list_with_distances({0, 7}, {10, 21, 32, 11}),
        list_with_distances({0, 0}, {10, 21, 32, 11}), list_with_distances({0, 1}, {10, 0, 32, 11}),
        list_with_distances({0, 1}, {10, 1ULL << 40, 32, 11})}) {
    CHECK(odd.numa[0].distances.empty());
    CHECK(odd.numa[1].distances.empty());
  }
}

TEST_CASE("a machine that no source describes is reported as such", "[req:2.2]") {
  const TemporaryTree empty;
  NvmlLibrary no_nvml{};
  no_nvml.missing = "there is no NVML";
  const Machine found = found_in(empty.root(), no_nvml);
  CHECK(found.gpus.empty());
  CHECK(found.nics.empty());
  CHECK(found.numa.empty());
  CHECK(report_of(found, "hwloc").outcome == Outcome::skipped);
  CHECK(report_of(found, "NVML").outcome == Outcome::absent);
  CHECK(report_of(found, "/sys/class/kfd").outcome == Outcome::absent);
  CHECK(report_of(found, "/sys/class/infiniband").outcome == Outcome::absent);
  CHECK(report_of(found, "/sys/devices/system/node").outcome == Outcome::absent);
  CHECK(report_of(found, "/sys/bus/pci").outcome == Outcome::absent);
  CHECK(found.sources.size() == 6);
}

TEST_CASE("without hwloc the buses, and what is written of them, come from the kernel",
          "[req:2.1][req:2.7]") {
  SysTree tree;
  tree.gpu("0000:02:00.0", 0, "00");
  tree.gpu("0000:82:00.0", 1, "80");
  tree.device("0000:83:00.0", "0x020700", 1, "80", "0x15b3");
  tree.link("/sys/class/infiniband/mlx5_0/device", "../../../bus/pci/devices/0000:83:00.0");
  tree.file("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  tree.file("/sys/bus/pci/devices/0000:82:00.0/max_link_speed", "32.0 GT/s PCIe");
  tree.file("/sys/bus/pci/devices/0000:82:00.0/max_link_width", "16");
  tree.file("/sys/bus/pci/devices/0000:80:01.0/max_link_speed", "32.0 GT/s PCIe");
  tree.file("/sys/bus/pci/devices/0000:80:01.0/max_link_width", "8");
  tree.file("/sys/bus/pci/devices/0000:82:00.0/current_link_speed", "2.5 GT/s PCIe");
  tree.file("/sys/bus/pci/devices/0000:82:00.0/current_link_width", "4");
  HwlocLibrary no_hwloc{};
  no_hwloc.missing = "there is no hwloc 2";
  FakeNvml fake;
  for (const char* pci : {"0000:02:00.0", "0000:82:00.0"}) {
    fake.devices.push_back({pci, std::string("GPU-") + pci});
    fake.devices.back().links.resize(18);
    fake.devices.back().pcie_generation = 1;  // idle
  }
  const Machine found = found_in(tree.root(), fake.library(), "", no_hwloc);
  CHECK(report_of(found, "/sys/bus/pci").outcome == Outcome::used);
  REQUIRE(found.gpus.size() == 2);
  REQUIRE(found.nics.size() == 1);
  CHECK(found.gpus[1].node >= 0);
  CHECK(choose_nics(found)[1].distance == Distance::one_switch);
  // The maximum that both ends of the link support; the link is slower at this moment.
  CHECK(found.gpus[1].pcie_gbps == Approx(8 * 31.508));
  CHECK(found.gpus[1].pcie_now_gbps == Approx(16 * 2));
  CHECK(found.gpus[0].pcie_gbps == found.gpus[0].pcie_now_gbps);
  const PciNode& link = found.pci[static_cast<std::size_t>(found.gpus[1].node)];
  CHECK(link.link_gbps == Approx(8 * 31.508));
  CHECK(link.link_now_gbps == Approx(4 * 2));
  CHECK(link.lanes == 8);  // the bridge supports no more
  CHECK(link.lanes_now == 4);
  CHECK(found.pci[static_cast<std::size_t>(found.gpus[0].node)].lanes == 0);

  const std::string text = write_nccl_xml(found);
  INFO(text);
  const Machine again = nccl_machine(text);
  REQUIRE(again.gpus.size() == 2);
  CHECK(again.gpus[1].numa == 1);
  CHECK(again.gpus[1].pcie_gbps == Approx(found.gpus[1].pcie_gbps).epsilon(0.001));
  CHECK(choose_nics(again) == choose_nics(found));
}

TEST_CASE("where the kernel lists no RDMA NIC, those that hwloc has found count", "[req:2.1]") {
  const TemporaryTree tree;
  const std::string description =
      "<topology version=\"2.0\"><object type=\"Machine\"><object type=\"NUMANode\" "
      "os_index=\"0\"/><object type=\"Bridge\" bridge_type=\"0-1\"><object type=\"PCIDev\" "
      "pci_busid=\"0000:02:00.0\"><object type=\"OSDev\" name=\"mlx5_0\" osdev_type=\"3\">"
      "<info name=\"Port1State\" value=\"4\"/></object></object></object></object></topology>";
  FakeNvml fake;
  const Machine theirs = found_in(tree.root(), fake.library(), description);
  REQUIRE(theirs.nics.size() == 1);
  CHECK(theirs.nics[0].active);
  CHECK(theirs.nics[0].node >= 0);
  CHECK(report_of(theirs, "/sys/class/infiniband").detail.ends_with("hwloc has 1 port"));
  tree.file("/sys/class/infiniband/mlx5_9/ports/1/state", "4: ACTIVE");
  const Machine ours = found_in(tree.root(), fake.library(), description);
  REQUIRE(ours.nics.size() == 1);
  CHECK(ours.nics[0].name == "mlx5_9");
}

TEST_CASE("GPUs that the process cannot see, and that have no driver, are listed all the same",
          "[req:2.2]") {
  if (!have_hwloc()) return;
  const Machine machine = workstation();
  FakeNvml fake;
  fake.devices = {{.pci = machine.gpus[0].pci->to_string(), .uuid = machine.gpus[0].uuid}};
  const TemporaryTree tree;
  const Machine found =
      found_in(tree.root(), fake.library(), fixture_text("workstation", "hwloc.xml"));
  REQUIRE(found.gpus.size() == 2);
  CHECK(found.gpus[0].uuid == machine.gpus[0].uuid);
  CHECK(found.gpus[0].ordinal == -1);
  CHECK(found.gpus[1].uuid.empty());
  CHECK(found.gpus[1].name == "PCI device 10de:2335");
  CHECK_FALSE(may_map(found, 0, 1));
}

TEST_CASE("a description in hwloc's format that is none is refused with the reason", "[req:2.7]") {
  DiscoverOptions options;
  const auto said = [&](const std::string& text) {
    options.hwloc_xml = text;
    const auto found = discover(options);
    return found.ok() ? std::string("ok") : found.error().to_string();
  };
  CHECK(has(said("<topology"), "line 1: "));
  CHECK(has(said("<system/>"), "is not hwloc's <topology>"));
  CHECK(has(said("<topology version=\"2.0\"></topology>"), "describes no NUMA node"));
}

TEST_CASE("this machine can be described, whatever it is", "[req:2.1]") {
  const auto found = discover();
  REQUIRE((found.ok() ? "ok" : found.error().to_string()) == "ok");
  for (const SourceReport& one : found->sources) {
    WARN(one.source << ": " << name_of(one.outcome) << ", " << one.detail);
  }
  CHECK(canonical(*found) == *found);
}

}  // namespace oriel::topo
