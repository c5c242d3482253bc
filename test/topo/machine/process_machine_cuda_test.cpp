// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests what a process learns about its GPUs, with model tables for CUDA and a model of NVML.
#include <algorithm>
#include <filesystem>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "support/words.hpp"
#include "topo/choice/gpu_rank_info.hpp"
#include "topo/choice/lsa_teams.hpp"
#include "topo/choice/rank_paths.hpp"
#include "topo/machine/fake_process.hpp"
#include "topo/machine/machine_file.hpp"
#include "topo/machine/machines.hpp"
#include "topo/sources/fake_devices.hpp"

namespace oriel::topo {
namespace {

using test::has;

constexpr int kGpus = 4;

std::string uuid_text(int gpu) {
  const std::string byte = fmt::format("{:02x}", gpu + 100);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += byte;
  }
  return text;
}

/// NVML's view of the same four GPUs: the pairs are linked directly.
void describe(FakeNvml& nvml) {
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    const auto bus_id = [](int number) {
      return fmt::format("00000000:{:02X}:00.0", number + 100);
    };
    const FakeNvml::Link to_partner{true, NvmlConstants::kRemoteGpu, bus_id(gpu ^ 1)};
    nvml.devices.push_back({.pci = bus_id(gpu), .uuid = uuid_text(gpu), .links = {4, to_partner}});
  }
  for (int from = 0; from < kGpus; ++from) {
    for (int to = 0; to < kGpus; ++to) {
      if (from / 2 != to / 2) nvml.refused.push_back({from, to, NvmlConstants::read});
    }
  }
}

std::string address_of(int gpu) {
  return PciAddress{0, static_cast<std::uint8_t>(gpu + 100), 0, 0}.to_string();
}

/// Writes a file that puts each GPU at its own NUMA node and links GPU 0 to all others.
Settings describe_in(const TemporaryTree& tree) {
  MachineBuilder build;
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    build.gpu(build.host_bridge(build.numa(gpu, {gpu})), address_of(gpu).c_str());
  }
  for (int gpu = 1; gpu < kGpus; ++gpu) build.pair(0, gpu, true, 2);
  Settings settings;
  settings.topo_file = tree.root() + "/described.xml";
  REQUIRE(dump_machine(canonical(std::move(build.machine)), settings.topo_file).ok());
  return settings;
}

/// Moves a GPU below a root port of the host bridge 0000:60; returns the folder of its files.
std::string put_below(const TemporaryTree& tree, int gpu, const std::string& port) {
  const std::string link = "/sys/bus/pci/devices/" + address_of(gpu);
  const std::string device = "devices/pci0000:60/" + port + "/" + address_of(gpu);
  std::filesystem::remove_all(tree.root() + link);
  tree.folder("/sys/" + device);
  tree.link(link, "../../../" + device);
  return "/sys/" + device;
}

/// Four GPUs in two pairs that reach each other. GPU 3 also reaches GPU 0, but GPU 0 does not reach
/// GPU 3. CUDA shows the process some of them; the kernel module lists all.
struct Machines : FakeProcess {
  FakeDevices devices;
  CudaTable table = FakeDevices::table();
  ScopedCudaTable scoped{table};

  explicit Machines(std::vector<int> visible) : devices(std::move(visible)) {
    devices.maps = [](int from, int to) { return from / 2 == to / 2 || (from == 3 && to == 0); };
    describe(nvml);
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      tree.folder("/proc/driver/nvidia/gpus/" + address_of(gpu));
      const std::string folder = "/sys/bus/pci/devices/" + address_of(gpu);
      tree.file(folder + "/numa_node", gpu < 2 ? "0\n" : "1\n");
      tree.file(folder + "/max_link_speed", "32.0 GT/s PCIe\n");
      tree.file(folder + "/max_link_width", "16\n");
    }
  }
  void hide_kernel_module() const { std::filesystem::remove_all(tree.root() + "/proc"); }
  Result<RankInfo> info(int ordinal, HiddenGpus hidden = HiddenGpus::left_out) {
    const auto part = machine.for_communicators(true, Settings{}, hidden);
    if (!part.ok()) return Error(part.error());
    return gpu_rank_info(NodeIdentity{1, 2}, **part, ordinal);
  }
};

/// Returns the UUID of a GPU in the form of RankInfo.
DeviceUuid uuid_of_gpu(int gpu) {
  DeviceUuid uuid{};
  uuid.fill(static_cast<std::byte>(gpu + 100));
  return uuid;
}

}  // namespace

