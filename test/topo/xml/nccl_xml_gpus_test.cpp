// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests GPUs, their numbers and their links in NCCL's description of a machine.
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "support/words.hpp"
#include "topo/choice/paths.hpp"
#include "topo/choice/reach.hpp"
#include "topo/xml/nccl_text.hpp"
#include "topo/xml/nccl_xml.hpp"

namespace oriel::topo {
namespace {

using test::has;

constexpr const char* kSwitches =
    "<nvlink target=\"ffff:ff:ff.7\" count=\"18\" tclass=\"0x068000\"/>";

/// Describes two GPUs, 0000:10:00.0 and 0000:11:00.0, with these attributes and links.
std::string two_gpus(const std::string& first, const std::string& second,
                     const std::string& links_of_first = kSwitches,
                     const std::string& links_of_second = kSwitches,
                     const std::string& attributes_of_pci = "") {
  return fmt::format(
      "<system version=\"1\">\n<cpu numaid=\"0\" affinity=\"ff\">\n"
      "<pci busid=\"0000:10:00.0\" class=\"0x030200\"{4}><gpu {0}>{2}</gpu></pci>\n"
      "<pci busid=\"0000:11:00.0\" class=\"0x030200\"{4}><gpu {1}>{3}</gpu></pci>\n"
      "</cpu></system>",
      first, second, links_of_first, links_of_second, attributes_of_pci);
}

std::string link_to(const char* target, int count, const char* kind) {
  return fmt::format("<nvlink target=\"{}\" count=\"{}\" tclass=\"{}\"/>", target, count, kind);
}

}  // namespace

TEST_CASE("dev is NVML's index: no identity, no ordinal of CUDA's, and unique where written",
          "[req:2.7]") {
  // If containers hide all GPUs but one, each process numbers its own GPU 0.
  const Machine read = nccl_machine(two_gpus("dev=\"0\" sm=\"90\"", "dev=\"0\" sm=\"90\""));
  REQUIRE(read.gpus.size() == 2);
  for (const Gpu& gpu : read.gpus) CHECK(gpu.ordinal == -1);
  CHECK(may_map(read, 0, 1));
  const auto devices = [](const Machine& machine) {
    const Machine again = nccl_machine(write_nccl_xml(machine));
    std::vector<int> numbers;
    for (const Gpu& gpu : again.gpus) numbers.push_back(gpu.nvml_index);
    return numbers;
  };
  CHECK(devices(read) == std::vector<int>{0, 1});
  Machine own = read;
  own.gpus[0].nvml_index = 5;
  own.gpus[0].ordinal = 1;  // CUDA's ordinal, which is meaningless to other processes
  own.gpus[1].nvml_index = 2;
  CHECK(devices(own) == std::vector<int>{5, 2});
  own.gpus[0].nvml_index = -1;
  own.gpus[1].nvml_index = 0;
  CHECK(devices(own) == std::vector<int>{1, 0});
}

TEST_CASE("parts of one GPU share a function, and are distinguished by their numbers",
          "[req:2.7]") {
  constexpr const char* kPart =
      "<gpu dev=\"0\" sm=\"107\" mlopart=\"{}\"><nvlink target=\"ffff:ff:ff.7\" count=\"18\" "
      "tclass=\"0x068000\"/></gpu>";
  const auto function_with = [&](int a, int b) {
    return "<system version=\"1\">\n<cpu numaid=\"0\"><pci busid=\"0000:10:00.0\" "
           "class=\"0x030200\">\n" +
           fmt::format(fmt::runtime(kPart), a) + "\n" + fmt::format(fmt::runtime(kPart), b) +
           "</pci></cpu></system>";
  };
  const Machine read = nccl_machine(function_with(0, 1));
  REQUIRE(read.gpus.size() == 2);
  CHECK(read.gpus[0].pci == read.gpus[1].pci);
  CHECK(read.gpus[0].partition == 0);
  CHECK(read.gpus[1].partition == 1);
  CHECK(may_map(read, 0, 1));
  // The written format has one GPU for each function.
  CHECK(parse_result(write_nccl_xml(read)) == "ok");
  refused(function_with(1, 1),
          "line 4: GPU 1 (0000:10:00.0, no UUID) is listed twice, first in line 3");
}

TEST_CASE("several links of one GPU add up, to switches and to another GPU", "[req:2.1][req:2.7]") {
  // A GPU with links to four switches, each with its own address.
  std::string switches;
  for (const auto& [target, count] : {std::pair("0000:06:00.0", 5),
                                      {"0000:07:00.0", 5},
                                      {"0000:08:00.0", 4},
                                      {"0000:09:00.0", 4}}) {
    switches += link_to(target, count, "0x068000");
  }
  const std::string gpu = "sm=\"90\"";
  const Machine switched = nccl_machine(two_gpus(gpu, gpu, switches, switches));
  CHECK(switched.gpus[0].switch_links == 18);
  CHECK(switched.gpus[1].switch_links == 18);
  CHECK(path_between(switched, 0, 1).gbps == 18 * 200);
  const Machine direct = nccl_machine(two_gpus(
      gpu, gpu, link_to("0000:11:00.0", 2, "0x030200") + link_to("0000:11:00.0", 1, "0x030200"),
      link_to("0000:10:00.0", 3, "0x030200")));
  REQUIRE(find_pair(direct, 0, 1) != nullptr);
  CHECK(find_pair(direct, 0, 1)->links == 3);
  CHECK(path_between(direct, 0, 1).gbps == 3 * 200);
  CHECK(has(write_nccl_xml(direct), "target=\"0000:11:00.0\" count=\"3\""));
}

TEST_CASE("numbers are read as NCCL reads them, and a width that nobody knows is none",
          "[req:2.7]") {
  const std::string gpu = "dev=\"0x1\" sm=\"90\"";
  std::string text = two_gpus(gpu, "dev=\"010\" sm=\"0x5a\"");
  const std::string ports =
      "<nic><net name=\"a\" guid=\"2369990716664481952\"/><net name=\"b\" "
      "guid=\"0x20e3ec0003f2ac20\"/><net name=\"c\" guid=\"b8ce\"/></nic></cpu>";
  text.replace(text.find("</cpu>"), 6, ports);
  text.replace(text.find("numaid=\"0\""), 10, "numaid=\"0x3\"");
  const Machine read = nccl_machine(text);
  CHECK(read.numa[0].os_index == 3);
  CHECK(read.gpus[0].nvml_index == 1);
  CHECK(read.gpus[1].nvml_index == 8);
  CHECK(read.gpus[1].architecture == 90);
  REQUIRE(read.nics.size() == 3);
  CHECK(read.nics[0].guid == 2369990716664481952U);
  CHECK(read.nics[1].guid == 0x20e3ec0003f2ac20U);
  CHECK(read.nics[2].guid == 0xb8ce);
  refused(two_gpus("dev=\"0x\"", ""), "line 3: <gpu> has dev '0x'");
  refused(two_gpus("dev=\"09\"", ""), "line 3: <gpu> has dev '09'");

  const auto wide = [](const char* width) {
    return two_gpus("", "", "", "",
                    fmt::format(" link_speed=\"32.0 GT/s PCIe\" link_width=\"{}\"", width));
  };
  const Machine unknown = nccl_machine(wide("255"));
  CHECK(unknown.gpus[0].pcie_gbps == 0);
  CHECK(read_nccl_xml(wide("16"))->gpus[0].pcie_gbps == Approx(504.128));
  refused(wide("65"), "line 3: <pci> has link_width '65'");
  refused(wide("256"), "line 3: <pci> has link_width '256'");
}

TEST_CASE("a file of a later version is read as far as it is known, which is said", "[req:2.7]") {
  const auto sources_of = [](const char* version) {
    const Machine read = nccl_machine(fmt::format("<system version=\"{}\"/>", version));
    return read.sources;
  };
  CHECK(sources_of("1").empty());
  CHECK(sources_of("2").empty());  // RCCL's
  REQUIRE(sources_of("9").size() == 1);
  CHECK(sources_of("9")[0].detail.starts_with("it has version 9,"));
}
}  // namespace oriel::topo
