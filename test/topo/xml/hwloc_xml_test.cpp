// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "support/words.hpp"
#include "topo/machine/fixture.hpp"
#include "topo/machine/machines.hpp"
#include "topo/sources/hwloc_reader.hpp"
#include "topo/xml/hwloc_xml_reader.hpp"

namespace oriel::topo {
namespace {

using test::has;

/// Composed in the style of lstopo 2.
constexpr const char* kHwlocSmall = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000005" gp_index="1">
    <object type="Package" os_index="3" cpuset="0x00000003" nodeset="0x00000001" gp_index="2">
      <object type="NUMANode" os_index="0" cpuset="0x00000003" nodeset="0x00000001" gp_index="3" local_memory="4096"/>
      <object type="PU" os_index="0" cpuset="0x00000001" nodeset="0x00000001" gp_index="4"/>
      <object type="Bridge" gp_index="5" bridge_type="0-1" depth="0" bridge_pci="0000:[00-03]">
        <object type="Bridge" gp_index="6" bridge_type="1-1" pci_busid="0000:00:01.0" pci_type="0604 [1000:c030] [0000:0000] a0" pci_link_speed="31.5">
          <object type="PCIDev" gp_index="7" pci_busid="0000:01:00.0" pci_type="1200 [1002:74a1] [1002:74a1] 00" pci_link_speed="63.015">
            <object type="OSDev" name="rsmi0" osdev_type="5"><info name="GPUModel" value="AMD Instinct MI300X"/></object>
          </object>
        </object>
        <object type="PCIDev" gp_index="8" pci_busid="0000:02:00.0" pci_type="0207 [15b3:1021] [15b3:0000] 00" pci_link_speed="31.5">
          <object type="OSDev" name="mlx5_0" osdev_type="3">
            <info name="NodeGUID" value="b8ce:f603:00e1:2d34"/>
            <info name="SysImageGUID" value="b8ce:f603:00e1:2d30"/>
            <info name="Port1State" value="4"/>
            <info name="Port2State" value="1"/>
          </object>
          <object type="OSDev" name="ib0" osdev_type="2"/>
        </object>
      </object>
    </object>
    <object type="Group" cpuset="0x0000000c" nodeset="0x00000004" gp_index="9">
      <object type="NUMANode" os_index="2" cpuset="0x0000000c" nodeset="0x00000004" gp_index="10"/>
    </object>
    <object type="PCIDev" gp_index="11" pci_busid="0000:81:00.0" pci_type="0300 [10de:2335] [0000:0000] a1"/>
  </object>
  <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">
    <indexes length="4">2 0 </indexes>
    <u64values length="12">10 21 </u64values>
    <u64values length="12">32 11 </u64values>
  </distances2>
  <distances2 type="OSDev" nbobjs="9" kind="9" indexing="gp"><indexes>x</indexes></distances2>
  <support name="custom.exported_support"/>
</topology>
)";

std::string hwloc_result(const std::string& text) {
  const auto list = read_hwloc_xml(text);
  return list.ok() ? "ok" : list.error().to_string();
}

/// Checks that kHwlocSmall with one piece replaced is refused with these words.
void refused(const std::string& from, const std::string& to, const std::string& words) {
  std::string text = kHwlocSmall;
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  const std::string said = hwloc_result(text.replace(at, from.size(), to));
  INFO(from << " -> " << to << ": " << said);
  CHECK(has(said, words));
}

}  // namespace

TEST_CASE("hwloc's description of a machine is read without hwloc", "[req:2.7]") {
  const auto list = read_hwloc_xml(kHwlocSmall);
  REQUIRE((list.ok() ? "ok" : list.error().to_string()) == "ok");
  REQUIRE(list->numa.size() == 2);
  CHECK(list->numa[0].package == 3);
  CHECK(list->numa[0].memory_bytes == 4096);
  CHECK(list->numa[0].distances == std::vector<int>{11, 32});
  CHECK(list->numa[1].os_index == 2);  // after a gap in the numbering
  CHECK(list->numa[1].package == -1);
  CHECK(list->numa[1].cpus == std::vector<int>{2, 3});
  CHECK(list->numa[1].distances == std::vector<int>{21, 10});
  REQUIRE(list->pci.size() == 6);  // includes a host bridge added for the last device
  CHECK(list->pci[4].kind == PciNode::Kind::host_bridge);
  CHECK(list->pci[4].numa == -1);
  CHECK(list->pci[1].link_gbps == Approx(252));
  REQUIRE(list->gpus.size() == 2);
  CHECK(list->gpus[0].vendor == GpuVendor::amd);
  CHECK(list->gpus[0].name == "AMD Instinct MI300X");
  CHECK(list->gpus[0].numa == 0);
  CHECK(list->gpus[1].name == "PCI device 10de:2335");
  CHECK(list->gpus[1].numa == -1);
  REQUIRE(list->nics.size() == 2);
  CHECK(list->nics[0].name == "mlx5_0");
  CHECK(list->nics[0].active);
  CHECK(list->nics[0].guid == 0xb8cef60300e12d34);
  CHECK(list->nics[0].card == 0xb8cef60300e12d30);
  CHECK(list->nics[1].port == 2);
  CHECK_FALSE(list->nics[1].active);
  CHECK(list->report.detail == "2 NUMA nodes, 6 PCI devices and bridges");
}