TEST_CASE("GPUs report which others they reach, and teams follow", "[req:2.3]") {
  Machines machines({0, 1, 2, 3});
  std::vector<RankInfo> ranks;
  REQUIRE(machines.info(0).ok());
  machines.devices.counted = 0;
  for (int ordinal = 0; ordinal < kGpus; ++ordinal) {
    const auto info = machines.info(ordinal);
    REQUIRE(info.ok());
    CHECK(info->device == ordinal);
    CHECK(info->seen.size() == 4);
    CHECK(info->numa == ordinal / 2);
    CHECK(decode_rank_info(encode(info.value())).value() == info.value());
    ranks.push_back(info.value());
  }
  CHECK(machines.nvml_asked == 0);
  CHECK(machines.devices.counted == 0);  // CUDA was asked once, before
  CHECK(ranks[2].pci_id == "0000:66:00.0");
  CHECK(can_map(ranks[3], ranks[0]));
  CHECK_FALSE(can_map(ranks[0], ranks[3]));
  CHECK(form_lsa_teams(ranks).members == std::vector<std::vector<int>>{{0, 1}, {2, 3}});
  // NVLink is inferred: atomics work, and no source knows the links.
  CHECK(find_seen(ranks[0], ranks[1].uuid)->path.kind == PathKind::nvlink);
  CHECK(text_of(find_seen(ranks[0], ranks[2].uuid)->path) ==
        "host memory, 2 hops, from 256 Gbit/s");
}

TEST_CASE("a communicator knows the bridges above GPUs: hops, and the narrowest link",
          "[req:2.6]") {
  Machines machines({0, 1});
  machines.hide_kernel_module();  // no GPU is hidden
  machines.devices.atomics = [](int, int) { return false; };
  const auto path = [&] {
    const MachineSources& sources = machines.machine.sources();
    const auto known = with_gpus(sources, discover_numa_nodes(sources));
    REQUIRE(known.ok());
    const RankInfo info = gpu_rank_info(NodeIdentity{1, 2}, *known, 0).value();
    return text_of(find_seen(info, uuid_of_gpu(1))->path);
  };
  CHECK(path() == "PCIe peer, from 256 Gbit/s");  // no source knows their places
  for (int gpu = 0; gpu < 2; ++gpu) {
    const std::string folder =
        put_below(machines.tree, gpu, fmt::format("0000:60:{:02x}.0", gpu + 1));
    machines.tree.file(folder + "/max_link_speed", "32.0 GT/s PCIe\n");
    machines.tree.file(folder + "/max_link_width", "16\n");
    machines.tree.file(folder + "/../max_link_speed",
                       gpu == 0 ? "32.0 GT/s PCIe" : "8.0 GT/s PCIe");
    machines.tree.file(folder + "/../max_link_width", "16\n");
  }
  CHECK(path() == "PCIe peer, 4 hops, from 64 Gbit/s");
}

TEST_CASE("without NVML hidden GPUs count as reachable, and visible ones as CUDA says",
          "[req:2.2]") {
  Machines machines({0, 2});
  machines.library.missing = "there is no NVML";
  const auto info = machines.info(0, HiddenGpus::asked_about);
  REQUIRE(info.ok());
  CHECK(machines.nvml_asked == 1);
  REQUIRE(info->seen.size() == 2);
  RankInfo hidden = *info;
  hidden.uuid = uuid_of_gpu(1);
  hidden.process = 99;
  CHECK(can_map(*info, hidden));
  hidden.uuid = uuid_of_gpu(2);
  CHECK_FALSE(can_map(*info, hidden));
}

TEST_CASE("if NVML and CUDA disagree on the reach of a visible device, CUDA's answer counts",
          "[req:2.3]") {
  Machines machines({0, 3});
  machines.nvml.refused.clear();  // NVML: all GPUs reach all others
  const auto info = machines.info(1, HiddenGpus::asked_about);
  REQUIRE(info.ok());
  const auto reaches = [&](int gpu) {
    const SeenDevice* seen = find_seen(*info, uuid_of_gpu(gpu));
    REQUIRE(seen != nullptr);
    return seen->reachable;
  };
  CHECK(reaches(0));
  CHECK(reaches(1));
  CHECK(reaches(2));
  const auto other = machines.info(0, HiddenGpus::asked_about);
  CHECK_FALSE(find_seen(*other, info->uuid)->reachable);
}

