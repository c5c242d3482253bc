// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/xml/nccl_xml.hpp"

#include <algorithm>
#include <chrono>
#include <random>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "support/words.hpp"
#include "topo/choice/nic_choice.hpp"
#include "topo/choice/paths.hpp"
#include "topo/choice/reach.hpp"
#include "topo/machine/machines.hpp"
#include "topo/xml/hwloc_xml_reader.hpp"
#include "topo/xml/nccl_text.hpp"
#include "topo/xml/xml_values.hpp"

namespace oriel::topo {
namespace {

using test::has;

/// Composed in the style of NCCL's output for a machine with 2 GPUs behind switches.
constexpr const char* kSmall = R"(<system version="1">
  <cpu host_hash="0x1" numaid="0" affinity="00000001,0000000f" arch="x86_64">
    <pci busid="0000:16:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:18:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="ffff:ff:ff.7" count="18" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:19:00.0" class="0x020700" link_speed="16 GT/s" link_width="8">
        <nic>
          <net name="mlx5_0" dev="0" speed="400000" port="1" guid="0xb8ce" maxconn="131072"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="fffffffe,00000000">
    <pci busid="0000:98:00.0" class="0x030200" link_speed="" link_width="16">
      <gpu dev="1" sm="90"><nvlink target="ffff:ff:ff.7" count="18" tclass="0x068000"/></gpu>
    </pci>
  </cpu>
  <nic><net name="eth0" dev="1" speed="10000"/></nic>
</system>
)";

std::string with(std::string from, const std::string& to) {
  std::string text = kSmall;
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("NCCL's description of a machine is read", "[req:2.7]") {
  const Machine machine = nccl_machine(kSmall);
  REQUIRE(machine.gpus.size() == 2);
  CHECK(machine.gpus[0].pci == PciAddress{0, 0x18, 0, 0});
  CHECK(machine.gpus[0].architecture == 90);
  CHECK(machine.gpus[0].nvml_index == 0);
  CHECK(machine.gpus[0].ordinal == -1);  // only CUDA knows the ordinal, in its process
  CHECK(machine.gpus[0].switch_links == 18);
  CHECK(machine.gpus[0].pcie_gbps == Approx(504.128));
  CHECK(path_between(machine, 0, 1).gbps == 18 * 200);  // the link speed of this architecture
  CHECK(machine.gpus[1].pcie_gbps == 0);
  CHECK(machine.numa[0].cpus == std::vector<int>{0, 1, 2, 3, 32});
  CHECK(machine.numa[1].cpus.size() == 31);
  REQUIRE(machine.nics.size() == 2);
  CHECK(machine.nics[0].name == "eth0");
  CHECK(machine.nics[1].gbps == 400);
  CHECK(machine.nics[1].guid == 0xb8ce);
  CHECK(may_map(machine, 0, 1));
  CHECK(path_between(machine, 0, 1).kind == PathKind::nvlink);
  CHECK(choose_nics(machine)[0].distance == Distance::one_switch);
}

TEST_CASE("RCCL's description of a machine is read, with its xGMI links", "[req:2.7]") {
  const Machine read = nccl_machine(
      "<system version=\"2\"><cpu numaid=\"0\">"
      "<pci busid=\"0000:05:00.0\" class=\"0x038000\"><gpu dev=\"0\" gcn=\"942\">"
      "<xgmi target=\"0000:15:00.0\" count=\"1\" tclass=\"0x038000\"/></gpu></pci>"
      "<pci busid=\"0000:15:00.0\" class=\"0x038000\"><gpu dev=\"1\" gcn=\"942\">"
      "<xgmi target=\"0000:05:00.0\" count=\"1\" tclass=\"0x038000\"/></gpu></pci>"
      "</cpu></system>");
  CHECK(read.gpus[0].vendor == GpuVendor::amd);
  CHECK(path_between(read, 0, 1).kind == PathKind::nvlink);
  CHECK(path_between(read, 0, 1).hops == 1);
  CHECK(has(write_nccl_xml(read), "<xgmi target=\"0000:15:00.0\" count=\"1\""));
}

namespace {

/// Composed in the style of cloud vendors' files: placeholder bridges, and functions without <gpu>
/// or <net>.
constexpr const char* kByClass = R"(<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16" vendor="0x0000">
      <pci busid="0001:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0101:00:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
    </pci>
    <pci busid="ffff:ff:02.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0002:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0102:00:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16"><nic/></pci>
    </pci>
  </cpu>
</system>
)";

std::string pci(const std::string& attributes, const std::string& content = "") {
  return "<system><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" " + attributes + ">" + content +
         "</pci></cpu></system>";
}

std::vector<Gpu> gpus_of(const std::string& text) {
  return nccl_machine(text).gpus;
}

}  // namespace

TEST_CASE("a network card keeps its link layer, known or not, when it is written and read",
          "[req:2.7]") {
  for (const auto layer : {Nic::Layer::infiniband, Nic::Layer::ethernet, Nic::Layer::other}) {
    Machine machine = one_nic();
    machine.nics[0].layer = layer;
    for (const bool by_class : {false, true}) {
      if (by_class) machine.nics[0].name = machine.nics[0].pci->to_string();
      const std::string text = write_nccl_xml(machine);
      INFO(text);
      const Machine read = nccl_machine(text);
      REQUIRE(read.nics.size() == 1);
      CHECK(read.nics[0].layer == layer);
      const bool says_nothing = layer == Nic::Layer::other && !by_class;
      CHECK((text.find("class=\"0x02") == std::string::npos) == says_nothing);
    }
  }
}

TEST_CASE("functions that a file names by their class alone are GPUs and network cards",
          "[req:2.7]") {
  const Machine read = nccl_machine(kByClass);
  REQUIRE(read.gpus.size() == 2);
  CHECK(read.gpus[1].pci == PciAddress{2, 0, 0, 0});
  CHECK(read.gpus[1].nvml_index == -1);
  CHECK(read.gpus[1].numa == 0);
  CHECK(read.gpus[1].pcie_gbps == Approx(504.128));
  REQUIRE(read.nics.size() == 2);
  CHECK(read.nics[0].name == "0101:00:00.0");
  CHECK(read.nics[0].layer == Nic::Layer::infiniband);
  CHECK(read.nics[1].layer == Nic::Layer::ethernet);
  CHECK(read.nics[1].gbps == 0);
  CHECK(choose_nics(read)[1].primary == 0);  // all devices use one link layer
  Machine one_layer = read;
  one_layer.nics[0].layer = Nic::Layer::ethernet;
  const auto choices = choose_nics(one_layer);
  CHECK(choices[0].primary == 0);
  CHECK(choices[1].primary == 1);
  CHECK(choices[1].distance == Distance::one_switch);
  CHECK_FALSE(reach_is_known(read, 0, 1));
  // Unknown facts are not written, so that NCCL detects them itself.
  const std::string text = write_nccl_xml(read);
  INFO(text);
  CHECK_FALSE(has(text, "<gpu"));
  CHECK_FALSE(has(text, "<net"));
  CHECK(write_nccl_xml(*read_nccl_xml(text)) == text);

  CHECK(gpus_of(pci("class=\"0x030000\"")).size() == 1);
  CHECK(gpus_of(pci("class=\"0x0302\"")).size() == 1);
  CHECK(gpus_of(pci("class=\"0x040300\"")).empty());
  CHECK(gpus_of(pci("")).empty());
  CHECK(gpus_of(pci("class=\"0x030000\" vendor=\"0x1a03\"")).empty());  // a server's console
  CHECK(gpus_of(pci("class=\"0x030200\"", "<pci busid=\"0000:02:00.0\"/>")).empty());
  CHECK(gpus_of(pci("class=\"0x030200\"", "<gpu dev=\"0\"/>")).size() == 1);
  // A bridge's class does not identify a GPU.
  const Machine odd = nccl_machine(pci("class=\"0x060400\" vendor=\"0x1002\"", "<gpu/>"));
  CHECK(gpus_of(write_nccl_xml(odd)) == odd.gpus);
  CHECK(read_nccl_xml(pci("class=\"0x020700\"", "<nic><net name=\"a\"/></nic>"))->nics.size() == 1);
}

TEST_CASE("whose a GPU is does not depend on links", "[req:2.7]") {
  const auto vendor_of = [](const std::string& text) {
    const auto gpus = gpus_of(text);
    return gpus.empty() ? GpuVendor::other : gpus[0].vendor;
  };
  CHECK(vendor_of(pci("class=\"0x030200\"")) == GpuVendor::nvidia);
  CHECK(vendor_of(pci("class=\"0x038000\"")) == GpuVendor::amd);
  CHECK(vendor_of(pci("class=\"0x038000\" vendor=\"0x10de\"")) == GpuVendor::nvidia);
  CHECK(vendor_of(pci("class=\"0x030000\" vendor=\"0x1002\"")) == GpuVendor::amd);
  CHECK(vendor_of(pci("class=\"0x120000\" vendor=\"0x1002\"")) == GpuVendor::amd);
  CHECK(vendor_of(pci("class=\"0x120000\"")) == GpuVendor::other);  // accelerators may be anything
  CHECK(vendor_of(pci("class=\"0x120000\" vendor=\"0x205d\"", "<gpu/>")) == GpuVendor::other);
  CHECK(vendor_of(pci("class=\"0x120000\"", "<gpu/>")) == GpuVendor::amd);
  CHECK(vendor_of(pci("class=\"0x030200\"", "<gpu gcn=\"908\"/>")) == GpuVendor::amd);
  CHECK(vendor_of(pci("", "<gpu sm=\"90\" gcn=\"0\"/>")) == GpuVendor::nvidia);
  // In RCCL's files `sm` is the number of compute units.
  const Gpu amd =
      gpus_of(pci("vendor=\"0x1002\"", "<gpu dev=\"3\" sm=\"304\" gcn=\"gfx942\"/>"))[0];
  CHECK(amd.vendor == GpuVendor::amd);
  CHECK(amd.architecture == 0);
  CHECK(amd.nvml_index == 3);
  CHECK(amd.name == "AMD gfx942");
  // AMD's GPUs keep their vendor without links.
  for (const auto& [name, machine] : all_machines()) {
    INFO(name);
    Machine unlinked = machine;
    for (Gpu& gpu : unlinked.gpus) gpu.switch_links = 0;
    unlinked.pairs.clear();
    const Machine again = nccl_machine(write_nccl_xml(unlinked));
    CHECK(again.gpus.empty() == machine.gpus.empty());
    for (const Gpu& gpu : again.gpus) CHECK(gpu.vendor == machine.gpus[0].vendor);
  }
}

TEST_CASE("unknown facts are left out of the NCCL XML, because NCCL would believe them",
          "[req:2.7]") {
  Machine bare = uneven();
  for (Gpu& gpu : bare.gpus) gpu.ordinal = gpu.nvml_index = -1;
  bare.gpus[2].architecture = 0;
  bare.nics[0].gbps = 0;
  bare.nics[0].guid = bare.nics[0].card = 0;
  bare.numa[0].cpus.clear();
  const std::string text = write_nccl_xml(bare);
  INFO(text);
  for (const char* claim :
       {"gdr=", "rank=", "dev=\"-1\"", "sm=\"0\"", "speed=\"0\"", "guid=\"0x0\"",
        "class=\"0x000000\"", "affinity=\"00000000\"", "busid=\"\""}) {
    CHECK_FALSE(has(text, claim));
  }
  CHECK(write_nccl_xml(nccl_machine(text)) == text);
  Machine odd = cpu_only();
  odd.nics[0].name = "a<b>&\"c\n";
  CHECK(read_nccl_xml(write_nccl_xml(odd))->nics[0].name == "a<b>&\"c?");
  CHECK(has(text, "<gpu dev=\"0\" sm=\"86\">"));
  CHECK(has(text, "<net name=\"mlx5_0\" dev=\"0\" port=\"1\"/>"));
}

TEST_CASE("a few unknown elements are left out and reported, many are refused", "[req:2.7]") {
  const Machine few = nccl_machine(pci("", "<new><newer/></new>\n<pcilink/><gpu><c2c/></gpu>"));
  REQUIRE(few.sources.size() == 1);
  CHECK(few.sources[0].detail == "2 unknown elements are left out, the first <new> in line 1");
  CHECK(read_nccl_xml(kByClass)->sources.empty());
  std::string many;
  for (std::size_t i = 0; i <= UnknownElements::kMost; ++i) many += "\n<x/>";
  for (const auto& [before, after] :
       {std::pair("<gpu>", "</gpu>"), {"<nic>", "</nic>"}, {"<y>", "</y>"}, {"", ""}}) {
    refused(pci("", before + many + after), "more than 1000 unknown elements, the first <");
  }
  refused(pci("", many),
          "line 1002: <x> makes more than 1000 unknown elements, the first <x> in line 2");
  refused("<system><cpu>" + many + "</cpu></system>", "line 1002: <x>");
  const std::string hwloc =
      "<topology version=\"2.0\"><object type=\"Machine\"><object type=\"NUMANode\" "
      "os_index=\"0\"/><info name=\"a\" value=\"b\"/>";
  const auto odd = read_hwloc_xml(hwloc + "<new/></object></topology>");
  REQUIRE(odd.ok());
  CHECK(odd->report.detail.find("; 1 unknown element is left out, the first <new> in line 1") !=
        std::string::npos);
  const auto list = read_hwloc_xml(hwloc + many + "</object></topology>");
  REQUIRE_FALSE(list.ok());
  CHECK(has(list.error().to_string(), "line 1002: <x> makes more than 1000 unknown elements"));
}

TEST_CASE("text and comments in unknown elements are ignored, the elements are counted",
          "[req:2.7]") {
  const Machine machine = nccl_machine(
      "<system><cpu numaid=\"0\"><!-- why --><note>of <b>mine</b></note></cpu></system>");
  CHECK(machine.sources[0].detail.starts_with("2 unknown elements"));
}

TEST_CASE("an empty attribute is one that NCCL could not read: not known", "[req:2.7]") {
  for (const char* attribute :
       {"link_width=\"8\"", "class=\"0x020700\"", "guid=\"0xb8ce\"", "speed=\"400000\"",
        "affinity=\"fffffffe,00000000\"", "sm=\"90\"", "link_speed=\"16 GT/s\""}) {
    const std::string name(attribute, std::string(attribute).find('='));
    INFO(name);
    const auto empty = read_nccl_xml(with(attribute, name + "=\"\""));
    const auto absent = read_nccl_xml(with(attribute, ""));
    REQUIRE((empty.ok() ? "ok" : empty.error().to_string()) == "ok");
    REQUIRE(absent.ok());
    CHECK(*empty == *absent);
  }
  const Machine unknown_speed = nccl_machine(with("speed=\"400000\"", "speed=\"-1\""));
  CHECK(unknown_speed.nics[1].gbps == 0);
  CHECK(parse_result("<system><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x030200\" "
                     "vendor=\"\"><gpu/></pci></cpu></system>") == "ok");
  refused(with("busid=\"0000:18:00.0\"", "busid=\"\""), "line 4: <pci> has no busid");
  refused(with("speed=\"400000\"", "speed=\"-2\""), "line 11: <net> has speed '-2'");
}

TEST_CASE("an NCCL XML dump of several hosts yields the first host, and the report says so",
          "[req:2.2][req:2.7]") {
  const auto host = [](const char* hash, int gpus) {
    std::string text = fmt::format("<cpu host_hash=\"{}\" numaid=\"0\">\n", hash);
    for (int i = 0; i < gpus; ++i) {
      text += fmt::format(
          "<pci busid=\"0008:0{}:00.0\" class=\"0x030200\" vendor=\"0x10de\"><gpu dev=\"{}\">"
          "<nvlink count=\"18\" tclass=\"0x068000\"/></gpu></pci>\n",
          i + 1, i);
    }
    return text + "</cpu>\n";
  };
  const Machine machine = nccl_machine("<system>\n" + host("0x1", 2) + host("0x2", 4) +
                                       "<cpu host_hash=\"0x1\" numaid=\"1\"/></system>");
  CHECK(machine.gpus.size() == 2);
  CHECK(machine.numa.size() == 2);
  REQUIRE(machine.sources.size() == 1);
  CHECK(machine.sources[0].detail ==
        "the host with host_hash 0x1 is described, the first of several: 1 <cpu> of other hosts "
        "left out, the first in line 6");
  const Machine one = nccl_machine("<system>\n" + host("0x2", 4) + "</system>");
  CHECK(one.gpus.size() == 4);
  CHECK(one.sources.empty());
}

TEST_CASE("NCCL's guid is the card's: its functions are ports, each the other's backup",
          "[req:2.5]") {
  const auto card = [](const char* function, const char* guid) {
    return fmt::format(
        "<pci busid=\"0000:12:00.{}\" class=\"0x020700\"><nic><net name=\"m{}\" speed=\"200000\" "
        "port=\"1\" guid=\"{}\"/></nic></pci>\n",
        function, function, guid);
  };
  const Machine machine = nccl_machine(
      "<system><cpu numaid=\"0\"><pci busid=\"0000:11:00.0\" class=\"0x030200\" "
      "vendor=\"0x10de\"/>\n" +
      card("0", "0xabc") + card("1", "0xabc") + "</cpu></system>");
  CHECK(partners_by_place(machine) == std::vector<int>{1, 0});
  const auto choices = choose_nics(machine);
  REQUIRE(choices.size() == 1);
  CHECK(choices[0].reason ==
        "m0 is one of 2 equally near (PHB); backup m1, the other port of its card");
  // /sys gives each function its own guid; the written text is the same.
  Machine own = machine;
  own.nics[1].guid = 0xabd;
  CHECK(write_nccl_xml(own) == write_nccl_xml(machine));
}

TEST_CASE("odd descriptions are refused with line and reason", "[req:2.7]") {
  refused(with("busid=\"0000:18:00.0\" ", ""), "line 4: <pci> has no busid");
  refused(with("0000:18:00.0", "elsewhere"), "line 4: <pci> has busid 'elsewhere'");
  refused(with("numaid=\"0\"", "numaid=\"zero\""), "line 2: <cpu> has numaid 'zero'");
  // Exceeds the highest NUMA node that a rank may send.
  refused(with("numaid=\"0\"", "numaid=\"65537\""), "line 2: <cpu> has numaid '65537'");
  refused(with("00000001,0000000f", "0000000g"), "no mask of up to 65536 bits");
  refused(with("00000001,0000000f", std::string(9000, ',')), "no mask of up to 65536 bits");
  refused(with("count=\"18\"", "count=\"-1\""), "line 6: <nvlink> has count '-1'");
  refused(with("target=\"ffff:ff:ff.7\" count=\"18\" tclass=\"0x068000\"",
               "target=\"0000:18:00.0\" count=\"1\" tclass=\"0x030200\""),
          "leads from a GPU to itself");
  refused(with("name=\"mlx5_0\" ", ""), "line 11: <net> has no name");
  refused(with("version=\"1\"", "version=\"banana\""), "line 1: <system> has version 'banana'");
  for (const char* speed : {"banana", "32.0banana", "32.0 bananas"}) {
    refused(with("link_speed=\"16 GT/s\"", fmt::format("link_speed=\"{}\"", speed)),
            fmt::format("has link_speed '{}', not a number of GT/s", speed));
  }
  for (const char* speed : {"Unknown", "Unknown speed", "", "16", "16.0 GT/s PCIe"}) {
    CHECK(parse_result(with("link_speed=\"16 GT/s\"", fmt::format("link_speed=\"{}\"", speed))) ==
          "ok");
  }
  refused(with("guid=\"0xb8ce\"", "guid=\"x\""), "has guid 'x'");
  refused(with("speed=\"400000\"", "speed=\"99999999999999\""), "line 11: <net> has speed");
  refused(with("<system version=\"1\">", "<topology>"), "mismatched tag");
  refused("<topology/>", "line 1: <topology> is not NCCL's <system>");
  refused(with("<cpu numaid=\"1\"", "numaid=\"7\">\n<cpu numaid=\"1\""),
          "line 16: <system> holds the text 'numaid=\"7\">', where none belongs");
  refused(
      "<system>\n<cpu numaid=\"0\"><pci busid=\"0000:01:00.0\"><gpu>\n\nx\ny</gpu></pci></cpu>"
      "</system>",
      "line 4: <gpu> holds the text 'x', where none belongs");
  refused("<system><gpu/></system>", "<gpu> is unknown here");
  refused(
      with("class=\"0x030200\" link_speed=\"32.0", "class=\"0x030200\" class=\"1\" speed=\"32."),
      "duplicate attribute");
}

TEST_CASE("an NCCL XML that lists an object twice is refused with both lines", "[req:2.7]") {
  refused(with("numaid=\"1\"", "numaid=\"0\""),
          "line 16: NUMA node 0 is listed twice, first in line 2");
  refused(with("0000:98:00.0", "0000:18:00.0"),
          "line 17: 0000:18:00.0 is listed twice, first in line 4");
  refused(with("<nvlink target=\"ffff:ff:ff.7\"",
               "</gpu>\n<gpu dev=\"1\" sm=\"90\">\n<nvlink target=\"ffff:ff:ff.7\""),
          "line 7: GPU 1 (0000:18:00.0, no UUID) is listed twice, first in line 5");
  refused(with("name=\"eth0\"", "name=\"mlx5_0\""),
          "line 21: NIC mlx5_0:1 is listed twice, first in line 11");
  refused(with("class=\"0x060400\"", "class=\"0x030200\"><gpu/></pci><pci busid=\"0000:16:00.0\""),
          "line 3: 0000:16:00.0 is listed twice, first in line 3");
}

TEST_CASE("devices whose place on the buses is not known keep their NUMA nodes", "[req:2.7]") {
  MachineBuilder build;
  build.numa(0, {0, 1});
  build.numa(3, {4, 5});
  Machine& machine = build.machine;
  for (int i = 0; i < 4; ++i) {
    machine.gpus.push_back({.name = "sm_90",
                            .architecture = 90,
                            .pci = PciAddress{0, static_cast<std::uint8_t>(0x40 - i), 0, 0},
                            .numa = i == 3 ? -1 : i % 2,
                            .nvml_index = i,
                            .switch_links = 18,
                            .pcie_gbps = 16 * 31.508});
    machine.nics.push_back({.name = fmt::format("nic{}", i), .numa = i - 1 > 1 ? -1 : i - 1});
    if (i < 2) machine.nics[i].pci = PciAddress{0, static_cast<std::uint8_t>(0x50 + i), 0, 0};
  }
  machine = canonical(machine);
  const std::string text = write_nccl_xml(machine);
  INFO(text);
  const Machine again = nccl_machine(text);
  CHECK(again.numa.size() == 2);
  REQUIRE(again.gpus.size() == machine.gpus.size());
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    CHECK(again.gpus[i].numa == machine.gpus[i].numa);
    CHECK(again.gpus[i].pci == machine.gpus[i].pci);
    CHECK(again.gpus[i].nvml_index == machine.gpus[i].nvml_index);
    CHECK(again.gpus[i].switch_links == machine.gpus[i].switch_links);
    CHECK(again.gpus[i].pcie_gbps == Approx(machine.gpus[i].pcie_gbps).epsilon(0.001));
  }
  REQUIRE(again.nics.size() == machine.nics.size());
  for (std::size_t i = 0; i < machine.nics.size(); ++i) {
    CHECK(again.nics[i].name == machine.nics[i].name);
    CHECK(again.nics[i].numa == machine.nics[i].numa);
    CHECK(again.nics[i].pci == machine.nics[i].pci);
  }
  CHECK(write_nccl_xml(again) == text);
}

