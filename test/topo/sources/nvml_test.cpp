// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include <catch2/catch.hpp>

#include "topo/model/nvlink_generation.hpp"
#include "topo/sources/fake_nvml.hpp"
#include "topo/sources/nvml_reader.hpp"

namespace oriel::topo {
namespace {

using Outcome = SourceReport::Outcome;

FakeNvml::Device h200(int number) {
  return {.pci = "00000000:" + std::to_string(10 + number) + ":00.0",
          .uuid = "GPU-" + std::to_string(number)};
}

const GpuPair& pair_of(const NvmlList& list, int from, int to) {
  for (const GpuPair& pair : list.pairs) {
    if (pair.from == from && pair.to == to) return pair;
  }
  throw std::runtime_error("no such pair");
}

}  // namespace

TEST_CASE("NVML reports switches, speeds, PCIe and who maps whose memory", "[req:2.1]") {
  FakeNvml fake;
  for (int i = 0; i < 4; ++i) {
    fake.devices.push_back(h200(i));
    fake.devices.back().links.resize(18);
  }
  fake.devices[3].links[5].active = false;
  fake.refused.push_back({1, 2, NvmlConstants::write});
  fake.refused.push_back({0, 3, NvmlConstants::atomics});
  const NvmlList list = read_nvml(fake.library());
  CHECK(fake.open == 0);
  CHECK(list.report == SourceReport{"NVML, driver 580.159", Outcome::used, "4 GPUs"});
  REQUIRE(list.gpus.size() == 4);
  const Gpu& first = list.gpus[0];
  CHECK(first.link_gbps == Approx(212.496));
  CHECK(first.pcie_gbps == Approx(504.128));
  CHECK(first == Gpu{.name = "NVIDIA H200",
                     .uuid = "GPU-0",
                     .pci = PciAddress{0, 0x10, 0, 0},
                     .nvml_index = 0,
                     .switch_links = 18,
                     .link_gbps = first.link_gbps,
                     .pcie_gbps = first.pcie_gbps,
                     .pcie_now_gbps = first.pcie_gbps});
  CHECK(list.gpus[3].switch_links == 17);
  CHECK(list.pairs.size() == 12);
  CHECK(pair_of(list, 0, 1).maps == true);
  CHECK(pair_of(list, 1, 2).maps == false);
  CHECK(pair_of(list, 2, 1).maps == true);
  CHECK_FALSE(pair_of(list, 0, 3).atomics);
  CHECK(pair_of(list, 3, 0).atomics);
}

TEST_CASE("a communicator asks NVML about its own GPUs' pairs and no PCIe link", "[req:2.10]") {
  FakeNvml fake;
  fake.devices = {h200(0), h200(1), h200(2)};
  fake.refused.push_back({1, 2, NvmlConstants::write});
  const std::vector<Gpu> visible{{.pci = PciAddress{0, 0x11, 0, 0}}};
  const NvmlList list = read_nvml(fake.library(), {.from = &visible, .pcie_links = false});
  REQUIRE(list.gpus.size() == 3);
  CHECK(list.gpus[1].pcie_gbps == 0);
  REQUIRE(list.pairs.size() == 2);
  CHECK(pair_of(list, 1, 0).maps == true);
  CHECK(pair_of(list, 1, 0).atomics);
  CHECK(pair_of(list, 1, 2).maps == false);
  CHECK(pair_of(list, 1, 2).atomics);
}

TEST_CASE("links of unknown speed get the speed of their architecture", "[req:2.1]") {
  std::vector<Gpu> gpus(3);
  for (Gpu& gpu : gpus) gpu.architecture = 90;
  gpus[0].switch_links = 18;
  gpus[1].switch_links = 18;
  gpus[1].link_gbps = 212.5;
  assume_link_speeds(gpus);
  CHECK(gpus[0].link_gbps == 200);
  CHECK(gpus[1].link_gbps == 212.5);
  CHECK(gpus[2].link_gbps == 0);
}

TEST_CASE("NVLinks between GPUs are counted by pair", "[req:2.1]") {
  FakeNvml fake;
  fake.devices = {h200(0), h200(1), h200(2)};
  const auto link = [](int to) {
    return FakeNvml::Link{true, NvmlConstants::kRemoteGpu, h200(to).pci};
  };
  fake.devices[0].links = {link(1), link(1), link(2)};
  fake.devices[1].links = {link(0), link(0)};
  fake.devices[2].links = {link(0)};
  const NvmlList list = read_nvml(fake.library());
  CHECK(pair_of(list, 0, 1).links == 2);
  CHECK(pair_of(list, 1, 0).links == 2);
  CHECK(pair_of(list, 0, 2).links == 1);
  CHECK(pair_of(list, 1, 2).links == 0);
  CHECK(list.gpus[0].switch_links == 0);
}

TEST_CASE("a fabric counts when its set-up has ended and it has a name", "[req:2.1]") {
  FakeNvml fake;
  fake.devices = {h200(0), h200(1), h200(2), h200(3)};
  for (const int i : {0, 1, 3}) {
    NvmlFabricInfo& fabric = fake.devices[static_cast<std::size_t>(i)].fabric;
    std::memset(fabric.cluster, 7, sizeof fabric.cluster);
    fabric.clique = 5;
    fabric.state = i == 1 ? 2 : NvmlConstants::kFabricReady;
  }
  fake.devices[2].fabric.state = NvmlConstants::kFabricReady;
  fake.devices[3].fabric.status = NvmlStatus::gpu_is_lost;  // probe completed with an error
  const NvmlList list = read_nvml(fake.library());
  REQUIRE(list.gpus[0].fabric.has_value());
  CHECK(list.gpus[0].fabric->clique == 5);
  CHECK(list.gpus[0].fabric->cluster[15] == std::byte{7});
  CHECK_FALSE(list.gpus[1].fabric);
  CHECK_FALSE(list.gpus[2].fabric);
  CHECK_FALSE(list.gpus[3].fabric);
}

TEST_CASE("instances of MIG stand for their GPU and reach nobody", "[req:2.2]") {
  FakeNvml fake;
  fake.devices = {h200(0), h200(1)};
  fake.devices[0].instances = {"MIG-a", "MIG-b"};
  const NvmlList list = read_nvml(fake.library());
  REQUIRE(list.gpus.size() == 3);
  CHECK(list.gpus[1].uuid == "MIG-b");
  CHECK(list.gpus[1].mig_instance == 1);
  CHECK(list.gpus[1].name == "NVIDIA H200 MIG 1g.18gb");
  CHECK(list.gpus[1].pci == list.gpus[0].pci);
  CHECK(list.gpus[2].mig_instance == -1);
  for (const GpuPair& pair : list.pairs) CHECK(pair.maps == false);
}

TEST_CASE("NVML that is absent, refuses or has lost a GPU is reported", "[req:2.2]") {
  NvmlLibrary absent = FakeNvml().library();
  absent.missing = "there is no NVML (no such file)";
  CHECK(read_nvml(absent).report ==
        SourceReport{"NVML", Outcome::absent, "there is no NVML (no such file)"});
  {
    FakeNvml fake;
    fake.init = NvmlStatus::driver_not_loaded;
    const auto report = read_nvml(fake.library()).report;
    CHECK(report == SourceReport{"NVML", Outcome::failed, "NVIDIA's driver is not loaded"});
  }
  {
    FakeNvml fake;
    fake.count = NvmlStatus::no_permission;
    CHECK(read_nvml(fake.library()).report.detail == "no permission");
    CHECK(fake.open == 0);
  }
  FakeNvml fake;
  fake.devices = {h200(0), h200(1)};
  fake.devices[0].lost = true;
  fake.knows_peers = false;
  const NvmlList list = read_nvml(fake.library());
  REQUIRE(list.gpus.size() == 1);
  CHECK(list.gpus[0].uuid == "GPU-1");
  CHECK(list.report.detail == "1 GPU; 1 could not be asked");

  fake.devices[0].lost = false;
  const NvmlList silent = read_nvml(fake.library());
  CHECK_FALSE(silent.pairs.at(0).maps.has_value());
}

TEST_CASE("this machine's NVML can be asked, whatever there is", "[req:2.2]") {
  const NvmlList list = read_nvml(nvml_library());
  WARN(list.report.source << ": " << name_of(list.report.outcome) << ", " << list.report.detail);
  CHECK((list.report.outcome == Outcome::absent) == !nvml_library().missing.empty());
  for (const Gpu& gpu : list.gpus) CHECK(gpu.pci.has_value());
}

}  // namespace oriel::topo