TEST_CASE("a fabric clique is reported where the IMEX service gives this process a channel",
          "[req:2.3]") {
  Machines machines({0, 1, 2, 3});
  machines.devices.fabric_handles = true;
  for (auto& device : machines.nvml.devices) {
    device.fabric.state = NvmlConstants::kFabricReady;
    device.fabric.cluster[0] = 7;
    device.fabric.clique = 42;
  }
  SECTION("a channel") {
    machines.tree.file("/dev/nvidia-caps-imex-channels/channel0", "");
    const auto info = machines.info(1);
    REQUIRE(info.ok());
    CHECK(machines.nvml_asked == 1);
    CHECK(info->fabric_handles);
    REQUIRE(info->fabric);
    CHECK(info->fabric->clique == 42);
    CHECK(info->links_class == bandwidth_class(4 * 26562 * 8 / 1000.0));
  }
  SECTION("none") {
    const auto info = machines.info(1);
    REQUIRE(info.ok());
    CHECK(machines.nvml_asked == 0);
    CHECK_FALSE(info->fabric_handles);
    CHECK_FALSE(info->fabric);
  }
}

TEST_CASE("the instances of a GPU that MIG divides are known to reach nobody", "[req:2.2]") {
  Machines machines({0});
  machines.devices.name = "NVIDIA H200 MIG 1g.18gb";
  machines.nvml.devices.resize(1);
  for (int gpu = 1; gpu < kGpus; ++gpu) {
    std::filesystem::remove_all(machines.tree.root() + "/proc/driver/nvidia/gpus/" +
                                address_of(gpu));
  }
  const std::string own = "MIG" + uuid_text(0).substr(3);
  const std::string other = "MIG" + uuid_text(9).substr(3);
  machines.nvml.devices[0].instances = {other, own};
  machines.nvml.refused.clear();
  const auto info = machines.info(0, HiddenGpus::asked_about);
  REQUIRE(info.ok());
  CHECK(machines.nvml_asked == 1);
  REQUIRE(info->seen.size() == 2);
  const SeenDevice* seen = find_seen(*info, *parse_device_uuid(other));
  REQUIRE(seen != nullptr);
  CHECK_FALSE(seen->reachable);
}

TEST_CASE("NVML is asked about hidden GPUs only once another rank is on one",
          "[req:2.3][req:2.10][H1]") {
  const auto info_of = [](Machines& machines, int ordinal, std::uint64_t process) {
    RankInfo info = machines.info(ordinal).value();
    info.process = process;
    return info;
  };
  SECTION("not where all ranks see each other's GPUs") {
    Machines machines({2, 3});
    const std::vector<RankInfo> ranks{info_of(machines, 0, 1), info_of(machines, 1, 2)};
    CHECK(ranks[0].may_learn_more);
    const RankPaths paths(ranks);
    CHECK_FALSE(paths.leave_questions());
    CHECK(machines.nvml_asked == 0);
  }
  SECTION("nor where the kernel lists no more GPUs than CUDA, as in a container") {
    Machines machines({0});
    machines.hide_kernel_module();
    RankInfo other = info_of(machines, 0, 2);
    other.uuid = uuid_of_gpu(1);
    other.seen.clear();
    const RankPaths paths(std::vector<RankInfo>{info_of(machines, 0, 1), other});
    CHECK(paths.summary().find("; of 1 no source") != std::string::npos);
    CHECK_FALSE(paths.leave_questions());
  }
  SECTION("by those whose reach is assumed, and once per process") {
    std::vector<RankInfo> ranks;
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      Machines machines({gpu});
      ranks.push_back(info_of(machines, 0, static_cast<std::uint64_t>(gpu) + 1));
      CHECK(machines.nvml_asked == 0);
    }
    const RankPaths first(ranks);
    CHECK(first.summary().find("; of 6 no source") != std::string::npos);
    REQUIRE(first.leave_questions());
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      const Wanted wanted = first.wanted_of(gpu);
      CHECK(wanted == Wanted{.hidden_gpus = true});
      Machines machines({gpu});
      REQUIRE(machines.info(0).ok());
      const RankInfo more = machines.info(0, HiddenGpus::asked_about).value();
      CHECK(machines.nvml_asked == 1);
      CHECK(machines.nvml.open == 0);
      RankInfo& known = ranks[static_cast<std::size_t>(gpu)];
      REQUIRE(add_supplement(known, encode_supplement(more, wanted), wanted).ok());
      // A later query returns the known facts without asking NVML again.
      CHECK(machines.info(0)->seen == known.seen);
      CHECK_FALSE(machines.info(0)->may_learn_more);
      CHECK(machines.nvml_asked == 1);
    }
    const RankPaths whole(ranks);
    CHECK_FALSE(whole.leave_questions());
    CHECK_FALSE(has(whole.summary(), "assumed"));
    const SeenDevice* const hidden = find_seen(ranks[0], ranks[1].uuid);
    CHECK_FALSE(hidden->visible);
    CHECK(text_of(hidden->path) == "NVLink, 1 hop, from 512 Gbit/s");
    CHECK(form_lsa_teams(ranks).members == std::vector<std::vector<int>>{{0, 1}, {2, 3}});
  }
}