TEST_CASE("hwloc's first format, in which nodes hold packages or are absent", "[req:2.7]") {
  const auto list = read_hwloc_xml(
      "<topology><object type=\"Machine\" cpuset=\"0x3\">"
      "<object type=\"NUMANode\" os_index=\"1\" cpuset=\"0x3\" nodeset=\"0x2\" local_memory=\"9\">"
      "<object type=\"Socket\" os_index=\"4\"/></object></object></topology>");
  REQUIRE(list.ok());
  REQUIRE(list->numa.size() == 1);
  CHECK(list->numa[0].package == 4);
  const auto flat = read_hwloc_xml(
      "<topology version=\"1.11\"><object type=\"Machine\" cpuset=\"0x80000000,,0x3\">"
      "<object type=\"Bridge\" bridge_type=\"0-1\"><object type=\"PCIDev\" "
      "pci_busid=\"0000:01:00.0\"/></object></object></topology>");
  REQUIRE(flat.ok());
  REQUIRE(flat->numa.size() == 1);
  CHECK(flat->numa[0].cpus == std::vector<int>{0, 1, 95});
  CHECK(flat->pci[1].numa == 0);
}

TEST_CASE("odd descriptions in hwloc's format are refused with line and reason", "[req:2.7]") {
  CHECK(hwloc_result(kHwlocSmall) == "ok");
  refused("<topology version=\"2.0\">", "<topology version=\"3.0\">",
          "line 3: <topology> has version '3.0'; known are 1 and 2");
  refused("os_index=\"2\" cpuset", "os_index=\"-2\" cpuset", "line 26: <object> has os_index '-2'");
  refused("os_index=\"2\" cpuset", "cpuset",
          "line 26: <object> is a NUMA node without an os_index");
  refused("cpuset=\"0x00000003\" nodeset=\"0x00000001\" gp_index=\"3\"", "cpuset=\"0xf...f\"",
          "line 6: <object> has cpuset '0xf...f', which is no mask");
  refused("nodeset=\"0x00000001\" gp_index=\"2\"", "nodeset=\"\"", "has nodeset ''");
  refused("local_memory=\"4096\"", "local_memory=\"4 KiB\"", "line 6: <object> has local_memory");
  refused("bridge_type=\"1-1\"", "bridge_type=\"1-0\"", "line 9: <object> is a bridge whose");
  refused("bridge_type=\"1-1\"", "bridge_type=\"0-1\"", "host bridge below another bridge");
  refused("0000:01:00.0", "0000:01:20.0", "line 10: <object> has pci_busid '0000:01:20.0'");
  refused("63.015", "nan", "has pci_link_speed 'nan'");
  refused("63.015", "-1", "has pci_link_speed '-1'");
  refused("1200 [1002:74a1]", "1200 74a1", "line 10: <object> has pci_type");
  refused("74a1] 00\"", "74a1] 00x\"",
          "line 10: <object> has pci_type '1200 [1002:74a1] [1002:74a1");
  refused("osdev_type=\"5\"", "", "line 11: <object> is a device of the system without");
  refused("<object type=\"OSDev\" name=\"rsmi0\" osdev_type=\"5\">",
          "<object type=\"PCIDev\" pci_busid=\"junk\">", "line 11: <object> is below a PCI device");
  refused("b8ce:f603:00e1:2d34", "banana", "line 16: <info> has the NodeGUID 'banana'");
  refused("b8ce:f603:00e1:2d30", "", "line 17: <info> has the SysImageGUID ''");
  refused("Port1State\" value=\"4\"", "Port1State\" value=\"banana\"",
          "line 18: <info> has the Port1State 'banana'");
  refused("kind=\"5\"", "kind=\"banana\"", "line 30: <distances2> has kind 'banana'");
  refused("kind=\"5\" name=\"NUMALatency\" indexing=\"os\">\n    <indexes length=\"4\">2",
          "kind=\"9\">\n    <indexes>zz", "line 31: <indexes> holds 'zz'");
  refused("length=\"4\">2 0 ", "length=\"4\">2 x ", "line 31: <indexes> holds 'x'");
  refused("length=\"4\">2 0 ", "length=\"4\">2 0 3 ", "has 3 nodes and 4 values, for 2 NUMA nodes");
  refused("length=\"4\">2 0 ", "length=\"4\">2 2 ",
          "line 30: <distances2> names a NUMA node twice");
  refused("length=\"4\">2 0 ", "length=\"4\">2 1 ", "has distance 21 between nodes 2 and 1");
  refused("10 21", "10 99999999999", "has distance 99999999999");
  refused("10 21", "10 0", "line 30: <distances2> has distance 0 between nodes 2 and 0");
  refused("gp_index=\"9\">", "gp_index=\"9\">\nstray ",
          "line 26: <object> holds the text 'stray', where none belongs");
  refused("osdev_type=\"5\">", "osdev_type=\"5\">>", "line 11: <object> holds the text '>'");
  CHECK(
      hwloc_result("<system/>").starts_with("line 1: <system> is not hwloc's <topology>; hint: "));
  CHECK(hwloc_result("<topology version=\"2.0\">").find("line 1: no element found") == 0);
  CHECK(has(hwloc_result("<topology version=\"2.0\"><object type=\"Machine\"/></topology>"),
            "describes no NUMA node"));
  const std::string whole = kHwlocSmall;
  for (std::size_t length = 0; length + 12 < whole.size(); length += 7) {
    REQUIRE(hwloc_result(whole.substr(0, length)) != "ok");
  }
  std::string deep = "<topology version=\"2.0\">";
  for (int i = 0; i < 100'000; ++i) deep += "<object type=\"Group\">";
  CHECK(has(hwloc_result(deep), "nested more than"));
}

TEST_CASE("an hwloc XML that lists an object twice is refused with both lines", "[req:2.7]") {
  refused("os_index=\"2\" cpuset", "os_index=\"0\" cpuset",
          "line 26: NUMA node 0 is listed twice, first in line 6");
  refused("0000:81:00.0", "0000:01:00.0",
          "line 28: 0000:01:00.0 is listed twice, first in line 10");
  refused("</object>\n          <object type=\"OSDev\" name=\"ib0\" osdev_type=\"2\"/>",
          "</object>\n<object type=\"OSDev\" name=\"mlx5_0\" osdev_type=\"3\">"
          "<info name=\"Port1State\" value=\"4\"/></object>",
          "line 21: NIC mlx5_0:1 is listed twice, first in line 15");
}

TEST_CASE("distances in hwloc's first format are multiples of a base", "[req:2.7]") {
  const auto with = [](const std::string& distances) {
    return "<topology><object type=\"Machine\" cpuset=\"0x3\">" + distances +
           "<object type=\"NUMANode\" os_index=\"0\"/><object type=\"NUMANode\" os_index=\"1\"/>"
           "</object></topology>";
  };
  const auto list = read_hwloc_xml(
      with("<distances nbobjs=\"2\" relative_depth=\"1\" latency_base=\"10.000000\">"
           "<latency value=\"1.000000\"/><latency value=\"2.100000\"/>"
           "<latency value=\"3.200000\"/><latency value=\"1.000000\"/></distances>"));
  REQUIRE((list.ok() ? "ok" : list.error().to_string()) == "ok");
  CHECK(list->numa[0].distances == std::vector<int>{10, 21});
  CHECK(list->numa[1].distances == std::vector<int>{32, 10});
  for (const auto& [values, words] : {std::pair("", "<distances> has 0 values, for 2 NUMA nodes"),
                                      {"<latency value=\"-1\"/>", "<latency> holds no distance"},
                                      {"<latency value=\"0\"/>", "<latency> holds no distance"}}) {
    const auto base =
        with(fmt::format("<distances nbobjs=\"2\" latency_base=\"10\">{}</distances>", values));
    CHECK(hwloc_result(base).starts_with(std::string("line 1: ") + words));
  }
  CHECK(hwloc_result(with("<distances nbobjs=\"4\" latency_base=\"10\"/>")) == "ok");  // others
}

TEST_CASE("the built-in reader of hwloc XML gives the same machine as libhwloc", "[req:2.7]") {
  if (!hwloc_library().missing.empty()) {
    WARN("skipped: " << hwloc_library().missing);
    return;
  }
  for (const std::string& name : fixture_names()) {
    INFO(name);
    const std::string text = fixture_text(name, "hwloc.xml");
    const HwlocList theirs = read_hwloc(hwloc_library(), text);
    REQUIRE(theirs.report.outcome == SourceReport::Outcome::used);
    const auto ours = read_hwloc_xml(text);
    REQUIRE((ours.ok() ? "ok" : ours.error().to_string()) == "ok");
    CHECK(ours->numa == theirs.numa);
    // hwloc omits uninteresting PCI devices of a captured machine.
    const bool whole = !name.starts_with("captured-");
    const auto machine_of = [&](const HwlocList& list) {
      Machine found;
      found.numa = list.numa;
      if (whole) found.pci = list.pci;
      for (PciNode& node : found.pci) node.link_gbps = static_cast<float>(node.link_gbps);
      found.gpus = list.gpus;
      found.nics = list.nics;
      for (Gpu& gpu : found.gpus) {
        gpu.pcie_gbps = static_cast<float>(gpu.pcie_gbps);
        if (!whole) gpu.node = -1;
      }
      return canonical(std::move(found));
    };
    CHECK(machine_of(*ours) == machine_of(theirs));
  }
}

}  // namespace oriel::topo
