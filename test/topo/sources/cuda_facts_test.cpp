// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/cuda_facts.hpp"

#include <cstdio>

#include <catch2/catch.hpp>

#include "topo/choice/affinity.hpp"
#include "topo/choice/gpu_rank_info.hpp"
#include "topo/machine/discover.hpp"
#include "topo/machine/process_machine.hpp"
#include "topo/sources/fake_devices.hpp"
#include "topo/sources/fake_nvml.hpp"
#include "topo/sources/temporary_tree.hpp"

namespace oriel::topo {
namespace {

/// Three devices: 0 and 1 reach each other, 2 reaches only 0, and atomics work from 0 and 1.
struct ThreeDevices : FakeDevices {
  ThreeDevices() : FakeDevices({0, 1, 2}) {
    maps = [](int from, int to) { return (from < 2 && to < 2) || (from == 2 && to == 0); };
    atomics = [](int from, int) { return from < 2; };
  }
  CudaTable driver = table();
  ScopedCudaTable scoped{driver};
};

}  // namespace

TEST_CASE("CUDA reports ordinals, peer access, atomics and kinds of handles", "[req:2.1]") {
  const ThreeDevices devices;
  Machine machine;
  const SourceReport report = add_cuda_facts(machine);
  CHECK(report ==
        SourceReport{"CUDA driver 13.1", SourceReport::Outcome::used, "3 visible devices"});
  REQUIRE(machine.gpus.size() == 3);
  CHECK(machine.gpus[1] == Gpu{.name = "NVIDIA H200",
                               .architecture = 90,
                               .uuid = "GPU-65656565-6565-6565-6565-656565656565",
                               .pci = PciAddress{0, 0x65, 0, 0},
                               .ordinal = 1,
                               .fd_handles = true});
  CHECK(machine.pairs.size() == 6);
  CHECK(find_pair(machine, 0, 1)->maps == true);
  CHECK(find_pair(machine, 0, 1)->atomics);
  CHECK(find_pair(machine, 2, 0)->maps == true);
  CHECK_FALSE(find_pair(machine, 2, 0)->atomics);
  CHECK(find_pair(machine, 0, 2)->maps == false);
}

TEST_CASE("devices that are known already are found by UUID or address, and CUDA's word counts",
          "[req:2.1]") {
  const ThreeDevices devices;
  Machine machine;
  machine.gpus = {{.uuid = "GPU-hidden"},
                  {.uuid = "GPU-66666666-6666-6666-6666-666666666666", .switch_links = 18},
                  {.pci = PciAddress{0, 0x64, 0, 0}}};
  machine.pairs = {{.from = 2, .to = 1, .maps = true, .links = 4}};
  add_cuda_facts(machine);
  REQUIRE(machine.gpus.size() == 4);
  CHECK(machine.gpus[0].ordinal == -1);
  CHECK(machine.gpus[1].ordinal == 2);
  CHECK(machine.gpus[1].switch_links == 18);
  CHECK(machine.gpus[2].ordinal == 0);
  CHECK(machine.gpus[2].uuid == "GPU-64646464-6464-6464-6464-646464646464");
  CHECK(machine.gpus[3].ordinal == 1);
  CHECK(find_pair(machine, 2, 1)->maps == false);
  CHECK(find_pair(machine, 2, 1)->links == 4);
  CHECK(check(machine).ok());
}

TEST_CASE("CUDA devices at one PCI address with different UUIDs stay separate GPUs",
          "[req:2.1][req:2.2]") {
  ThreeDevices devices;
  devices.driver.device_get_pci_bus_id = [](char* text, int bytes, CUdevice device) {
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", device == 102 ? 1 : 0);
    return CUDA_SUCCESS;
  };
  Machine machine;
  const bool listed = GENERATE(false, true);
  if (listed) {
    // NVML lists the whole GPU at the address of the function.
    machine.gpus = {{.uuid = "GPU-whole", .pci = PciAddress{0, 0, 0, 0}, .switch_links = 18}};
  }
  add_cuda_facts(machine);
  CHECK(check(machine).ok());
  REQUIRE(machine.gpus.size() == 3);
  for (int i = 0; i < 3; ++i) {
    const Gpu& gpu = machine.gpus[static_cast<std::size_t>(i)];
    CHECK(gpu.ordinal == i);
    CHECK(gpu.uuid.starts_with(i == 0 ? "GPU-6464" : i == 1 ? "GPU-6565" : "GPU-6666"));
    CHECK(gpu.partition == (i < 2 ? i : -1));
    CHECK(gpu.switch_links == (listed && i < 2 ? 18 : 0));
  }
  CHECK(find_pair(machine, 0, 1)->maps == true);
}

TEST_CASE("at the only NUMA node a communicator has what the tool shows", "[req:2.5][req:2.10]") {
  ThreeDevices devices;
  devices.shown = {0};
  TemporaryTree tree;  // like a virtual machine, whose kernel knows no device's NUMA node
  tree.file("/sys/devices/system/node/online", "0\n");
  tree.file("/sys/devices/system/node/node0/cpulist", "0-7\n");
  const std::string device = "/sys/devices/pci0000:00/0000:00:01.0/0000:64:00.0";
  const bool listed = GENERATE(true, false);
  INFO(listed);
  if (listed) {
    tree.file(device + "/numa_node", "-1\n");
    tree.file(device + "/class", "0x030200\n");
    tree.file(device + "/vendor", "0x10de\n");
    tree.file(device + "/device", "0x2335\n");
    tree.link("/sys/bus/pci/devices/0000:64:00.0", "../../.." + device.substr(4));
  }
  NvmlLibrary none;
  none.missing = "there is no NVML";
  ProcessMachine machine({FileTree(tree.root()), [&]() -> const NvmlLibrary& { return none; }});
  const auto found = machine.for_communicators(true, Settings{});
  REQUIRE(found.ok());
  const Affinity own = affinity_of_gpu((*found)->machine, 0, {});
  CHECK(gpu_rank_info(NodeIdentity{1, 2}, **found, 0)->numa == 0);
  CHECK(own.cpus == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(own.memory_node == -1);  // one node: the kernel gets no memory policy
  FakeNvml nvml;
  nvml.devices.resize(1);
  nvml.devices[0].pci = "00000000:64:00.0";
  DiscoverOptions options;
  options.root = tree.root();
  const auto shown_by_tool = discover(options, HwlocLibrary{}, nvml.library());
  REQUIRE(shown_by_tool.ok());
  CHECK(shown_by_tool->gpus[0].numa == (*found)->machine.gpus[0].numa);
  const Affinity tools = affinity_of_gpu(*shown_by_tool, 0, {});
  CHECK(tools.cpus == own.cpus);
  CHECK(tools.memory_node == own.memory_node);
}

TEST_CASE("a driver that does not answer leaves the machine as it was", "[req:2.2]") {
  ThreeDevices devices;
  devices.driver.device_get_count = [](int*) { return CUDA_ERROR_UNKNOWN; };
  Machine machine;
  CHECK(add_cuda_facts(machine).outcome != SourceReport::Outcome::used);
  CHECK(machine == Machine{});
}

TEST_CASE("calls that are refused leave what they would have reported at its default",
          "[req:2.2]") {
  ThreeDevices devices;
  devices.driver.device_get_uuid = [](CUuuid*, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; };
  devices.driver.device_get_name = [](char*, int, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; };
  devices.driver.device_can_access_peer = [](int*, CUdevice, CUdevice) {
    return CUDA_ERROR_UNKNOWN;
  };
  Machine machine;
  CHECK(add_cuda_facts(machine).outcome == SourceReport::Outcome::used);
  REQUIRE(machine.gpus.size() == 3);
  CHECK(machine.gpus[0].uuid.empty());
  CHECK(machine.gpus[0].pci == PciAddress{0, 0x64, 0, 0});
  CHECK(machine.pairs.empty());
}

}  // namespace oriel::topo