TEST_CASE("hidden GPUs are added to what was found, and nothing is read twice", "[req:2.10]") {
  Machines machines({1, 2});
  for (int gpu = 0; gpu < kGpus; ++gpu) {  // two root ports below one host bridge, with two each
    const std::string folder =
        put_below(machines.tree, gpu, fmt::format("0000:60:{:02x}.0", gpu / 2 + 1));
    machines.tree.file(folder + "/numa_node", gpu < 2 ? "0\n" : "1\n");
  }
  std::vector<std::string>& asked = machines.asked;
  ProcessMachine& machine = machines.machine;
  Settings described;
  described.topo_file = machines.tree.root() + "/described.xml";
  REQUIRE(dump_machine(hgx_8(), described.topo_file).ok());
  REQUIRE(machine.for_communicators(false, Settings{}).ok());
  const std::size_t of_nodes = asked.size();
  CHECK(of_nodes > 0);
  const auto first = machine.for_communicators(true, Settings{});
  REQUIRE(first.ok());
  CHECK((*first)->machine.gpus.size() == 2);
  CHECK((*first)->may_learn_more);
  const int counted = machines.devices.counted;
  for (std::size_t i = of_nodes; i < asked.size(); ++i) {
    CHECK_FALSE(has(asked[i], "/sys/devices/system/node"));
  }
  asked.clear();
  const auto whole = machine.for_communicators(true, Settings{}, HiddenGpus::asked_about);
  REQUIRE(whole.ok());
  CHECK(machines.devices.counted == counted);  // CUDA's visible devices are known already
  CHECK(machines.nvml_asked == 1);
  INFO(fmt::format("{}", fmt::join(asked, " ")));
  CHECK_FALSE(asked.empty());
  for (const std::string& path : asked) {  // only GPUs 0 and 3: their bridges are known
    CHECK((path.find("0000:64:00.0") != std::string::npos ||
           path.find("0000:67:00.0") != std::string::npos));
  }
  const Machine& found = (*whole)->machine;
  REQUIRE(found.gpus.size() == 4);
  CHECK(check(found).ok());
  CHECK(found.pci.size() == 1 + 2 + 4);
  for (const Gpu& gpu : found.gpus) {
    const int number = gpu.pci->bus - 100;
    CHECK((gpu.ordinal >= 0) == (number == 1 || number == 2));
    CHECK(gpu.numa == number / 2);
    REQUIRE(gpu.node >= 0);
    CHECK(found.pci[static_cast<std::size_t>(gpu.node)].address == gpu.pci);
  }
  asked.clear();
  CHECK(machine.for_communicators(true, Settings{})->get() == whole->get());
  REQUIRE(machine.for_communicators(true, described).ok());  // only the file is new
  CHECK(machine.for_communicators(true, described, HiddenGpus::asked_about).ok());
  CHECK(asked.empty());
  CHECK(machines.devices.counted == counted);
  CHECK(machines.nvml_asked == 1);
}

TEST_CASE("a start of ranks on GPUs reads few files, and none of network ports", "[req:2.10]") {
  Machines machines({0, 1, 2, 3});
  add_network(machines.tree);
  const std::vector<std::string>& asked = machines.asked;
  ProcessMachine& machine = machines.machine;
  REQUIRE(machine.for_communicators(true, Settings{}).ok());
  CHECK(asked_about_network(asked) == 0);
  INFO(fmt::format("{}", fmt::join(asked, " ")));
  CHECK(asked.size() > 4);
  CHECK(asked.size() < 20 * std::size_t{kGpus});
  const std::size_t before = asked.size();
  REQUIRE(machine.for_communicators(true, Settings{}).ok());
  CHECK(asked.size() == before);
  CHECK(machine.network_gbps(Settings{}) == 200);
  CHECK(asked_about_network(asked) > 0);
  CHECK(asked_about_network(asked) == asked.size() - before);
}

