// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests which sources a process reads, and how often.
#include "topo/machine/process_machine.hpp"

#include <filesystem>
#include <map>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/stat.h>

#include "support/in_child.hpp"
#include "support/words.hpp"
#include "topo/choice/gpu_rank_info.hpp"
#include "topo/choice/paths.hpp"
#include "topo/machine/described_machine.hpp"
#include "topo/machine/fake_process.hpp"
#include "topo/machine/machine_file.hpp"
#include "topo/machine/machines.hpp"
#include "topo/sources/fake_nvml.hpp"
#include "topo/sources/temporary_tree.hpp"
#include "topo/xml/nccl_xml.hpp"

namespace oriel::topo {
namespace {

using test::has;

using test::text_of_file;

Gpu visible_gpu(int bus, const char* name = "NVIDIA H200", bool fabric_handles = false) {
  return {.name = name,
          .pci = PciAddress{0, static_cast<std::uint8_t>(bus), 0, 0},
          .ordinal = bus,
          .fabric_handles = fabric_handles};
}

Settings with_file(const std::string& path) {
  Settings settings;
  settings.topo_file = path;
  return settings;
}

}  // namespace

TEST_CASE("NVML is asked only where its word is needed", "[req:2.10]") {
  const std::vector<Gpu> two{visible_gpu(1), visible_gpu(2)};
  const std::vector<PciAddress> none;
  const std::vector<PciAddress> same{*two[1].pci, *two[0].pci};
  const std::vector<PciAddress> more{*two[0].pci, *two[1].pci, PciAddress{0, 3, 0, 0}};
  const std::vector<Gpu> with_handles{visible_gpu(1), visible_gpu(2, "NVIDIA GB200", true)};
  const std::vector<Gpu> instance{visible_gpu(1, "NVIDIA H100 80GB HBM3 MIG 1g.10gb")};
  struct Row {
    const char* what;
    const std::vector<Gpu>& visible;
    const std::vector<PciAddress>& of_driver;
    bool imex_channel;
    NvmlReason expected;
  };
  for (const Row& row : {
           Row{"all GPUs are visible", two, same, false, NvmlReason::none},
           Row{"the driver lists nothing", two, none, false, NvmlReason::none},
           Row{"the driver lists one more", two, more, false, NvmlReason::hidden_gpus},
           Row{"no device is visible", {}, same, false, NvmlReason::hidden_gpus},
           Row{"a channel, but no fabric handles", two, same, true, NvmlReason::none},
           Row{"fabric handles, but no channel", with_handles, same, false, NvmlReason::none},
           Row{"fabric handles and a channel", with_handles, same, true, NvmlReason::fabric},
           Row{"both hidden and fabric", with_handles, more, true, NvmlReason::fabric},
           Row{"a MIG instance", instance, {*two[0].pci}, false, NvmlReason::mig},
           Row{"a MIG instance beside a hidden GPU", instance, same, false,
               NvmlReason::hidden_gpus},
       }) {
    INFO(row.what);
    CHECK(reason_to_ask_nvml(row.visible, row.of_driver, row.imex_channel) == row.expected);
  }
}

TEST_CASE("a start of ranks on CPUs reads the files of NUMA nodes, and no others", "[req:2.10]") {
  FakeProcess process;
  add_network(process.tree);
  ProcessMachine& machine = process.machine;
  const ScopedProcessMachine scoped(machine);
  const std::vector<std::string>& asked = process.asked;
  const auto known = machine.for_communicators(false, Settings{});
  REQUIRE(known.ok());
  RankInfo info = host_rank_info(NodeIdentity{1, 2}, **known, std::nullopt);
  add_network(info, Settings{}, {});
  CHECK_FALSE(asked.empty());
  for (const std::string& path : asked) {
    INFO(path);
    CHECK(path.rfind("/sys/devices/system/node", 0) == 0);
  }
  const std::size_t before = asked.size();
  add_network(info, Settings{}, {.network = true});
  CHECK(info.network_class == bandwidth_class(200));
  const std::size_t with_network = asked.size();
  CHECK(asked_about_network(asked) == with_network - before);
  CHECK(with_network > before);
  add_network(info, Settings{}, {.network = true});
  CHECK(asked.size() == with_network);
  CHECK(process.nvml_asked == 0);
}

TEST_CASE("the information of a rank on a CPU has memory and network bandwidths from /sys",
          "[req:2.6]") {
  FakeProcess process;
  const TemporaryTree& tree = process.tree;
  tree.file("/sys/devices/system/node/node0/access0/initiators/read_bandwidth", "131072\n");
  tree.file("/sys/devices/system/node/node1/access0/initiators/read_bandwidth", "65536\n");
  tree.file("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  tree.file("/sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  tree.file("/sys/class/net/eth0/operstate", "up\n");
  tree.file("/sys/class/net/eth0/speed", "100000\n");
  tree.folder("/sys/devices/pci0000:00/0000:00:05.0");
  tree.link("/sys/class/net/eth0/device", "../../../devices/pci0000:00/0000:00:05.0");
  tree.file("/sys/class/net/veth0/operstate", "up\n");
  tree.file("/sys/class/net/veth0/speed", "1000000\n");  // an interface without hardware
  ProcessMachine& machine = process.machine;
  const auto known = machine.for_communicators(false, Settings{});
  REQUIRE(known.ok());
  CHECK(machine.network_gbps(Settings{}) == 100);
  const NodeIdentity node{1, 2};
  const std::vector<int> of_first = (*known)->machine.numa[0].cpus;
  const RankInfo bound = host_rank_info(node, **known, of_first);
  CHECK(bound.numa == (*known)->machine.numa[0].os_index);
  CHECK(bound.host_class == bandwidth_class(1048));
  CHECK(bound.network_class == 0);  // unknown until requested
  const RankInfo free = host_rank_info(node, **known, std::nullopt);
  CHECK(free.numa == -1);
  CHECK(free.host_class == bandwidth_class(524));  // the rank may run on any node
  tree.file("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  CHECK(machine.network_gbps(Settings{}) == 100);  // read once
  ProcessMachine again(process.sources());
  const ScopedProcessMachine scoped(again);
  RankInfo reported = free;
  add_network(reported, Settings{}, {.hidden_gpus = true});
  CHECK(reported.network_class == 0);
  add_network(reported, Settings{}, {.network = true});
  CHECK(reported.network_class == bandwidth_class(400));
  CHECK(again.network_gbps(with_file("/nowhere/at/all.xml")) == 0);
}

TEST_CASE("threads that request the machine at once share one result", "[req:2.10]") {
  FakeProcess process;
  std::vector<ProcessMachine::CommunicatorPart> parts(16);
  {
    std::vector<std::jthread> threads;
    threads.reserve(parts.size());
    for (auto& part : parts) {
      threads.emplace_back(
          [&] { part = process.machine.for_communicators(false, Settings{}).value(); });
    }
  }
  for (const auto& part : parts) CHECK(part.get() == parts[0].get());
}

TEST_CASE("a child that was forked since reads the machine again", "[req:2.10]") {
  FakeProcess process;
  ProcessMachine& machine = process.machine;
  REQUIRE(machine.for_communicators(false, Settings{}).ok());
  process.tree.file("/sys/devices/system/node/online", "1\n");
  CHECK(test::status_of_child([&] {
          const auto part = machine.for_communicators(false, Settings{});
          return part.ok() ? static_cast<int>((*part)->machine.numa.size()) : 100;
        }) == 1);
  CHECK((*machine.for_communicators(false, Settings{}))->machine.numa.size() == 2);
}

TEST_CASE("a failure is not kept: the next communicator reads the machine again", "[req:2.10]") {
  FakeProcess process;
  const TemporaryTree& tree = process.tree;
  ProcessMachine& machine = process.machine;
  const Settings settings = with_file(tree.root() + "/machine.xml");
  tree.file("/machine.xml", "<system>\n<cpu numaid=\"0\">\n");
  const auto cut = machine.for_communicators(false, settings);
  REQUIRE_FALSE(cut.ok());
  INFO(cut.error().to_string());
  CHECK(has(cut.error().to_string(), "machine.xml"));
  CHECK(has(cut.error().to_string(), "line"));
  REQUIRE(dump_machine(hgx_8(), tree.root() + "/machine.xml").ok());
  const auto mended = machine.for_communicators(false, settings);
  REQUIRE(mended.ok());
  CHECK((*mended)->machine.numa.size() == 2);
  CHECK((*mended)->machine.numa[1].cpus.size() == 56);
  CHECK_FALSE(machine.for_communicators(false, with_file("/nowhere/at/all.xml")).ok());
}

TEST_CASE("a description replaces plain files only, no link and no pipe", "[req:2.7]") {
  const TemporaryTree tree;
  const auto kind_of = [](const std::string& path) {
    struct stat facts {};
    return ::lstat(path.c_str(), &facts) == 0 ? facts.st_mode & S_IFMT : 0;
  };
  const std::string link = tree.root() + "/link";
  const std::string target = tree.root() + "/target.xml";
  REQUIRE(::symlink(target.c_str(), link.c_str()) == 0);
  for (int round = 0; round < 2; ++round) {
    REQUIRE(dump_machine(hgx_8(), link).ok());
    CHECK(kind_of(link) == S_IFLNK);
    CHECK(kind_of(target) == S_IFREG);
    CHECK(text_of_file(target) == write_nccl_xml(hgx_8()));
  }

  const std::string pipe = tree.root() + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const Status refused = dump_machine(hgx_8(), pipe);
  REQUIRE_FALSE(refused.ok());
  CHECK(has(refused.error().to_string(), pipe));
  CHECK(kind_of(pipe) == S_IFIFO);
}

TEST_CASE("a description counts for speeds and places, not for who maps whom", "[req:2.7]") {
  CommunicatorMachine found;
  const Machine described = hgx_8();
  found.machine.numa.resize(4);
  for (int i = 0; i < 4; ++i) found.machine.numa[static_cast<std::size_t>(i)].os_index = i;
  for (const int index : {0, 7}) {
    const auto& pci = described.gpus[static_cast<std::size_t>(index)].pci;
    found.machine.gpus.push_back({.pci = pci, .pcie_gbps = 100, .fabric_handles = true});
  }
  found.machine.gpus.push_back(visible_gpu(0xee));  // not in the description
  found.machine.gpus.back().numa = 3;               // index in the replaced nodes
  found.machine.gpus.back().node = 0;
  found.machine.pci = {{.kind = PciNode::Kind::host_bridge, .numa = 3}};
  for (const auto& [from, to] : {std::pair(0, 1), {1, 0}, {0, 2}}) {
    found.machine.pairs.push_back({.from = from, .to = to, .maps = false});
  }
  apply_description(found, described);
  CHECK(found.links_known);
  REQUIRE(found.machine.gpus.size() == 3);
  CHECK(found.machine.numa.size() == 2);
  CHECK(found.machine.gpus[0].numa == 0);
  CHECK(found.machine.gpus[1].numa == 1);
  CHECK(found.machine.gpus[2].numa == -1);
  CHECK(found.machine.gpus[1].switch_links == 18);
  CHECK(found.machine.gpus[0].pcie_gbps == described.gpus[0].pcie_gbps);
  CHECK(found.machine.gpus[0].node == described.gpus[0].node);
  CHECK(found.machine.gpus[2].node == -1);
  CHECK(found.machine.gpus[0].fabric_handles);
  CHECK(find_pair(found.machine, 0, 1)->maps == false);
  CHECK(check(found.machine).ok());
}

TEST_CASE("facts that a description lacks keep their discovered values", "[req:2.7]") {
  Machine described = hgx_8();
  for (Gpu& gpu : described.gpus) gpu.switch_links = 0;  // like hwloc's XML, which has no links
  described.pairs.clear();
  const auto lacked = described.gpus[7].pci;
  described.gpus[7].pci->function = 7;
  CommunicatorMachine found;
  found.links_known = true;
  found.machine.numa.resize(2);
  found.machine.numa[0].os_index = 1;  // in another order
  for (const auto& pci : {described.gpus[0].pci, described.gpus[1].pci, lacked}) {
    found.machine.gpus.push_back({.pci = pci, .numa = 0, .switch_links = 18, .link_gbps = 200});
  }
  found.machine.gpus.push_back(visible_gpu(0xee));  // on no bus of the description
  found.machine.gpus.back().numa = 0;
  found.machine.pairs = {{.from = 0, .to = 1, .links = 18, .hops = 2}};
  apply_description(found, described);
  CHECK(found.links_known);
  CHECK(found.machine.gpus[0].switch_links == 18);
  CHECK(found.machine.gpus[0].link_gbps == 200);
  CHECK(find_pair(found.machine, 0, 1)->links == 18);
  CHECK(found.machine.gpus[0].numa == described.gpus[0].numa);
  CHECK(found.machine.gpus[2].numa == 1);
  CHECK(found.machine.gpus[3].numa == 1);
  found.links_known = false;
  apply_description(found, described);
  CHECK_FALSE(found.links_known);
  CHECK(check(found.machine).ok());
}

TEST_CASE("NUMA nodes keep what a description omits, or gives to several of them", "[req:2.7]") {
  // Several nodes with the same processors, as in a cloud's description files.
  const auto described = read_nccl_xml(
      "<system><cpu numaid=\"0\" affinity=\"0000000f\"/><cpu numaid=\"1\" affinity=\"0000000f\"/>"
      "</system>");
  REQUIRE(described.ok());
  REQUIRE(described->sources.size() == 1);
  CHECK(described->sources[0].detail == "NUMA nodes 0 and 1 both have processor 0");
  CommunicatorMachine found;
  found.machine.numa = {{.os_index = 1,  // in another order
                         .cpus = {4, 5},
                         .memory_bytes = 1 << 20,
                         .memory_gbps = 100,
                         .distances = {10, 32}},
                        {.cpus = {0, 1}, .distances = {21, 10}}};
  CommunicatorMachine other = found;
  apply_description(found, *described);
  const std::vector<NumaNode>& numa = found.machine.numa;
  REQUIRE(numa.size() == 2);
  CHECK(numa[0].cpus == std::vector<int>{0, 1});
  CHECK(numa[1].cpus == std::vector<int>{4, 5});
  CHECK(numa[0].distances == std::vector<int>{10, 21});
  CHECK(numa[1].distances == std::vector<int>{32, 10});
  CHECK(numa[1].memory_gbps == 100);
  CHECK(numa[1].memory_bytes == 1 << 20);
  const auto sound = read_nccl_xml(
      "<system><cpu numaid=\"1\" affinity=\"f0\"/><cpu numaid=\"7\" affinity=\"f\"/></system>");
  REQUIRE(sound.ok());
  CHECK(sound->sources.empty());
  apply_description(other, *sound);
  CHECK(other.machine.numa[0].cpus == std::vector<int>{4, 5, 6, 7});
  CHECK(other.machine.numa[0].memory_gbps == 100);
  CHECK(other.machine.numa[0].distances.empty());  // node 7 is absent
}

TEST_CASE("GPUs are found again on a description's buses where it lists them as none",
          "[req:2.7]") {
  const auto described = read_nccl_xml(
      "<system><cpu numaid=\"0\"/><cpu numaid=\"1\"><pci busid=\"0000:01:00.0\" class=\"0x060400\">"
      "<pci busid=\"0000:02:00.0\" link_speed=\"16.0 GT/s PCIe\" link_width=\"8\"/>"
      "<pci busid=\"0000:03:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" "
      "link_width=\"16\"/></pci></cpu></system>");
  REQUIRE(described.ok());
  REQUIRE(described->gpus.size() == 1);
  CommunicatorMachine found;
  for (const int bus : {2, 3, 4}) {
    found.machine.gpus.push_back(visible_gpu(bus));
    found.machine.gpus.back().pcie_gbps = 1;
  }
  apply_description(found, *described);
  REQUIRE(check(found.machine).ok());
  const auto& gpus = found.machine.gpus;
  for (const std::size_t i : {0U, 1U}) {
    CHECK(gpus[i].numa == 1);
    REQUIRE(gpus[i].node >= 0);
    CHECK(found.machine.pci[static_cast<std::size_t>(gpus[i].node)].address == gpus[i].pci);
  }
  CHECK(gpus[0].pcie_gbps == Approx(8 * 15.754).epsilon(0.01));
  CHECK(gpus[1].pcie_gbps == Approx(16 * 15.754).epsilon(0.01));
  CHECK(gpus[2].node == -1);
  CHECK(gpus[2].numa == -1);
  CHECK(gpus[2].pcie_gbps == 1);
}

namespace {

/// A description with two cards and two GPUs by PCI class alone, and a card with a name.
Machine described_by_class() {
  std::string text = "<system><cpu numaid=\"1\">";
  for (const char* device : {"01:00.0\" class=\"0x030200", "02:00.0\" class=\"0x030200",
                             "03:00.0\" class=\"0x020700", "04:00.0\" class=\"0x020000"}) {
    text += fmt::format("<pci busid=\"0000:{}\"/>", device);
  }
  auto machine = read_nccl_xml(text + "<nic><net name=\"mlx5_9\"/></nic></cpu></system>");
  REQUIRE(machine.ok());
  return std::move(machine).value();
}

}  // namespace

TEST_CASE("cards that a description names by their places get names and ports of this machine",
          "[req:2.7]") {
  FakeProcess process;
  const TemporaryTree& tree = process.tree;
  for (const char* port :
       {"mlx5_0/ports/1", "mlx5_0/ports/2", "mlx5_9/ports/1", "mlx5_4/ports/1"}) {
    const std::string folder = std::string("/sys/class/infiniband/") + port;
    tree.file(folder + "/state", "4: ACTIVE\n");
    tree.file(folder + "/rate", "400 Gb/sec (4X NDR)\n");
  }
  tree.file("/sys/devices/pci0000:00/0000:03:00.0/numa_node", "0\n");
  tree.file("/sys/devices/pci0000:00/0000:05:00.0/numa_node", "0\n");
  for (const auto& [card, function] :
       {std::pair("mlx5_0", "03"), {"mlx5_9", "03"}, {"mlx5_4", "05"}}) {
    tree.link(fmt::format("/sys/class/infiniband/{}/device", card),
              fmt::format("../../../devices/pci0000:00/0000:{}:00.0", function));
  }
  process.library.missing = "there is none";
  Machine machine = described_by_class();
  const MachineSources sources = process.sources();
  complete_description(sources.files, sources.nvml, machine);
  REQUIRE(check(machine).ok());
  std::map<std::string, const Nic*> nics;
  for (const Nic& nic : machine.nics) nics[fmt::format("{}:{}", nic.name, nic.port)] = &nic;
  REQUIRE(nics.size() == 4);
  for (const char* port : {"mlx5_0:1", "mlx5_0:2"}) {
    REQUIRE(nics.count(port) == 1);
    CHECK(nics[port]->gbps == 400);
    CHECK(nics[port]->numa == 0);  // value in the description
    CHECK(machine.pci[static_cast<std::size_t>(nics[port]->node)].address ==
          PciAddress{0, 3, 0, 0});
  }
  CHECK(nics.count("0000:04:00.0:1") == 1);  // the kernel lists no port at this address
  CHECK(nics["mlx5_9:1"]->gbps == 0);        // the description has its name, and takes precedence
}

TEST_CASE("links that a description omits are queried from NVML, others are not", "[req:2.7]") {
  FakeProcess process;
  for (const int gpu : {2, 1, 7}) {
    process.nvml.devices.push_back({.pci = fmt::format("0000:{:02x}:00.0", gpu),
                                    .uuid = fmt::format("GPU-{}", gpu),
                                    .links = std::vector<FakeNvml::Link>(gpu == 7 ? 0 : 12)});
  }
  const auto complete = [sources = process.sources()](Machine& machine) {
    complete_description(sources.files, sources.nvml, machine);
  };
  Machine machine = described_by_class();
  complete(machine);
  REQUIRE(check(machine).ok());
  CHECK(process.nvml_asked == 1);
  REQUIRE(machine.gpus.size() == 2);
  for (const Gpu& gpu : machine.gpus) {
    CHECK(gpu.switch_links == 12);
    CHECK(gpu.link_gbps > 0);
    CHECK(gpu.name == "NVIDIA H200");
  }
  CHECK(path_between(machine, 0, 1).kind == PathKind::nvlink);
  complete(machine);
  Machine cpus = cpu_only();
  complete(cpus);
  CHECK(process.nvml_asked == 1);
  CHECK(cpus == cpu_only());
}

TEST_CASE("a rank on the host is at the NUMA node of all its processors, or at none", "[req:2.6]") {
  const std::vector<NumaNode> nodes{{.os_index = 0, .cpus = {0, 1, 2}},
                                    {.os_index = 4, .cpus = {3, 4}}};
  CHECK(numa_number_of(nodes, std::vector<int>{1, 2}) == 0);
  CHECK(numa_number_of(nodes, std::vector<int>{3}) == 4);
  CHECK(numa_number_of(nodes, std::vector<int>{2, 3}) == -1);
  CHECK(numa_number_of(nodes, std::vector<int>{9}) == -1);
  CHECK(numa_number_of(nodes, std::vector<int>{}) == -1);
  CHECK(numa_number_of(nodes, std::nullopt) == -1);
  CHECK(numa_number_of({}, std::vector<int>{0}) == -1);
}

TEST_CASE("the part with the NICs is read when first needed, and once", "[req:2.10]") {
  FakeProcess process;
  const TemporaryTree& tree = process.tree;
  ProcessMachine& machine = process.machine;
  REQUIRE(machine.for_communicators(false, Settings{}).ok());
  CHECK(process.nvml_asked == 0);
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1";
  tree.file(port + "/state", "4: ACTIVE\n");
  tree.file(port + "/rate", "400 Gb/sec (4X NDR)\n");
  const auto whole = machine.whole(Settings{});
  REQUIRE(whole.ok());
  REQUIRE((*whole)->nics.size() == 1);
  CHECK((*whole)->nics[0].gbps == 400);
  CHECK(process.nvml_asked == 1);
  CHECK(machine.whole(Settings{})->get() == whole->get());
  CHECK(process.nvml_asked == 1);
}

TEST_CASE("the description is written once for each file, and a failure does no harm",
          "[req:2.7]") {
  FakeProcess process;
  const TemporaryTree& tree = process.tree;
  ProcessMachine& machine = process.machine;
  Settings settings;
  machine.dump_once(settings);
  settings.topo_dump_file = tree.root() + "/dump.xml";
  machine.dump_once(settings);
  const std::string text = text_of_file(settings.topo_dump_file);
  CHECK(has(text, "<system"));
  tree.file("/dump.xml", "mine\n");
  machine.dump_once(settings);
  CHECK(text_of_file(settings.topo_dump_file) == "mine\n");
  settings.topo_dump_file = tree.root() + "/no/such/folder/dump.xml";
  machine.dump_once(settings);
  CHECK(FileTree(tree.root()).list("/no").empty());
}

}  // namespace oriel::topo