TEST_CASE("malformed, truncated, recursive and gigantic documents are refused in time",
          "[req:2.7]") {
  refused("", "no element found");
  refused("not xml", "line 1:");
  refused("<system>", "line 1: no element found");
  refused("<system>\n<cpu>\n</system>", "line 3: mismatched tag");
  refused(std::string("<system>\0</system>", 18), "not well-formed");
  for (std::size_t length = 0; length + 2 < std::string(kSmall).size(); length += 7) {
    REQUIRE(parse_result(std::string(kSmall).substr(0, length)) != "ok");
  }
  refused("<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;&a;\">]><system>&b;</system>",
          "it declares an entity");
  refused("<!DOCTYPE x [<!ENTITY a SYSTEM \"file:///etc/passwd\">]><system>&a;</system>",
          "it declares an entity");
  refused("<!DOCTYPE system [\n<!ATTLIST cpu numaid CDATA \"0\">]><system><cpu/></system>",
          "line 2: it declares attributes");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "<system>";
  refused(deep, "nested more than");
  std::string wide = "<system>";
  for (int i = 0; i < 300'000; ++i) wide += "<cpu/>";
  refused(wide + "</system>", "there are more than");
  refused(std::string(std::size_t{17} << 20, ' '), "line 1: 17825792 bytes, at most 16777216");
  refused(std::string(std::size_t{17} << 20, '\n'), "line 16777217: 17825792 bytes");
}

}  // namespace oriel::topo