TEST_CASE("GPUs of a described machine have an ordinal only if CUDA shows them",
          "[req:2.2][req:2.7]") {
  Machines machines({1});
  const Settings settings = describe_in(machines.tree);
  const auto whole = machines.machine.whole(settings);
  REQUIRE(whole.ok());
  CHECK(check(**whole).ok());
  std::vector<int> ordinals;
  for (const Gpu& gpu : (*whole)->gpus) ordinals.push_back(gpu.ordinal);
  CHECK(ordinals == std::vector<int>{-1, 0, -1, -1});
  const std::string again = machines.tree.root() + "/again.xml";
  REQUIRE(dump_machine(**whole, again).ok());
  const auto read = read_machine_file(again);
  REQUIRE((read.ok() ? "ok" : read.error().to_string()) == "ok");
  REQUIRE(read->gpus.size() == std::size_t{kGpus});
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    CHECK(read->gpus[static_cast<std::size_t>(gpu)].nvml_index == gpu);
  }
}

TEST_CASE("devices that share a PCI function are all there for communicators",
          "[req:2.1][req:2.2]") {
  Machines machines({0, 1});
  machines.hide_kernel_module();
  CudaTable parts = machines.table;
  parts.device_get_pci_bus_id = [](char* text, int bytes, CUdevice) {
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:64:00.0");
    return CUDA_SUCCESS;
  };
  const ScopedCudaTable scoped_parts(parts);
  // NVML lists the whole GPU; both instances have its links.
  machines.nvml.devices.resize(1);
  machines.nvml.devices[0].uuid = uuid_text(9);
  const MachineSources& sources = machines.machine.sources();
  auto known = with_gpus(sources, discover_numa_nodes(sources));
  REQUIRE(known.ok());
  known->may_learn_more = true;
  known = with_hidden_gpus(sources, std::move(known).value());
  CHECK(check(known->machine).ok());
  REQUIRE(known->machine.gpus.size() == 2);
  for (int part = 0; part < 2; ++part) {
    const Gpu& gpu = known->machine.gpus[static_cast<std::size_t>(part)];
    CHECK(gpu.uuid == uuid_text(part));
    CHECK(gpu.partition == part);
    CHECK(gpu.link_gbps > 0);
  }
}

TEST_CASE("a description says by what links GPUs are joined, and CUDA who maps whom", "[req:2.7]") {
  Machines machines({0, 1, 2, 3});
  const Settings settings = describe_in(machines.tree);
  const auto part = machines.machine.for_communicators(true, settings);
  REQUIRE(part.ok());
  const auto info = gpu_rank_info(NodeIdentity{1, 2}, **part, 0);
  REQUIRE(info.ok());
  const auto path_to = [&](int gpu) { return text_of(find_seen(*info, uuid_of_gpu(gpu))->path); };
  CHECK(path_to(1) == "NVLink, 1 hop, from 256 Gbit/s");
  CHECK(path_to(2).starts_with("host memory"));
  CHECK(gpu_rank_info(NodeIdentity{1, 2}, **part, 3)->numa == 3);
  CHECK(machines.nvml_asked == 0);
}

TEST_CASE("a driver call that fails is an error that says what was asked, and is not kept",
          "[req:1.38]") {
  Machines machines({0, 1, 2, 3});
  CudaTable failing = machines.table;
  failing.device_can_access_peer = [](int*, CUdevice, CUdevice) { return CUDA_ERROR_UNKNOWN; };
  {
    const ScopedCudaTable scoped(failing);
    const auto info = machines.info(1);
    REQUIRE_FALSE(info.ok());
    CHECK(has(info.error().to_string(), "whether device 0 reaches device 1"));
  }
  CHECK(machines.info(1).ok());
  CHECK_FALSE(machines.info(4).ok());
  CudaTable nameless = machines.table;
  nameless.device_get_uuid = [](CUuuid*, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; };
  const ScopedCudaTable scoped(nameless);
  ProcessMachine fresh(machines.sources());
  const auto part = fresh.for_communicators(true, Settings{});
  REQUIRE_FALSE(part.ok());
  CHECK(has(part.error().to_string(), "the UUID of device 0"));
}

}  // namespace oriel::topo
