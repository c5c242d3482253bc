// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests descriptions at and above the limits on the number of elements.
#include <chrono>
#include <ctime>
#include <string>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "support/words.hpp"
#include "topo/choice/paths.hpp"
#include "topo/choice/reach.hpp"
#include "topo/xml/hwloc_xml_reader.hpp"
#include "topo/xml/nccl_text.hpp"
#include "topo/xml/nccl_xml.hpp"

namespace oriel::topo {

using test::has;
TEST_CASE("more things than any machine has are refused in time, in both formats", "[req:2.7]") {
  // Each GPU reaches each other through switches: listing all pairs would exhaust the memory.
  std::string gpus = "<system><cpu numaid=\"0\">\n";
  std::string objects =
      "<topology version=\"2.0\"><object type=\"Machine\"><object type=\"NUMANode\" "
      "os_index=\"0\"/><object type=\"Bridge\" bridge_type=\"0-1\">\n";
  for (int i = 0; i < 60'000; ++i) {
    const std::string address = PciAddress{static_cast<std::uint32_t>(i), 1, 0, 0}.to_string();
    gpus += "<pci busid=\"" + address +
            "\"><gpu><nvlink tclass=\"0x068000\" count=\"1\"/></gpu></pci>\n";
    objects += "<object type=\"PCIDev\" pci_busid=\"" + address +
               "\" pci_type=\"0302 [10de:2335] [10de:0000] a1\"/>\n";
  }
  refused(gpus + "</cpu></system>", "there are more than 32768 PCI devices and bridges");
  const auto list = read_hwloc_xml(objects + "</object></object></topology>");
  REQUIRE_FALSE(list.ok());
  CHECK(has(list.error().to_string(), "more than 32768 PCI devices"));

  const auto some = [](const char* item, int count) {
    std::string text = "<system><cpu numaid=\"0\">\n";
    for (int i = 0; i < count; ++i) {
      text += "<pci busid=\"" + PciAddress{static_cast<std::uint32_t>(i), 1, 0, 0}.to_string() +
              "\">" + item + "</pci>\n";
    }
    return text + "</cpu></system>";
  };
  refused(some("<gpu/>", 257), "line 258: there are more than 256 GPUs");
  refused(some("<nic><net name=\"a\"/><net name=\"b\"/></nic>", 2049),
          "there are more than 4096 network ports");
  std::string nodes = "<system>\n";
  for (int i = 0; i < 1025; ++i) nodes += "<cpu numaid=\"" + std::to_string(i) + "\"/>\n";
  refused(nodes + "</system>", "there are more than 1024 NUMA nodes");
  // The highest accepted number of GPUs takes a bounded time.
  const std::string most = some("<gpu><nvlink tclass=\"0x068000\" count=\"18\"/></gpu>", 256);
  const auto begin = std::chrono::steady_clock::now();
  const auto machine = read_nccl_xml(most);
  REQUIRE(machine.ok());
  CHECK(all_paths(*machine)[3][200].kind == PathKind::nvlink);
  CHECK(reach_lists(*machine)[7].size() == 256);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  WARN("256 GPUs: " << spent.count() << " s");
  CHECK(spent.count() < 60);
}

TEST_CASE("several times the processors that there may be are refused with the line", "[req:2.7]") {
  std::string all = "ffffffff";
  for (int i = 1; i < 2048; ++i) all += ",ffffffff";
  std::string nodes = "<system>\n";
  for (int i = 0; i < 4; ++i) {
    nodes += fmt::format("<cpu numaid=\"{}\" affinity=\"{}\"/>\n", i, all);
  }
  CHECK(parse_result(nodes + "</system>") == "ok");
  refused(nodes + "<cpu numaid=\"4\" affinity=\"1\"/></system>",
          "line 6: with NUMA node 4 there are more than 262144 processors");
}

}  // namespace oriel::topo
