// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests the rank information of ranks on GPUs, on fixtures and on machines built here.
#include "topo/choice/gpu_rank_info.hpp"

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "support/words.hpp"
#include "topo/choice/lsa_teams.hpp"
#include "topo/choice/reach.hpp"
#include "topo/machine/machines.hpp"

namespace oriel::topo {
namespace {

using test::has;

constexpr NodeIdentity kNode{1, 2};

/// Makes all GPUs visible and gives them valid UUIDs: GPU i has i in the first byte.
Machine with_uuids(Machine machine) {
  int number = 0;
  for (Gpu& gpu : machine.gpus) {
    gpu.ordinal = number;
    gpu.uuid = fmt::format("GPU-{:02x}000000-0000-0000-0000-000000000000", number++);
  }
  return machine;
}

Result<RankInfo> info_of(const Machine& machine, int ordinal, bool links_known = true) {
  return gpu_rank_info(kNode, CommunicatorMachine{machine, links_known}, ordinal);
}

/// Returns the information of one rank on each GPU, after an encode and decode check.
std::vector<RankInfo> ranks_on(const Machine& machine) {
  std::vector<RankInfo> ranks;
  for (const Gpu& gpu : machine.gpus) {
    auto info = info_of(machine, gpu.ordinal);
    REQUIRE(info.ok());
    info->process = ranks.size() + 1;
    REQUIRE(decode_rank_info(encode(*info)).value() == *info);
    ranks.push_back(std::move(info).value());
  }
  return ranks;
}

DeviceUuid uuid_of(int gpu) {
  DeviceUuid uuid{};
  uuid[0] = static_cast<std::byte>(gpu);
  return uuid;
}

}  // namespace

TEST_CASE("UUIDs are read as CUDA and NVML print them", "[req:2.3]") {
  const auto uuid = parse_device_uuid("GPU-65646362-0102-0304-0506-0708090a0bff");
  REQUIRE(uuid);
  CHECK((*uuid)[0] == std::byte{0x65});
  CHECK((*uuid)[15] == std::byte{0xff});
  CHECK(parse_device_uuid("MIG-65646362-0102-0304-0506-0708090a0bff") == uuid);
  for (const char* text :
       {"", "GPU-", "65646362-0102-0304-0506-0708090a0bff", "GPU-656463620102-0304-0506-0708090a0b",
        "GPU-65646362-0102-0304-0506-0708090a0bf", "GPU-65646362-0102-0304-0506-0708090a0bffa",
        "GPU-6564636g-0102-0304-0506-0708090a0bff", "GPU-65646362x0102-0304-0506-0708090a0bff",
        "MIG-GPU-65646362-0102-0304-0506-070809/1/0"}) {
    INFO(text);
    CHECK_FALSE(parse_device_uuid(text));
  }
}

TEST_CASE("teams of ranks are what reaches each other on every composed machine", "[req:2.3]") {
  for (const auto& [name, bare] : all_machines()) {
    INFO(name);
    const Machine machine = with_uuids(bare);
    const auto expected =
        form_mutual_groups(static_cast<int>(machine.gpus.size()),
                           [&](int from, int to) { return may_map(machine, from, to); });
    CHECK(form_lsa_teams(ranks_on(machine)).members == expected);
  }
}

TEST_CASE("a rank reports its place, its links and its paths", "[req:2.6]") {
  const auto info = info_of(with_uuids(hgx_8()), 7);
  REQUIRE(info.ok());
  CHECK(info->device == 7);
  CHECK(info->numa == 1);
  CHECK(info->uuid == uuid_of(7));
  CHECK(info->links_class == bandwidth_class(18 * 212.5));
  REQUIRE(info->seen.size() == 8);
  CHECK(find_seen(*info, uuid_of(7))->path == PathFacts{PathKind::same_device, 0, 0, true});
  CHECK(text_of(find_seen(*info, uuid_of(0))->path) == "NVLink, 2 hops, from 2048 Gbit/s");

  const auto single = info_of(with_uuids(two_cliques()), 0);
  CHECK(text_of(find_seen(*single, uuid_of(1))->path) == "NVLink, 1 hop, from 512 Gbit/s");
  CHECK_FALSE(find_seen(*single, uuid_of(4))->reachable);
  CHECK(find_seen(*single, uuid_of(4))->path.kind == PathKind::host_memory);
}

TEST_CASE("where no source reports links, native atomics count as NVLink", "[req:2.6]") {
  MachineBuilder build{machine_of("?( g g g )")};
  build.pair(0, 1, true, 0, true);
  build.pair(0, 2, true, 0, false);
  for (Gpu& gpu : build.machine.gpus) gpu.architecture = 90;
  Machine machine = with_uuids(canonical(std::move(build.machine)));
  const auto inferred = info_of(machine, 0, false);
  REQUIRE(inferred.ok());
  CHECK(find_seen(*inferred, uuid_of(1))->path == PathFacts{PathKind::nvlink, 0, 12, true});
  CHECK(find_seen(*inferred, uuid_of(2))->path.kind == PathKind::pcie_peer);
  // If NVML was asked and lists no link, the path is PCIe with atomics.
  const auto exact = info_of(machine, 0, true);
  CHECK(find_seen(*exact, uuid_of(1))->path.kind == PathKind::pcie_peer);
  CHECK(find_seen(*exact, uuid_of(1))->path.atomics);
}

TEST_CASE("hidden devices are reported if a source knows them, and left out if none does",
          "[req:2.3][H1]") {
  Machine machine = with_uuids(two_cliques());
  for (Gpu& gpu : machine.gpus) gpu.ordinal = gpu.uuid == machine.gpus[2].uuid ? 0 : -1;
  const auto reported = info_of(machine, 0);
  REQUIRE(reported.ok());
  CHECK(reported->uuid == uuid_of(2));
  REQUIRE(reported->seen.size() == 8);
  CHECK(find_seen(*reported, uuid_of(2))->visible);
  CHECK_FALSE(find_seen(*reported, uuid_of(3))->visible);
  CHECK(find_seen(*reported, uuid_of(3))->reachable);
  CHECK_FALSE(find_seen(*reported, uuid_of(4))->reachable);
  machine.pairs.clear();
  CHECK(info_of(machine, 0)->seen.size() == 1);
}

TEST_CASE("a device that cannot be distinguished from others is refused", "[req:2.3]") {
  Machine machine = with_uuids(workstation());
  CHECK(has(info_of(machine, 5).error().message(), "device 5 is none of the"));
  machine.gpus[1].uuid = "GPU-?";
  const auto nameless = info_of(machine, machine.gpus[1].ordinal);
  REQUIRE_FALSE(nameless.ok());
  CHECK(has(nameless.error().message(), "'GPU-?', which is no UUID"));
  // Ranks on other GPUs omit the GPU without a valid UUID.
  CHECK(info_of(machine, machine.gpus[0].ordinal)->seen.size() == 1);
}

}  // namespace oriel::topo
